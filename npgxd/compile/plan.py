"""Planning: which keys go into which op_compiler run, and in which order. Pure; nothing is read or measured here.

Promise: every key is in exactly one batch, no batch holds two records that a kernel's own description cannot tell apart, and a
longer kernel is never listed after a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One missing key. ``trace`` is what a compiled kernel's json can tell of its record; ``cost_s`` an estimate in seconds."""

    key: str
    op_type: str
    trace: str
    cost_s: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The keys for one op_compiler run, longest first."""

    items: tuple[PlanItem, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which the compiler is to see them."""
        return tuple(item.key for item in self.items)

    def estimate_s(self, jobs: int) -> float:
        """Seconds that the kernels take at least on ``jobs`` compiler processes; op_compiler's own start-up is not in it."""
        return _estimate(sum(item.cost_s for item in self.items), max((item.cost_s for item in self.items), default=0.0), jobs)


def plan(items: Iterable[PlanItem], *, jobs: int = 1, max_batch_s: float | None = None) -> list[Batch]:
    """Put every key into a batch: one batch unless something speaks against it.

    Two records with one trace differ only in what a kernel's json does not show (values of ``const_data``); inside one package
    nobody could say which kernel is whose, so they go into different batches.  ``max_batch_s`` bounds a batch's estimate on
    ``jobs`` compiler processes, as far as single kernels allow it.  A key that is given twice counts once.
    """
    batches: list[_Open] = []
    unique = {item.key: item for item in items}
    for item in sorted(unique.values(), key=lambda item: (-item.cost_s, item.key)):
        place = next((batch for batch in batches if batch.takes(item, jobs, max_batch_s)), None)
        if place is None:
            place = _Open()
            batches.append(place)
        place.add(item)
    return [Batch(tuple(batch.items)) for batch in batches]


class _Open:
    """A batch that is still being filled."""

    __slots__ = ("items", "longest", "total", "traces")

    def __init__(self) -> None:
        self.items: list[PlanItem] = []
        self.traces: set[str] = set()
        self.total = 0.0
        self.longest = 0.0

    def takes(self, item: PlanItem, jobs: int, max_batch_s: float | None) -> bool:
        if item.trace in self.traces:
            return False
        if max_batch_s is None:
            return True
        return _estimate(self.total + item.cost_s, max(self.longest, item.cost_s), jobs) <= max_batch_s

    def add(self, item: PlanItem) -> None:
        self.items.append(item)
        self.traces.add(item.trace)
        self.total += item.cost_s
        self.longest = max(self.longest, item.cost_s)


def _estimate(total: float, longest: float, jobs: int) -> float:
    return max(total / max(jobs, 1), longest)
