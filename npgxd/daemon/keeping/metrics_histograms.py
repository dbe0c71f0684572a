"""Histograms that survive restarts: each bucket is one counter of the catalog, and a sum in milliseconds is another."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

INF: Final = "+Inf"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Seconds, in buckets up to and with each bound. ``name`` begins the names of its counters."""

    name: str
    bounds: tuple[float, ...]

    def counted(self, seconds: float) -> dict[str, int]:
        """What one observation adds to the counters."""
        seconds = max(0.0, seconds)
        return {f"{self.name}_le_{self._bucket(seconds)}": 1, f"{self.name}_ms": round(seconds * 1000)}

    def buckets(self, counters: Mapping[str, int]) -> list[tuple[str, int]]:
        """(bound, observations up to it), the last of which is ``+Inf`` and counts all."""
        names = [*(f"{bound:g}" for bound in self.bounds), INF]
        return list(zip(names, accumulate(counters.get(f"{self.name}_le_{name}", 0) for name in names), strict=True))

    def sum_s(self, counters: Mapping[str, int]) -> float:
        """Seconds of all observations."""
        return counters.get(f"{self.name}_ms", 0) / 1000

    def _bucket(self, seconds: float) -> str:
        place = bisect_left(self.bounds, seconds)
        return f"{self.bounds[place]:g}" if place < len(self.bounds) else INF


ROUND_WAIT: Final = Histogram("round_wait", (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800))
"""From a round's acceptance to its settlement."""
COMPILE_RUN: Final = Histogram("compile_run", (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600))
"""Of one op_compiler run, start-up and installing included, however it ended."""
KERNEL_COMPILE: Final = Histogram("kernel_compile", (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160))
"""Of one kernel, as its compiler process took it."""
