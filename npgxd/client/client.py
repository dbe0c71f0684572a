"""The client as a rank uses it: ask for static kernels, and get an outcome whatever the daemon does."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import zmq

from npgxd.client import refusals
from npgxd.client.artifacts import ArtifactClient
from npgxd.client.connection import DaemonSilent
from npgxd.client.dump import usable
from npgxd.client.early_look import EarlyLook
from npgxd.client.fetch import fetch
from npgxd.client.journey import Ask, Journey, JourneyEnded
from npgxd.client.notice import warn_once
from npgxd.client.outcome import Outcome, Progress
from npgxd.client.rank import printable
from npgxd.client.session import NoTime, Patience, Session
from npgxd.errors import DaemonUnavailable, NpgxError, ProtocolError, RequestRefused
from npgxd.wire import limits
from npgxd.wire.codec import Record, unpack_records
from npgxd.wire.messages import (
    CompileOptions,
    CoreCounts,
    Gathered,
    GatheredPart,
    Rejected,
    Report,
    RoundProgress,
    ToolchainIdentity,
    Welcome,
)
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState, Reason

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from npgxd.client.background import Place
    from npgxd.client.changing import Change

log = logging.getLogger("npgxd")

OnProgress = Callable[[Progress], None]
DEADLINE_GRACE_S: Final = 1.0
"""After the caller's deadline, leasing what was settled in time and telling the daemon may take so long, at most."""
_NOBODY_TO_TELL = frozenset({Reason.DAEMON_UNAVAILABLE, Reason.DAEMON_DRAINING})
_FAULTS = (NpgxError, OSError, zmq.ZMQError)
"""What can go wrong between this process and the daemon; none of it is the caller's business."""


