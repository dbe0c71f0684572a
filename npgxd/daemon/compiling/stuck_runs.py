"""Runs of op_compiler that hang: seen by what they no longer tell, and ended early where somebody waits for what they hold.

A run gives a sign whenever a kernel is begun or finished.  It is taken to be stuck after ``[compile] stall_s`` without one, if that is
also three times what the longest of its kernels is expected to take; where one of them ran out of time before, it has twice as long each
time, since what nobody has measured may just be slow.  What its worker does then is ``compile.run``'s.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.compile import Job, JobProgress
    from npgxd.daemon.demand.flights import Flights

log = logging.getLogger(__name__)

STALL_FACTOR: Final = 3.0
"""No sign for so many times what the longest kernel is expected to take is longer than can be expected."""
LATE_S: Final = 5.0
"""Who looks so much later than they were to has been away: what runs told meanwhile may not have been read yet."""
LOOK_S: Final = 1.0
"""Nobody waits for a stuck run: that is looked at again after this."""


@dataclass(slots=True)
class _Watched:
    """One run. Times are monotonic seconds."""

    job: Job
    keys: tuple[str, ...]
    patience_s: float
    sign_at: float
    look_at: float
    sign: tuple[object, ...] = ()


class StuckRuns:
    """The runs of one daemon; ``stall_s``: how long any of them may be silent, 0: for ever."""

    def __init__(self, flights: Flights, stall_s: float) -> None:
        self._flights = flights
        self.stall_s = stall_s
        self._watched: dict[str, _Watched] = {}
        self._due = float("inf")

    def began(self, job: Job, keys: Iterable[str], now: float) -> None:
        """A run was started with these keys."""
        if not self.stall_s:
            return
        chosen = tuple(keys)
        flights = [flight for flight in map(self._flights.get, chosen) if flight is not None]
        longest = max((flight.cost_s for flight in flights), default=0.0)
        late = max((sum(tried.outcome is KeyOutcome.TIMED_OUT for tried in flight.tries) for flight in flights), default=0)
        patience = max(self.stall_s, STALL_FACTOR * longest) * 2**late
        self._watched[job.spec.job_id] = _Watched(job, chosen, patience, now, now + patience)

    def told(self, job: str, event: JobProgress, now: float) -> None:
        """How far a run is; that is a sign of life if it is not what it told before."""
        watched, sign = self._watched.get(job), (event.done, event.begun, event.current)
        if watched is not None and sign != watched.sign:
            watched.sign, watched.sign_at, watched.look_at = sign, now, now + watched.patience_s

    def ending(self, job: str, now: float) -> None:
        """Its op_compiler has ended, and what it made is being installed: nothing is told of that."""
        if (watched := self._watched.get(job)) is not None:
            watched.sign_at, watched.look_at = now, now + watched.patience_s

    def ended(self, job: str) -> None:
        """It is over."""
        self._watched.pop(job, None)

    def silent_s(self, job: str, now: float) -> float:
        """For how long a run has given no sign; 0: it has ended, or is not watched."""
        watched = self._watched.get(job)
        return 0.0 if watched is None else now - watched.sign_at

    def excuse(self, now: float) -> None:
        """No run can be expected to have given a sign until now: the daemon was away, or the disk does not answer."""
        for watched in self._watched.values():
            watched.sign_at, watched.look_at = now, now + watched.patience_s

    def tick(self, now: float) -> float:
        """Have ended what hangs in runs that somebody waits for; when to look again (``inf``: nothing runs)."""
        if now > self._due + LATE_S:
            self.excuse(now)
        for name, watched in self._watched.items():
            if now < watched.look_at:
                continue
            if not self._is_awaited(watched):
                watched.look_at = now + LOOK_S
                continue
            watched.look_at = now + watched.patience_s
            why = f"it gave no sign of life for {now - watched.sign_at:.0f} s"
            log.warning("job %s is stuck: %s; what hangs in it is ended", name, why)
            watched.job.unstick(why)
        self._due = min((watched.look_at for watched in self._watched.values()), default=float("inf"))
        return self._due

    def _is_awaited(self, watched: _Watched) -> bool:
        """Whether somebody waits for its slots, or a process for its kernels."""
        if self._flights.waiting:
            return True
        flights = (flight for flight in map(self._flights.get, watched.keys) if flight is not None)
        return any(not waiter.background for flight in flights for waiter in flight.waiters.values())
