"""What the first call of a method that the bundled ``cache_compile`` wrapped decides: a file, the daemon's entry, or a build.

Promise: it ends with a way to run the method, whatever files and the daemon hold; an entry is used only if its sidecar says that its
source, versions and configuration still hold; one that is stale or broken is set aside alone and named in the log; without a daemon the
bundled flow is as it was, with its files.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from npgxd.bridge.building import Building, follow_dynamo, read_entry
from npgxd.bridge.entry_shelf import BROKEN, STALE, EntryShelf, Kept, Unusable
from npgxd.bridge.fitting import Call, key_of, misfit
from npgxd.bridge.sidecar import unpack
from npgxd.client.artifacts import DEADLINE_S, MAX_CHAIN, UNREACHABLE, next_after
from npgxd.errors import NpgxError
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npgxd.client import Client

log = logging.getLogger("npgxd")

_SAY_AFTER_S: Final = 2.0


class FirstCall:
    """One first call of ``lazy``, a ``LazyCompiledModel`` of the bundled ``module``."""

    def __init__(self, module: Any, torch_npu: Any, lazy: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._module = module
        self._lazy = lazy
        ranks = {name: getattr(lazy, name) for name in ("config", "dynamic", "global_rank", "tp_rank", "pp_rank")}
        of = module.CompiledModel.get_cache_bin
        self._shelf = EntryShelf(Path(of(lazy.func, cache_dir=lazy.cache_dir, **ranks)))
        self._call = Call(
            torch=module.torch,
            torch_npu=torch_npu,
            method=lazy.func,
            args=args,
            kwargs=kwargs,
            dynamic=bool(lazy.dynamic),
            decompositions=lazy.decompositions,
            info=f"{module.__name__} {Path(of(lazy.func, cache_dir='/', **ranks)).parts[1]}",
            bundled=str(module.CompiledModel.VERSION),
        )
        self._label = self._call.label
        self._misfit = ""
        self._said = False

    def opened(self, connect: Callable[[], Client]) -> Callable[..., Any]:
        """How the method is called from now on."""
        return self._from_files() or self._from_daemon(connect())

    # ---- files -------------------------------------------------------------------------------------------------------

    def _from_files(self) -> Callable[..., Any] | None:
        try:
            kept = self._shelf.current()
        except Unusable as error:
            self._misfit = error.message
            log.warning("npgxd: %s: %s is not used, and set aside: %s", self._label, self._shelf.path, error.message)
            kept = None
        if kept is not None and (run := self._use_current(kept)) is not None:
            return run
        return self._from_earlier()

    def _use_current(self, kept: Kept) -> Callable[..., Any] | None:
        reason, kind = misfit(kept.sidecar.facts, self._call), STALE
        if not reason:
            try:
                return self._run(kept, "loaded from its file")
            except Exception as error:  # noqa: BLE001 -- whatever an entry is like, the call must run
                reason, kind = f"it cannot be loaded ({type(error).__name__}: {error})", BROKEN
        self._misfit = reason
        aside = self._shelf.set_aside(kept, kind)
        log.warning("npgxd: %s: %s is %s, and set aside as %s: %s", self._label, self._shelf.path, kind, aside, reason)
        return None

    def _from_earlier(self) -> Callable[..., Any] | None:
        for kept in self._shelf.earlier():
            if misfit(kept.sidecar.facts, self._call):
                continue
            try:
                run = self._run(kept, "loaded from an earlier file that fits again")
            except Exception as error:
                log.debug("npgxd: %s: an earlier entry", self._label, exc_info=error)
                continue
            self._save(kept)
            return run
        return None

    def _save(self, kept: Kept) -> None:
        try:
            self._shelf.put(kept)
        except (NpgxError, OSError) as error:
            log.warning("npgxd: %s: the entry could not be saved: %s", self._label, error)

    def _run(self, kept: Kept, origin: str) -> Callable[..., Any]:
        """The bundled way to run an entry. The globals are those of the method's own module, in which it was traced."""
        method = self._lazy.func
        model = read_entry(self._module, kept.entry)
        run: Callable[..., Any] = model.rebase(
            method.__self__, method.__globals__, func=method, cache_dir=str(self._shelf.path.parent)
        )
        log.info("npgxd: %s: %s (%s)", self._label, origin, self._shelf.path)
        return run

    # ---- the daemon --------------------------------------------------------------------------------------------------

    def _from_daemon(self, client: Client) -> Callable[..., Any]:
        client.identify(soc=str(self._call.torch_npu.npu.get_device_name()))
        key = key_of(self._call)
        if self._misfit:
            client.cache_note(key, self._label, "MISFIT", self._misfit)
        for _ in range(MAX_CHAIN):
            found = client.lookup(key, self._label, deadline_s=DEADLINE_S, on_wait=self._waits)
            if found.state is ArtifactState.NOT_CACHEABLE:
                log.warning("npgxd: %s is compiled at every start, not cached: %s", self._label, found.reason or found.code)
                return self._build(None, key, keep=False)
            if found.state is not ArtifactState.HIT or found.data is None:
                return self._build(None if found.code in UNREACHABLE else client, key)
            try:
                kept = _unpacked(found.data)
                if reason := misfit(kept.sidecar.facts, self._call):
                    log.warning("npgxd: %s: the daemon's entry is not used: %s", self._label, reason)
                    client.cache_note(key, self._label, "MISFIT", reason)
                    key = next_after(key, found.digest)
                    continue
                run = self._run(kept, "loaded from the daemon")
            except Exception as error:  # noqa: BLE001 -- whatever an entry is like, the call must run
                log.warning("npgxd: %s: the daemon's entry cannot be loaded: %s", self._label, error)
                client.bad_artifact(key, found.digest, f"{type(error).__name__}: {error}")
                return self._build(None, key)
            client.proven(key, found.digest)
            self._save(kept)
            return run
        return self._build(None, key)

    def _waits(self, elapsed_s: float) -> None:
        """Another process builds it: said once, when it is no short matter."""
        if elapsed_s >= _SAY_AFTER_S and not self._said:
            self._said = True
            log.info("npgxd: %s: another process of this node is compiling it; waiting for that", self._label)

    def _build(self, client: Client | None, key: str, *, keep: bool = True) -> Callable[..., Any]:
        """The bundled saver, which compiles when it is called; what it makes is kept, unless ``keep`` says no, and published."""
        lazy = self._lazy
        try:
            follow_dynamo()
            saver = self._module.ModelCacheSaver(
                lazy.func,
                str(self._shelf.path),
                config=lazy.config,
                dynamic=lazy.dynamic,
                decompositions=lazy.decompositions,
            )
        except BaseException:
            if client is not None:
                client.release(key)
            raise
        Building(self._module, saver, self._call, self._shelf, client, key, keep=keep)
        run: Callable[..., Any] = saver
        return run


def _unpacked(data: bytes) -> Kept:
    sidecar, entry = unpack(data)
    return Kept(entry, sidecar)
