"""Batches: what goes into one op_compiler run, and how long it takes on so many processes. Pure.

Promise: no batch holds two records that a kernel's own description cannot tell apart, and a longer kernel is never listed after a
shorter one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One missing key. ``trace`` is what a compiled kernel's json can tell of its record; ``cost_s`` an estimate in seconds.

    Items of different ``company`` never share a batch, nor do those of different ``part``s (each part of a batch that failed is tried
    without the others).  ``most`` bounds the processes of its batch; 0: nothing does.
    """

    key: str
    op_type: str
    trace: str
    cost_s: float
    company: Hashable = ()
    part: str = ""
    most: int = 0
    since: float = 0.0
    """When it was first asked for (monotonic seconds)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The keys for one op_compiler run, longest first."""

    items: tuple[PlanItem, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which the compiler is to see them."""
        return tuple(item.key for item in self.items)

    def estimate_s(self, processes: int) -> float:
        """Seconds that the kernels take on so many compiler processes; op_compiler's own start-up is not in it."""
        return makespan(self.items, processes)

    def useful(self, processes: int) -> int:
        """The least number of processes, of at most ``processes``, with which it ends as early as with all of them."""
        most = max(min(processes, len(self.items)), 1)
        end = makespan(self.items, most) * _AS_EARLY
        total = sum(item.cost_s for item in self.items)
        low = max(1, min(most, int(total / end))) if end > 0 else 1
        return next((count for count in range(low, most) if makespan(self.items, count) <= end), most)


_AS_EARLY = 1.001


def longest_first(items: Iterable[PlanItem]) -> list[PlanItem]:
    """Each key once, the costly ones first; equal costs in the order of their keys, so that a plan depends on nothing else."""
    return sorted({item.key: item for item in items}.values(), key=lambda item: (-item.cost_s, item.key))


def makespan(items: Sequence[PlanItem], processes: int) -> float:
    """Seconds until the last of ``items`` (longest first) has ended, when each free process takes the next one."""
    return last_end([item.cost_s for item in items], processes)


def last_end(costs: Sequence[float], processes: int) -> float:
    """The same for kernels with these costs, in whatever order."""
    count = max(processes, 1)
    if count >= len(costs):
        return max(costs, default=0.0)
    loads = [0.0] * count
    for cost in costs:
        heapq.heapreplace(loads, loads[0] + cost)
    return max(loads)


def fill(items: Sequence[PlanItem], processes: int, bound_s: float) -> tuple[Batch, float]:
    """As many of ``items`` (longest first) as end within ``bound_s`` on ``processes``, and the cost of those left out.

    The longest is taken in any case, and others while it lasts.  What does not fit any more gives way to shorter ones that do.  Of
    records with one trace the first is taken, and the others count neither as taken nor as left out: they need another batch.
    """
    bound_s = max(bound_s, items[0].cost_s if items else 0.0)
    loads = [0.0] * max(processes, 1)
    traces: set[str] = set()
    chosen: list[PlanItem] = []
    left = 0.0
    for item in items:
        if item.trace in traces:
            continue
        if loads[0] + item.cost_s > bound_s:
            left += item.cost_s
            continue
        heapq.heapreplace(loads, loads[0] + item.cost_s)
        traces.add(item.trace)
        chosen.append(item)
    return Batch(tuple(chosen)), left


def apart(items: Iterable[PlanItem]) -> list[Batch]:
    """Every item in a batch, as few batches as their traces allow."""
    batches: list[list[PlanItem]] = []
    traces: list[set[str]] = []
    for item in longest_first(items):
        place = next((at for at, taken in enumerate(traces) if item.trace not in taken), len(batches))
        if place == len(batches):
            batches.append([])
            traces.append(set())
        batches[place].append(item)
        traces[place].add(item.trace)
    return [Batch(tuple(batch)) for batch in batches]