class Client(ArtifactClient):
    """This process's way to the daemon. Every method returns; none raises for anything that the daemon does or does not do."""

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, patience: Patience | None = None, compares: bool = True
    ) -> None:
        """``environ`` is where NPGXD_*, ASCEND_* and the rank variables are read, at each use (default: the process's).

        With ``compares`` False nothing of this process's CANN is read, nor compared with the daemon's.
        """
        self._compares = compares
        self._environ = os.environ if environ is None else environ
        self._soc = self._environ.get("NPGXD_SOC", "")
        self._cores: CoreCounts | None = None
        self._identity: ToolchainIdentity | None = None
        self._early: EarlyLook | None = None
        self._reported: tuple[object, ...] = ()
        self._session = Session(self._environ, patience=patience or Patience(), identify=self._identify)

    # ---- static kernels ----------------------------------------------------------------------------------------------

    def static_kernels(
        self,
        records: Sequence[Record],
        *,
        graph: str,
        options: CompileOptions | None = None,
        recompile: bool = False,
        deadline_s: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Outcome:
        """Have the kernels of ``records`` (file name, JSON bytes) compiled where they are missing, and lease a view of them.

        Waits while the daemon tells of progress, up to ``deadline_s``; a silent daemon is given up after 5 s, one that is
        restarting after 10 s.  ``on_progress`` is called at least every second.  ``recompile`` compiles again what is there.
        """
        with self.within(math.inf if deadline_s is None else deadline_s + DEADLINE_GRACE_S):
            outcome = self._settle(records, graph, options, deadline_s, on_progress, recompile=recompile)
            if outcome.round or outcome.reason not in _NOBODY_TO_TELL:  # a refusal, too, is this process's state from now on
                self.report(outcome.state, outcome.reason, detail=outcome.detail, graph=graph)
        return outcome

    def static_kernels_in_background(
        self,
        records: Sequence[Record],
        *,
        graph: str,
        change: Change,
        place: Place,
        on_ready: Callable[[Outcome], None],
        on_end: Callable[[Outcome], Outcome],
        options: CompileOptions | None = None,
        recompile: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        """The same without waiting: a thread of this process follows the round, and has the graph changed when the kernels are ready.

        ``change`` is made by whoever calls the graph, at the call that the ranks of the job agree on, or as soon as may be where
        ``place`` says that there is nobody to agree with.  ``on_ready`` gets what has been leased and is to be loaded at that call;
        ``on_end`` is called once in the end, and returns what became of it.  The thread keeps no process from ending, and a forked
        child does not have it.
        """
        from npgxd.client.background import Background  # noqa: PLC0415 -- few processes need it

        settle = partial(self._settle, records, graph, options, None, on_progress, recompile=recompile)
        Background(self, self._session, settle, graph, change, place, on_ready, on_end).start()

    def _settle(
        self,
        records: Sequence[Record],
        graph: str,
        options: CompileOptions | None,
        deadline_s: float | None,
        on_progress: OnProgress | None,
        *,
        recompile: bool,
    ) -> Outcome:
        kept, rejected = usable(records)
        ask = Ask(kept, printable(graph, limits.MAX_NAME), options or CompileOptions(), recompile, deadline_s)
        tell = _guarded(on_progress)

        def told_of(told: RoundProgress) -> None:
            tell(Progress.of(told, simulated=_simulated(journey.welcome)))

        journey = Journey(self._session, ask, check=refusals.check, on_progress=told_of)
        outcome = self._travel(journey)
        toolchain = journey.welcome.toolchain if journey.welcome else None
        told = journey.latest
        outcome = replace(
            outcome,
            round=told.round if told else "",
            records=len(records),
            unique=told.unique if told else 0,
            rejected=told.rejected if told else (),
            simulated=_simulated(journey.welcome),
            speaks=told.speaks if told else None,
            toolchain=toolchain,
        )
        outcome = _with_rejected(outcome, rejected)
        if outcome.reason is Reason.DAEMON_UNAVAILABLE:
            warn_once("unavailable", f"{outcome.detail}; this process runs with dynamic kernels. {outcome.hint}")
        return outcome

    def _travel(self, journey: Journey) -> Outcome:
        """The journey's end in the words of states; every error has one."""
        try:
            settled = journey.settle()
            fetched, settled = fetch(self._session, self._environ, journey, settled)
            self._session.settled()
            return refusals.settled_outcome(settled, fetched)
        except refusals.Declined as declined:
            return declined.outcome
        except JourneyEnded as ended:
            return Outcome(ClientState.DEGRADED, ended.reason, ended.message, ended.hint)
        except RequestRefused as refused:
            return refusals.refused_outcome(refused)
        except (DaemonUnavailable, ProtocolError) as error:
            self._give_up(error)
            reason = Reason.DEADLINE if isinstance(error, NoTime) else Reason.DAEMON_UNAVAILABLE
            return Outcome(ClientState.DEGRADED, reason, error.message, error.hint)
        except Exception as error:  # no fault of ours may stop a training run either; it is logged whole, and a state tells of it
            log.exception("npgxd: the client failed")
            self._give_up(error)
            return Outcome(ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE, f"the client failed: {error}", "see the log")

    def gathered(self, round_id: str) -> list[Record]:
        """The unique records of all ranks that were compiled together with this round; empty if they cannot be had."""
        records: list[Record] = []
        try:
            start: int | None = 0
            while start is not None:
                reply = self._session.request(Gathered(round=round_id, start=start))
                if not isinstance(reply.message, GatheredPart):
                    raise ProtocolError(f"the daemon answers gathered with {reply.message.op!r}")
                piece = unpack_records(reply.frames)
                records.extend(piece)
                start = reply.message.next if piece else None
        except _FAULTS as error:
            self._note("gathered", error)
            return []
        return records

    # ---- states ------------------------------------------------------------------------------------------------------

    def report(self, state: ClientState, reason: Reason | str = "", *, detail: str = "", graph: str = "") -> None:
        """Tell the daemon, and so whoever looks at the node, what this process's state is. Best effort; the same is told once."""
        report = Report(
            state=state,
            reason=str(reason),
            detail=printable(detail, limits.MAX_TEXT),
            graph=printable(graph, limits.MAX_NAME),
        )
        try:
            welcome = self._session.welcome()
            if self._reported == (welcome.session, report):
                return
            self._session.request(report)
            self._reported = (welcome.session, report)
        except _FAULTS as error:
            self._note("report", error)

    def recording(self, graph: str) -> None:
        """Tell the daemon that a graph's first run is under way, so that it waits for this rank's records before it compiles."""
        self.report(ClientState.RECORDING, graph=graph)

    # ---- the daemon --------------------------------------------------------------------------------------------------

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """For a ``with``: what this thread asks of the daemon in it takes so long in all, at most."""
        return self._session.within(seconds)

    def identify(self, *, soc: str = "", cores: CoreCounts | None = None) -> None:
        """Say which SoC this process runs on and how many cores it may use, as the runtime tells; before the first request."""
        if (soc or self._soc, cores or self._cores) != (self._soc, self._cores):
            self._soc, self._cores, self._identity = soc or self._soc, cores or self._cores, None
            self.close()  # the next hello says so

    def look_early(self) -> None:
        """Begin to look at this process's CANN, in a thread, since a first request will come; returns at once."""
        if self._compares and self._identity is None and self._early is None:
            self._early = EarlyLook(self._environ)

    def welcome(self) -> Welcome | None:
        """The daemon's welcome (its toolchain, its store); connects if needed. None: no daemon, or not for us."""
        try:
            return self._session.welcome()
        except _FAULTS as error:
            self._note("hello", error)
            return None

    def close(self) -> None:
        """Close the connection, at once. Leases stay, for they are the process's; the next request connects again."""
        with suppress(zmq.ZMQError, NoTime):
            self._session.close()

    def _identify(self) -> ToolchainIdentity:
        if not self._compares:
            return ToolchainIdentity()
        if self._identity is None:
            from npgxd.wire.identity import identity, roots_digest  # noqa: PLC0415 -- only a process that talks to a daemon needs it

            digest = self._early.digest if self._early is not None else roots_digest
            try:
                self._identity = identity(self._environ, soc=self._soc, cores=self._cores, digest=digest)
            except (OSError, NpgxError, ValueError) as error:  # an unreadable CANN is not compared; its user will hear elsewhere
                log.debug("npgxd: this process's CANN cannot be read: %s", error)
                self._identity = ToolchainIdentity(soc=self._soc, cores=self._cores)
        return self._identity

    def _give_up(self, error: Exception) -> None:
        if not isinstance(error, NoTime):
            self._session.give_up()
        self._note("static kernels", error)

    def _note(self, what: str, error: Exception) -> None:
        if isinstance(error, DaemonSilent) and not isinstance(error, NoTime):
            self._session.rest(error)
        log.debug("npgxd: %s: %s", what, error)


_clients: dict[int, Client] = {}


def current() -> Client:
    """This process's client; a forked child gets its own. Never raises and connects to nothing."""
    pid = os.getpid()
    client = _clients.get(pid)
    return client if client is not None else _clients.setdefault(pid, Client())


def _simulated(welcome: Welcome | None) -> bool:
    """The daemon's CANN is a simulated one, which its user is to know wherever he meets it."""
    return welcome is not None and welcome.toolchain is not None and welcome.toolchain.simulated


def _guarded(on_progress: OnProgress | None) -> OnProgress:
    """``on_progress`` as a function that cannot fail a round: a fault in it is logged, and it is not called again."""
    failed = on_progress is None

    def tell(progress: Progress) -> None:
        nonlocal failed
        if failed or on_progress is None:
            return
        try:
            on_progress(progress)
        except Exception:  # a progress bar must not stop a training run
            failed = True
            log.exception("npgxd: on_progress failed and is not called again for this round")

    return tell


def _with_rejected(outcome: Outcome, rejected: Sequence[Rejected]) -> Outcome:
    """Records that were not even sent count as the daemon's rejected ones do."""
    if not rejected:
        return outcome
    outcome = replace(outcome, rejected=(*rejected, *outcome.rejected))
    if outcome.state is ClientState.INSTALLED or outcome.reason is Reason.NOTHING_TO_COMPILE:
        detail = f"{len(outcome.rejected)} of {counted(outcome.records, 'record')} cannot be used: {rejected[0].name}: {rejected[0].reason}"
        return replace(outcome, state=ClientState.DEGRADED, reason=Reason.BAD_RECORDS, detail=detail)
    return outcome
