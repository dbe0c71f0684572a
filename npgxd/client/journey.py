"""One round from submission to settlement, over dropped events, lost connections and restarted daemons.

Promise: the round keeps its id, so that sending it again is harmless, and the wait ends: with the result, at the caller's
deadline, after silence, or when no daemon has taken it up again in time.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from npgxd.client.connection import DaemonSilent, Reply
from npgxd.errors import DaemonUnavailable, NpgxError, ProtocolError, RequestRefused
from npgxd.wire.codec import Record, pack_records
from npgxd.wire.messages import CompileOptions, Follow, PartTaken, RoundProgress, Submit, Welcome
from npgxd.wire.states import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npgxd.client.session import Session
    from npgxd.wire.form import Event

_FRAMES_A_PART = 4
"""Small parts, so that a large submission does not delay other ranks' look-ups."""
_WATCH_S = 0.2
_PAUSE_S = 0.1


class JourneyEnded(NpgxError):
    """The wait ended before the round was settled; ``reason`` is the word for it."""

    reason: ClassVar[Reason]


class DeadlinePassed(JourneyEnded):
    """The caller's deadline passed; the daemon goes on with the round."""

    code = "DEADLINE"
    reason = Reason.DEADLINE


class Draining(JourneyEnded):
    """The daemon was stopping, and no other one came in time."""

    code = "DRAINING"
    reason = Reason.DAEMON_DRAINING


class Ask(NamedTuple):
    """What a caller asks for: the records of one graph, how to compile them, and for how long to wait."""

    records: Sequence[Record]
    graph: str
    options: CompileOptions
    recompile: bool
    deadline_s: float | None


class Journey:
    """One submission. ``check`` sees each new daemon's welcome before anything is sent to it; what it raises ends the journey."""

    def __init__(
        self,
        session: Session,
        ask: Ask,
        *,
        check: Callable[[Welcome], None],
        on_progress: Callable[[RoundProgress], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session = session
        self._ask = ask
        self._round = os.urandom(16).hex()
        self._frames = pack_records(ask.records)
        self._check = check
        self._on_progress = on_progress
        self._clock, self._sleep = clock, sleep
        self._until = None if ask.deadline_s is None else clock() + ask.deadline_s
        self.latest: RoundProgress | None = None
        """The last that was heard of the round; None until a daemon accepted it."""
        self.welcome: Welcome | None = None
        """The latest daemon's."""

    def settle(self) -> RoundProgress:
        """The settled round.

        Raises:
            DeadlinePassed: the caller's deadline. Draining, DaemonUnavailable, ProtocolError: no daemon took it to its end.
            RequestRefused: the daemon does not want it.
        """
        losses, lost_at, draining = 0, None, False
        while True:
            heard = self.latest
            try:
                return self._attempt()
            except (DaemonUnavailable, ProtocolError, RequestRefused) as error:
                self._past_deadline()
                starting = lost_at is not None and self.latest is heard and self._session.last_welcome() is None
                if not self._passing(error) or (isinstance(error, DaemonSilent) and not starting):
                    raise
                # Where systemd keeps the socket, a daemon that is not up yet is silent, and not absent.
                now = self._clock()
                draining = isinstance(error, RequestRefused) or (draining and self.latest is heard)
                if lost_at is None or self.latest is not heard:
                    lost_at, losses = now, losses + 1
                if now - lost_at >= self._session.patience.reconnect_s or losses > self._session.patience.losses:
                    if draining:
                        raise Draining("the daemon is stopping, and no other one came", hint="start it again") from error
                    raise
                self._sleep(_PAUSE_S)

    def again(self) -> RoundProgress:
        """Submit the settled round once more, for a process whose view the daemon no longer knows."""
        self.latest = None
        return self.settle()

    # ---- one attempt -------------------------------------------------------------------------------------------------

    def _attempt(self) -> RoundProgress:
        self.welcome = self._session.welcome()
        self._check(self.welcome)
        generation = self._session.generation
        told = self._tell(self._submit() if self.latest is None else self._follow())
        if told.result is None:
            told = self._tell(self._follow())
        heard_at = self._clock()
        while told.result is None:
            self._past_deadline()
            event: Event | None = self._session.event(self._round, generation, timeout_s=self._left(_WATCH_S))
            if event is None and self._clock() - heard_at > self._session.patience.remind_s:
                event = self._follow(already_s=self._clock() - heard_at)
            if isinstance(event, RoundProgress):
                told, heard_at = self._tell(event), self._clock()
        return told

    def _submit(self) -> RoundProgress:
        pieces = [self._frames[i : i + _FRAMES_A_PART] for i in range(0, len(self._frames), _FRAMES_A_PART)] or [[]]
        for number, piece in enumerate(pieces):
            part = Submit(
                round=self._round,
                part=number,
                parts=len(pieces),
                graph=self._ask.graph,
                options=self._ask.options,
                recompile=self._ask.recompile,
            )
            reply = self._session.request(part, piece, timeout_s=self._left(self._session.patience.silence_s))
            if not isinstance(reply.message, PartTaken):
                break
        return self._progress(reply)

    def _follow(self, already_s: float = 0.0) -> RoundProgress:
        silence = max(self._session.patience.silence_s - already_s, _WATCH_S)
        try:
            return self._progress(self._session.request(Follow(round=self._round), timeout_s=self._left(silence)))
        except RequestRefused as refused:
            if refused.refusal != "UNKNOWN_ROUND":
                raise
            return self._submit()  # a daemon that lost its state, or one that never took the last part

    def _progress(self, reply: Reply) -> RoundProgress:
        told = reply.message
        if not isinstance(told, RoundProgress) or told.round != self._round:
            raise ProtocolError(f"the daemon answers about round {self._round[:8]} with {told.op!r}")
        return told

    def _tell(self, told: RoundProgress) -> RoundProgress:
        self.latest = told
        if told.result is None:
            self._on_progress(told)
        return told

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def _passing(self, error: NpgxError) -> bool:
        """Whether trying again may help: a daemon that was there and is gone, restarting or stopping."""
        if isinstance(error, RequestRefused) and error.refusal != "DRAINING":
            return False
        return self._session.trusted or self.latest is not None

    def _left(self, most: float) -> float:
        return most if self._until is None else max(0.0, min(most, self._until - self._clock()))

    def _past_deadline(self) -> None:
        if self._until is not None and self._clock() >= self._until:
            done = (
                f"{self.latest.done} of {self.latest.total} kernels were ready" if self.latest else "the daemon had not answered"
            )
            raise DeadlinePassed(
                f"the deadline passed; {done}",
                hint="the daemon goes on compiling; the next start takes what is ready" if self.latest else "see npgxctl status",
            )
