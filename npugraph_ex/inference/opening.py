"""What the first call of a wrapped method decides: which entry answers it, or why none does.

Promise: it ends with a way to run the method, whatever files and the daemon hold; an entry is saved and published before it first
runs, since other processes may wait for it and then owe this one a collective; and nothing is deleted because it does not
fit.  Order: a fitting file; the daemon, which may name this process the builder while others wait; else trace, save, publish.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from npgxd.client import current
from npgxd.client.artifacts import DEADLINE_S, MAX_CHAIN, UNREACHABLE, next_after
from npgxd.errors import NpgxError
from npgxd.wire.states import ArtifactState
from npugraph_ex import reports
from npugraph_ex.inference import entry, making
from npugraph_ex.inference.cacheable import NotCacheable
from npugraph_ex.inference.calls import CallCheck
from npugraph_ex.inference.container import EntryDamaged
from npugraph_ex.inference.facts import Facts
from npugraph_ex.inference.facts_given import given
from npugraph_ex.inference.facts_settings import versions_now
from npugraph_ex.inference.fit import unfit
from npugraph_ex.inference.key import key_of
from npugraph_ex.inference.places import Place, Ranks, place_of
from npugraph_ex.inference.settings import guarded
from npugraph_ex.inference.shelf import Shelf
from npugraph_ex.inference.tracing import nobody_else_traces
from npugraph_ex.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import FunctionType

    from torch import nn

    from npgxd.client import Client
    from npugraph_ex.inference.entry import Entry
    from npugraph_ex.options import Options
    from npugraph_ex.recording.recorded import RecordMemory

logger = logging.getLogger("npugraph_ex")

_SAY_AFTER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One ``cache_compile`` call, checked. ``decompositions`` are the user's own, unwatched."""

    options: Options
    dynamic: bool
    base: Path
    ranks: Ranks = field(default_factory=Ranks)
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    check_calls: bool = True
    deadline_s: float = DEADLINE_S
    connect: Callable[[], Client] = current


@dataclass(frozen=True, slots=True)
class Opened:
    """How calls are answered from now on. ``run`` is None where no entry can: then ``reason`` says why.

    ``origin`` is ``file``, ``daemon``, ``compiled`` or ``usual``; ``check`` gives the reason why a call does not fit, "" if it does.
    """

    origin: str
    run: Callable[..., Any] | None = None
    check: Callable[..., str] | None = None
    reason: str = ""
    place: Place | None = None


class _Misfit(Exception):
    """A whole entry that is not for this process or this call; its text is the reason."""


