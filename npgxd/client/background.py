"""Following a round without waiting for it, and bringing the ranks of a job to one call at which they change to its kernels.

A thread of its own does all the talking, so a daemon that is slow or gone costs the calls of the graph nothing.  It is a daemon thread: no
exit waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.client.outcome import Outcome
from npgxd.client.rank import printable
from npgxd.errors import DaemonUnavailable, NpgxError, ProtocolError, RequestRefused
from npgxd.wire import limits
from npgxd.wire.states import ClientState, Reason
from npgxd.wire.switch_messages import Switch, Switching, SwitchStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.client.changing import Change
    from npgxd.client.client import Client
    from npgxd.client.session import Session

log = logging.getLogger("npgxd")

ASK_S: Final = 0.5
"""How often the daemon is asked while other ranks are not ready."""
HURRY_S: Final = 0.1
"""The same while a call is proposed."""
AWAITED_S: Final = 0.02
"""The same while this rank has come to that call, and waits."""
NOT_AGREED: Final = "the graph keeps its dynamic kernels in this process; the next start takes the ready ones"


class Place(NamedTuple):
    """Where this process stands among those that a graph exchanges data with.

    ``alone``: there is nobody to agree with.  ``partners`` are ranks of the job, itself among them; none: the graph has no collectives.
    ``problem`` says why the ranks cannot agree, where that is known from the start.
    """

    rank: int | None = None
    partners: tuple[int, ...] = ()
    alone: bool = False
    problem: str = ""


class Background:
    """One round, from submission until the graph has changed, or will not."""

    def __init__(
        self,
        client: Client,
        session: Session,
        settle: Callable[[], Outcome],
        graph: str,
        change: Change,
        place: Place,
        on_ready: Callable[[Outcome], None],
        on_end: Callable[[Outcome], Outcome],
    ) -> None:
        self._client = client
        self._session = session
        self._settle = settle
        self._graph = printable(graph, limits.MAX_NAME)
        self._change = change
        self._place = place
        self._on_ready = on_ready
        self._on_end = on_end
        self._member = os.urandom(16).hex()
        self._turn = 0
        self._paced = (time.monotonic(), change.calls.begun, 0.0)

    def start(self) -> None:
        """Begin, in a thread of its own; where none can be had, it is over before it has begun."""
        try:
            threading.Thread(target=self._run, name=f"npgxd {self._graph}", daemon=True).start()
        except RuntimeError as error:
            problem = f"no thread can be had to follow its round: {error}"
            self._change.withdraw(problem)
            self._on_end(Outcome(ClientState.DEGRADED, Reason.NOT_AGREED, problem, NOT_AGREED))

    def _run(self) -> None:
        try:
            outcome = self._settle()
            if self._is_to_change(outcome):
                outcome = self._until_changed(outcome)
            else:
                self._change.withdraw(outcome.detail)
            outcome = self._on_end(outcome)
            self._client.report(outcome.state, outcome.reason, detail=outcome.detail, graph=self._graph)
        except Exception:  # nobody sees how a thread ends
            log.exception("npgxd: graph %s cannot be followed in the background any more; it keeps its kernels", self._graph)
            self._change.withdraw("the client failed")

    def _is_to_change(self, outcome: Outcome) -> bool:
        """There is something to load, or others have something to load and will not change without this rank."""
        if outcome.view is not None or outcome.root is not None:
            return True
        return bool(self._place.partners) and bool(outcome.round) and outcome.state is not ClientState.DISABLED

    def _until_changed(self, outcome: Outcome) -> Outcome:
        self._on_ready(outcome)
        detail = "its kernels are ready, and taken into use at a later call"
        self._client.report(ClientState.QUEUED, Reason.CHANGE_PENDING, detail=detail, graph=self._graph)
        if self._place.alone:
            self._change.make_alone()
        elif self._place.problem:
            self._change.withdraw(self._place.problem)
        elif (problem := self._agree()) and self._change.exchanges:
            self._change.withdraw(problem)
        elif problem:
            self._change.make_alone()  # nobody depends on it
        while not self._change.wait():
            pass
        if not self._place.alone:
            self._say(over=True)
        if self._change.made_at is not None:
            return outcome
        reason = self._change.reason
        return replace(outcome, state=ClientState.DEGRADED, reason=Reason.NOT_AGREED, detail=reason, hint=NOT_AGREED)

    # ---- the agreement -----------------------------------------------------------------------------------------------

    def _agree(self) -> str:
        """Do what the daemon says until it is decided; or why there will be no agreement."""
        lost_at: float | None = None
        while not (self._change.is_over or self._change.committed):
            said = self._say()
            now = time.monotonic()
            if isinstance(said, Switching):
                lost_at = None
                if said.step is SwitchStep.NEVER:
                    return said.reason or "the daemon says so"
                self._follow(said)
            elif isinstance(said, RequestRefused):
                return said.message
            else:
                lost_at = now if lost_at is None else lost_at
                if now - lost_at >= self._session.patience.reconnect_s:
                    return said.message
            self._change.wait(self._pause())
        return ""

    def _follow(self, told: Switching) -> None:
        if told.ballot is not None and told.step is SwitchStep.ARM:
            self._change.arm(told.ballot, told.at)
        elif told.ballot is not None and told.step is SwitchStep.COMMIT:
            self._change.commit(told.ballot)

    def _pause(self) -> float:
        if self._change.is_awaited:
            return AWAITED_S
        return HURRY_S if self._change.ballot is not None else ASK_S

    def _say(self, *, over: bool = False) -> Switching | NpgxError:
        """Where this rank stands; the daemon's answer, or why there is none."""
        self._turn += 1
        change = self._change
        standing = Switch(
            member=self._member,
            turn=self._turn,
            graph=self._graph,
            call=change.calls.begun,
            calls_per_s=self._pace(),
            rank=self._place.rank,
            partners=self._place.partners,
            ballot=change.ballot,
            at=change.at,
            committed=change.committed,
            over=over,
        )
        try:
            told = self._session.request(standing).message
        except (DaemonUnavailable, ProtocolError, RequestRefused) as error:
            log.debug("npgxd: graph %s: %s", self._graph, error)
            return error
        return told if isinstance(told, Switching) else ProtocolError(f"the daemon answers switch with {told.op!r}")

    def _pace(self) -> float:
        """Calls a second: the most that was seen between two looks."""
        now, begun = time.monotonic(), self._change.calls.begun
        then, before, pace = self._paced
        if now - then >= HURRY_S:
            pace = max(pace, (begun - before) / (now - then))
            self._paced = (now, begun, pace)
        return pace
