"""One process's build of an entry of the bundled compile cache: watch its trace, keep what came of it, tell the daemon.

Promise: the entry is saved and published after Dynamo has compiled and before anything of it runs, since other processes that wait for
it may then owe this one a collective; whoever was made the builder says how it ended, however it ends; a method that is traced a second
time gives its entry up; and nothing here changes what the call returns or raises.

Found in torch 2.13: bytecode hooks are called with the frame's code and Dynamo's, in the thread that calls, before either runs.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import marshal
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npgxd.bridge.entry_shelf import BROKEN, FILE, EntryShelf, Kept
from npgxd.bridge.fitting import Call, facts_of, misfit
from npgxd.bridge.sidecar import Sidecar, pack
from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from npgxd.client import Client

log = logging.getLogger("npgxd")

_active = threading.local()


class NotKept(NpgxError):
    """What was compiled cannot be kept; ``why`` is the code under which the daemon remembers that."""

    code = "NOT_CACHEABLE"
    exit_code = 65

    def __init__(self, message: str, *, why: str) -> None:
        super().__init__(message, why=why)
        self.why = why


def read_entry(module: Any, entry: bytes) -> Any:
    """The bundled ``CompiledModel`` in these bytes, by the bundled code's own strict reader. Raises whatever that does."""
    artifact = module._StrictModelUnpickler(io.BytesIO(entry)).load()  # noqa: SLF001 -- the one reader of the format
    model = module.CompiledModel(artifact.meta)
    if model.meta.version != module.CompiledModel.VERSION:
        raise ValueError(f"it has format {model.meta.version}, and this torch_npu reads {module.CompiledModel.VERSION}")
    model.compiled_fn = module._depatch_user_const(marshal.loads(artifact.compiled_fn))  # noqa: S302, SLF001 -- as bundled; its digest and owner were checked
    model.compiled_fx = artifact.compiled_fx
    return model


class Building:
    """Watches ``saver``, a ``ModelCacheSaver`` of the bundled code.

    ``client`` is None where nobody is to be told. Without ``keep`` what is compiled is used, and nothing else happens.
    """

    def __init__(
        self, module: Any, saver: Any, call: Call, shelf: EntryShelf, client: Client | None, key: str, *, keep: bool
    ) -> None:
        self._module = module
        self._saver = saver
        self._call: Call | None = call  # holds the first call's arguments: let go when they have been described
        self._label = call.label
        self._method = call.method
        self._shelf = shelf
        self._client = client
        self._key = key
        self._facts: dict[str, Any] | None = None
        self._problem: NpgxError | None = None
        self._kept: Kept | None = None
        self._is_over = not keep
        saver.npgxd_building = self

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around each call of the saver: what Dynamo compiles meanwhile in this thread, of its method, is its entry."""
        before = getattr(_active, "building", None)
        _active.building = self
        try:
            yield
        finally:
            _active.building = before
            if not self._is_over and self._client is not None:  # it raised, or Dynamo was off: another process may try
                self._client.release(self._key)

    def traced(self, codes: list[CodeType]) -> None:
        """Dynamo has traced the method, and looked into ``codes``; nothing has run."""
        if self._is_over:
            self._recompiled()
            return
        try:
            if self._call is not None:
                self._facts, self._problem = _fitting(self._call, codes), None
        except NpgxError as error:
            self._problem = error
        except Exception as error:  # noqa: BLE001 -- a model of a kind that nobody thought of is compiled as usual
            self._problem = NotKept(f"it cannot be described ({type(error).__name__}: {error})", why="UNSERIALISABLE")

    def compiled(self, code: CodeType, made: CodeType) -> None:
        """Dynamo has made ``made`` of a function with ``code``, which runs next."""
        if self._is_over or code != self._method.__code__:
            return
        self._is_over, self._call = True, None
        try:
            self._keep(self._made(made))
        except NpgxError as error:
            self._refuse(getattr(error, "why", error.code), error.message)
        except Exception as error:  # noqa: BLE001 -- the call goes on
            self._refuse("UNSERIALISABLE", f"it could not be written down ({type(error).__name__}: {error})")

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _made(self, made: CodeType) -> Kept:
        if self._problem is not None:
            raise self._problem
        model = self._saver.compiled_model
        if self._facts is None or self._saver.errors or model.compiled_fx is None:
            raise NotKept(f"the graph cannot be written down: {self._saver.errors or 'it has no code'}", why="UNSERIALISABLE")
        model.compiled_fn = made
        with tempfile.TemporaryDirectory(prefix="npgxd-") as directory:  # for this user alone
            file = Path(directory, FILE)
            model.save(str(file))
            if not file.exists():
                raise NotKept("the compiled function cannot be written down", why="UNSERIALISABLE")
            entry = file.read_bytes()
        read_entry(self._module, entry)
        if sum(name.startswith("__compiled_fn") for name in made.co_names) != 1:
            raise NotKept("the method is not one graph", why="GRAPH_BREAK")
        return Kept(entry, Sidecar.of(entry, self._facts))

    def _keep(self, kept: Kept) -> None:
        self._kept = kept
        try:
            self._shelf.put(kept)
        except (NpgxError, OSError) as error:
            log.warning("npgxd: %s: the compiled graph could not be saved: %s", self._label, error)
        if self._client is not None:
            self._client.publish(
                self._key, pack(kept.sidecar, kept.entry), label=self._label, meta={"function": self._label, "by": "bridge"}
            )

    def _refuse(self, why: str, reason: str) -> None:
        log.warning("npgxd: %s is compiled at every start, not cached: %s", self._label, reason)
        if self._client is not None:
            self._client.not_cacheable(self._key, why, reason, label=self._label)

    def _recompiled(self) -> None:
        """As the bundled code has it, one graph is not enough for this method: what was kept would answer other calls wrongly."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        reason = "a later call compiled it again, so that one graph does not answer all of its calls"
        log.warning("npgxd: %s: its entry is set aside as %s", self._label, self._shelf.set_aside(kept, BROKEN))
        self._refuse("RECOMPILES", reason)


def _fitting(call: Call, codes: list[CodeType]) -> dict[str, Any]:
    """The facts, as a reader of the sidecar will have them. NotKept if not even this very call fits them."""
    facts: dict[str, Any] = json.loads(json.dumps(facts_of(call, codes)))
    if reason := misfit(facts, call):
        raise NotKept(f"it would not fit the very call that it was traced from: {reason}", why="UNSERIALISABLE")
    return facts


_followed: set[str] = set()


def follow_dynamo() -> None:
    """Hear, once in this process, of everything that Dynamo compiles. AttributeError in a torch that does not tell."""
    if not _followed:
        importlib.import_module("torch._dynamo.convert_frame").register_bytecode_hook(_compiled)
        _followed.add("dynamo")


def _compiled(code: CodeType, made: CodeType) -> None:
    building: Building | None = getattr(_active, "building", None)
    if building is not None:
        building.compiled(code, made)