class Opening:
    """One first call."""

    def __init__(self, function: FunctionType, instance: nn.Module, plan: Plan) -> None:
        self._function = function
        self._instance = instance
        self._plan = plan
        self._label = f"{type(instance).__name__}.{function.__name__}"
        self._made_from = given(plan.options, plan.decompositions, dynamic=plan.dynamic)
        self._place = place_of(plan.base, instance, function.__name__, plan.options, dynamic=plan.dynamic, ranks=plan.ranks)
        self._shelf = Shelf(self._place)
        self._misfit = ""
        self._said = False

    def opened(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened:
        """Decide. Raises only what is the user's to mend: OptionError, ConfigError."""
        return self._from_files(args, kwargs) or self._from_daemon(args, kwargs)

    # ---- what is there already ---------------------------------------------------------------------------------------

    def _from_files(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened | None:
        for data in self._shelf.entries():
            try:
                return self._use(data, "file", args, kwargs)
            except _Misfit as misfit:
                self._misfit = self._misfit or str(misfit)
            except NpgxError as error:
                self._misfit = self._misfit or str(error)
        if self._misfit:
            logger.warning("npugraph_ex: %s: what is in %s is not used: %s", self._label, self._place.directory, self._misfit)
        return None

    def _from_daemon(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened:
        client = self._plan.connect()
        key = key_of(
            self._function,
            self._instance,
            args,
            kwargs,
            info=self._place.parts[0],
            dynamic=self._plan.dynamic,
            versions=versions_now(()),
        )
        if self._misfit:
            client.cache_note(key, self._label, "MISFIT", self._misfit)
        for _ in range(MAX_CHAIN):
            found = client.lookup(key, self._label, deadline_s=self._plan.deadline_s, on_wait=self._waits)
            if found.state is ArtifactState.NOT_CACHEABLE:
                return self._usual(found.reason or found.code)
            if found.state is not ArtifactState.HIT or found.data is None:
                told = None if found.code in UNREACHABLE else client
                return self._build(told, key, args, kwargs)
            try:
                opened = self._use(found.data, "daemon", args, kwargs)
            except _Misfit as misfit:
                logger.warning("npugraph_ex: %s: the daemon's entry is not used: %s", self._label, misfit)
                client.cache_note(key, self._label, "MISFIT", str(misfit))
                key = next_after(key, found.digest)
                continue
            except NpgxError as error:
                logger.warning("npugraph_ex: %s: the daemon's entry cannot be loaded: %s", self._label, error)
                client.bad_artifact(key, found.digest, str(error))
                return self._build(None, key, args, kwargs)
            client.proven(key, found.digest)
            self._save(found.data)
            return opened
        return self._build(None, key, args, kwargs)

    def _waits(self, elapsed_s: float) -> None:
        """Another process builds it: said once, when it is no short matter."""
        if elapsed_s >= _SAY_AFTER_S and not self._said:
            self._said = True
            logger.info("npugraph_ex: %s: another process of this node is compiling it; waiting for that", self._label)

    def _memory(self, data: bytes) -> RecordMemory | None:
        if not self._plan.options.static_kernel_compile:
            return None
        from npugraph_ex.inference.records import KeptRecords  # noqa: PLC0415 -- only static kernels need it

        return KeptRecords(self._place, hashlib.sha256(data).hexdigest())

    def _use(self, data: bytes, origin: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened:
        """Bind an entry if it fits. _Misfit, or the NpgxError that says what is wrong with it: nothing else leaves this."""
        try:
            return self._bound(entry.read(data), data, origin, args, kwargs)
        except (_Misfit, NpgxError):
            raise
        except Exception as error:  # the user's call must run whatever an entry is like
            logger.debug("npugraph_ex: %s: an entry", self._label, exc_info=error)
            raise EntryDamaged(f"the entry cannot be used ({type(error).__name__}: {error})") from error

    def _bound(self, read: Entry, data: bytes, origin: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened:
        try:
            facts = Facts.parse(read.facts)
        except ValueError as error:
            raise EntryDamaged(f"the entry's facts cannot be read: {error}") from error
        check = CallCheck(facts, read.check_code(), self._function)
        with nobody_else_traces():
            reason = unfit(facts, self._function, self._made_from) or check(self._instance, *args, **kwargs)
        if reason:
            raise _Misfit(reason)
        run = read.bind(
            self._function,
            self._plan.options,
            name=str(reports.next_number()),
            build_dir=self._place.directory,
            memory=self._memory(data),
        )
        logger.info("npugraph_ex: %s: %s (%s)", self._label, _ORIGINS[origin], self._place.file)
        return Opened(origin, run, check if self._plan.check_calls else None, place=self._place)

    # ---- making one --------------------------------------------------------------------------------------------------

    def _build(self, client: Client | None, key: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Opened:
        """Trace, save, publish. ``client`` is None where nobody can be told, or should be."""
        try:
            data = making.made(
                self._function,
                self._instance,
                args,
                kwargs,
                self._plan.options,
                self._made_from,
                dynamic=self._plan.dynamic,
                decompositions=guarded(self._plan.decompositions),
            )
            opened = self._use(data, "compiled", args, kwargs)
        except NotCacheable as error:
            if client is not None:
                client.not_cacheable(key, error.why.upper(), error.message, label=self._label)
            return self._usual(str(error))
        except _Misfit as misfit:
            if client is not None:
                client.release(key)
            return self._usual(f"what was traced would not fit the very call that it was traced from: {misfit}")
        except BaseException as error:
            if client is not None:
                client.release(key)
            if isinstance(error, OptionError) or not isinstance(error, Exception):
                raise
            logger.debug("npugraph_ex: %s could not be traced", self._label, exc_info=error)
            return self._usual(f"it could not be traced ({type(error).__name__}: {error})")
        self._save(data)
        if client is not None:
            client.publish(
                key, data, label=self._label, meta={"model": self._place.parts[0], "function": self._function.__qualname__}
            )
        return opened

    def _save(self, data: bytes) -> None:
        try:
            self._shelf.put(data)
        except (NpgxError, OSError) as error:
            logger.warning("npugraph_ex: %s: the entry could not be saved: %s", self._label, error)

    def _usual(self, reason: str) -> Opened:
        logger.warning("npugraph_ex: %s is compiled at every start, not cached: %s", self._label, reason)
        return Opened("usual", reason=reason, place=self._place)


_ORIGINS: Final = {"file": "loaded from its file", "daemon": "loaded from the daemon", "compiled": "compiled"}
