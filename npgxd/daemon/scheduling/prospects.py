"""What runs and when it is expected to end: the node's part of every forecast, and each round's own.

It is told of batches as they begin, go on and end; ``compile.forecast`` does the sums.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.compile.batches import last_end
from npgxd.compile.forecast import Node, Run, Standing, part_done, queued_s, run_left_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.compile import Costs, Terms
    from npgxd.daemon.demand.flights import Flights, Need
    from npgxd.daemon.demand.lines import Waiter


@dataclass(slots=True)
class _Batch:
    """One that runs. Times are monotonic seconds."""

    processes: int
    costs: dict[str, float]
    """key -> what it is expected to take, in the order in which they are compiled."""
    began: float
    start_up_s: float
    ending_s: float
    kernels_s: float = 0.0
    begun: float | None = None
    """When its first kernel was begun: its start-up is over, and known."""
    ended: float | None = None
    """When its compiler ended: its processes are free."""
    done: int = 0
    part: float = 0.0
    """How much of its work that is."""

    def reckon(self) -> None:
        """What it takes, and how far it is, by its costs."""
        self.kernels_s = last_end(list(self.costs.values()), self.processes)
        self.advance(self.done)

    def advance(self, done: int) -> None:
        """It has compiled so many of its kernels."""
        self.done = done
        self.part = part_done(list(self.costs.values()), self.processes, done)

    @property
    def compiler_s(self) -> float:
        """What its compiler takes in all."""
        return self.start_up_s + self.kernels_s

    def left_s(self, now: float) -> float | None:
        """Until its keys have an outcome; None if it is late and does not say how far it is."""
        if self.ended is not None:
            return max(0.0, self.ending_s - (now - self.ended))
        return run_left_s(Standing(self.compiler_s + self.ending_s, now - self.began, self.start_up_s, self.part))

    def holds_s(self, now: float) -> float:
        """How long it keeps its slots; what is late without a word is taken to be so for as long again."""
        left = self.left_s(now)
        return now - self.began - self.compiler_s if left is None else max(0.0, left - self.ending_s)


class Prospects:
    """Forecasts of one daemon; ``toolchain`` names the CANN whose start-up counts."""

    def __init__(self, flights: Flights, costs: Costs, batch_s: float) -> None:
        self._flights = flights
        self._costs = costs
        self.batch_s = batch_s
        self._batches: dict[str, _Batch] = {}
        self.toolchain = ""
        self.slots = 1
        self.runs = 1

    def began(self, job: str, keys: Iterable[str], processes: int, terms: Terms, now: float) -> None:
        """A batch of these keys, which are in flight, was started; they are compiled in this order."""
        costs = {key: flight.cost_s for key in keys if (flight := self._flights.get(key)) is not None}
        batch = self._batches[job] = _Batch(processes, costs, now, terms.start_up_s, self._costs.ending_s(self.toolchain))
        batch.reckon()

    def progressed(self, job: str, done: int, begun: int, now: float) -> None:
        """It has compiled so many of its kernels, and begun so many."""
        batch = self._batches.get(job)
        if batch is None:
            return
        batch.advance(done)
        if begun and batch.begun is None:
            batch.begun, batch.start_up_s = now, now - batch.began

    def ending(self, job: str, now: float) -> None:
        """Its compiler has ended. Where nothing is known of costs, what it took is supposed of the next ones, until its result tells."""
        batch = self._batches.get(job)
        if batch is None:
            return
        batch.ended = now
        if not self._costs.known and batch.done and batch.begun is not None:
            worked = (now - batch.begun) * min(batch.processes, len(batch.costs))
            self._costs.suppose(worked / batch.done, batch.start_up_s)
            self.reprice()

    def reprice(self) -> None:
        """Costs were learned: what waits and what runs is estimated anew."""
        self._flights.reprice()
        for batch in self._batches.values():
            for key in batch.costs:
                if (flight := self._flights.get(key)) is not None:
                    batch.costs[key] = flight.cost_s
            batch.reckon()
            batch.ending_s = self._costs.ending_s(self.toolchain)
            if batch.begun is None:
                batch.start_up_s = self._costs.start_up_s(self.toolchain)

    def expected_s(self, job: str) -> float:
        """How long its compiler is expected to run in all, by what is known now; 0 if it is over."""
        batch = self._batches.get(job)
        return 0.0 if batch is None else batch.compiler_s

    def running(self, now: float) -> tuple[Run, ...]:
        """What holds slots, and for how long."""
        return tuple(Run(batch.processes, batch.holds_s(now)) for batch in self._batches.values() if batch.ended is None)

    def ended(self, job: str) -> None:
        """It is over."""
        self._batches.pop(job, None)

    def finished(self, keys: Iterable[str]) -> int:
        """How many of these keys, which have no outcome yet, their compilers have finished by their own word.

        A batch is published as a whole, so this is how far its run is; an estimate where these are not all of its keys.
        """
        jobs = Counter(flight.job for flight in map(self._flights.get, keys) if flight is not None and flight.job is not None)
        batches = ((self._batches.get(job), keys_of) for job, keys_of in jobs.items())
        return sum(keys_of * batch.done // len(batch.costs) for batch, keys_of in batches if batch is not None and batch.costs)

    def eta(self, waiter: Waiter, needs: Iterable[Need], now: float) -> float | None:
        """Seconds until all of these have an outcome; None: nothing was compiled yet, or a run is late and does not say how far it is."""
        if not self._costs.known:
            return None
        jobs: set[str] = set()
        waiting_s: list[float] = []
        for need in needs:
            flight = self._flights.get(need.key)
            if flight is None or flight.job is None:
                waiting_s.append(self._flights.cost_of(need))
            else:
                jobs.add(flight.job)
        ends = [0.0]
        for job in jobs:
            if (left := self._left(job, now)) is None:
                return None
            ends.append(left)
        if waiting_s:
            ends.append(self._queued(waiter, waiting_s, now))
        return max(ends)

    def _left(self, job: str, now: float) -> float | None:
        batch = self._batches.get(job)
        return None if batch is None else batch.left_s(now)

    def _queued(self, waiter: Waiter, waiting_s: list[float], now: float) -> float:
        own = self._flights.lines.of(waiter)
        others = [line for line in self._flights.lines if line is not own and line.background <= waiter.background]
        start_up, ending = self._costs.start_up_s(self.toolchain), self._costs.ending_s(self.toolchain)
        node = Node(self.slots, self.runs, start_up, ending, self.batch_s, self.running(now))
        own_s = max(sum(waiting_s), own.cost_s if own is not None else 0.0)
        return queued_s(own_s, max(waiting_s), [line.cost_s for line in others], node)
