"""What runs and when it is expected to end: the node's part of every forecast, and each round's own.

It is told of batches as they begin, go on and end; ``compile.forecast`` does the sums.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.compile.forecast import Node, Run, queued_s, run_left_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.compile import Costs, Terms
    from npgxd.daemon.flights import Flights, Need
    from npgxd.daemon.lines import Waiter


@dataclass(slots=True)
class _Batch:
    """One that runs. Times are monotonic seconds."""

    processes: int
    total: int
    began: float
    estimate_s: float
    """Of the whole run, start-up and ending included."""
    start_up_s: float
    done: int = 0


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

    def began(self, job: str, keys: int, processes: int, kernels_s: float, terms: Terms, now: float) -> None:
        """A batch of so many keys was started, whose kernels take ``kernels_s`` by estimate."""
        whole = terms.start_up_s + kernels_s + self._costs.ending_s(self.toolchain)
        self._batches[job] = _Batch(processes, keys, now, whole, terms.start_up_s)

    def progressed(self, job: str, done: int) -> None:
        """It has compiled so many of its kernels."""
        if job in self._batches:
            self._batches[job].done = done

    def ended(self, job: str) -> None:
        """It is over."""
        self._batches.pop(job, None)

    def finished(self, keys: Iterable[str]) -> int:
        """How many of these keys, which have no outcome yet, their compilers have finished by their own word.

        A batch is published as a whole, so this is how far its run is; an estimate where these are not all of its keys.
        """
        jobs = Counter(flight.job for flight in map(self._flights.get, keys) if flight is not None and flight.job is not None)
        batches = ((self._batches.get(job), keys_of) for job, keys_of in jobs.items())
        return sum(keys_of * batch.done // batch.total for batch, keys_of in batches if batch is not None and batch.total)

    def eta(self, waiter: Waiter, needs: Iterable[Need], now: float) -> float | None:
        """Seconds until all of these have an outcome; None: nothing was compiled yet, or a run is late and does not say how far it is."""
        if not self._costs.known:
            return None
        ends = [0.0]
        waiting_s: list[float] = []
        for need in needs:
            flight = self._flights.get(need.key)
            if flight is None or flight.job is None:
                waiting_s.append(self._flights.cost_of(need))
            elif (left := self._left(flight.job, now)) is None:
                return None
            else:
                ends.append(left)
        if waiting_s:
            ends.append(self._queued(waiter, waiting_s, now))
        return max(ends)

    def _left(self, job: str, now: float) -> float | None:
        batch = self._batches.get(job)
        if batch is None:
            return None
        return run_left_s(batch.estimate_s, now - batch.began, batch.start_up_s, batch.done, batch.total)

    def _queued(self, waiter: Waiter, waiting_s: list[float], now: float) -> float:
        own = self._flights.lines.of(waiter)
        others = [line for line in self._flights.lines if line is not own and line.background <= waiter.background]
        running = tuple(Run(batch.processes, self._left(job, now) or 0.0) for job, batch in self._batches.items())
        start_up = self._costs.start_up_s(self.toolchain)
        node = Node(self.slots, self.runs, start_up, self._costs.ending_s(self.toolchain), self.batch_s, running)
        own_s = max(sum(waiting_s), own.cost_s if own is not None else 0.0)
        return queued_s(own_s, max(waiting_s), [line.cost_s for line in others], node)
