"""What compiling is expected to take, from what it took: kernels by op type and size, op_compiler's start-up and end, its memory.

Pure: the numbers come in as rows and leave as rows, and the catalog keeps them.  Promise: one wild measurement moves an estimate by a
bounded factor, what changes for good is followed, and what was never seen has a prior.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

KERNEL_S: Final = 1.0
"""Seconds that a kernel is taken to cost as long as none was compiled here."""
START_UP_S: Final = 5.0
"""The same for the time from op_compiler's start to its first kernel."""
ENDING_S: Final = 0.5
"""The same for the time from op_compiler's end to the job's: installing, verifying and staging what it made."""
MEMORY_BYTES: Final = 1_500_000_000
"""The same for the memory of one compiler process."""
WEIGHT: Final = 0.2
"""What the newest measurement weighs at least."""
WILD: Final = 3.0
"""A measurement counts as at most so many times the estimate, and as at least the part."""
_OCTAVES: Final = 3
_SHARP: Final = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A running mean of ``n`` measurements; ``name`` says of what."""

    name: str
    mean: float
    n: int

    def with_seen(self, value: float) -> Estimate:
        """The estimate after one more measurement."""
        if self.n == 0:
            return Estimate(self.name, value, 1)
        tamed = min(max(value, self.mean / WILD), self.mean * WILD) if self.mean > 0 else value
        weight = max(1.0 / (self.n + 1), WEIGHT)
        return Estimate(self.name, self.mean + (tamed - self.mean) * weight, self.n + 1)


@dataclass(frozen=True, slots=True)
class KernelSeen:
    """One kernel was compiled: ``size`` as :func:`size_of` gives it, ``seconds`` of one compiler process."""

    op_type: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One op_compiler run; what could not be measured is None. Seconds and bytes."""

    start_up_s: float | None = None
    ending_s: float | None = None
    peak_bytes: int | None = None


class Costs:
    """All estimates of one node. ``toolchain`` names the CANN whose runs are meant: start-up and memory differ between them."""

    def __init__(self, rows: Iterable[Estimate] = ()) -> None:
        self._known = {row.name: row for row in rows}
        self._typical: float | None = None
        self._kernel_s, self._start_up_s = KERNEL_S, START_UP_S

    @property
    def known(self) -> bool:
        """Whether any kernel was ever compiled here."""
        return any(name.startswith("op/") for name in self._known)

    def kernel_s(self, op_type: str, size: int) -> float:
        """Seconds that one kernel takes on one process: as kernels of its op type and size did, else of its type, else of any."""
        sized = self._known.get(f"op/{op_type}/{size}")
        if sized is not None and sized.n >= _SHARP:
            return sized.mean
        kind = self._known.get(f"op/{op_type}")
        return kind.mean if kind is not None else self._any()

    def start_up_s(self, toolchain: str) -> float:
        """Seconds from op_compiler's start to its first kernel."""
        return self._mean(f"start-up/{toolchain}", self._start_up_s)

    def ending_s(self, toolchain: str) -> float:
        """Seconds from op_compiler's end until its kernels can be published."""
        return self._mean(f"ending/{toolchain}", ENDING_S)

    def memory_bytes(self, toolchain: str) -> int:
        """The most that one process of a run takes of memory."""
        return int(self._mean(f"memory/{toolchain}", MEMORY_BYTES))

    def suppose(self, kernel_s: float, start_up_s: float) -> None:
        """What the first run seems to have taken, for each kernel and to start, counts in place of the priors until its result tells."""
        self._kernel_s, self._start_up_s, self._typical = kernel_s, start_up_s, None

    def learn(self, kernels: Iterable[KernelSeen], toolchain: str = "", run: RunSeen | None = None) -> list[Estimate]:
        """Let measurements flow in; the estimates that have changed, to be kept."""
        changed: dict[str, Estimate] = {}

        def see(name: str, value: float) -> None:
            before = self._known.get(name, Estimate(name, 0.0, 0))
            changed[name] = self._known[name] = before.with_seen(value)

        for kernel in kernels:
            see(f"op/{kernel.op_type}", kernel.seconds)
            see(f"op/{kernel.op_type}/{kernel.size}", kernel.seconds)
        if run is not None:
            for what, value in (("start-up", run.start_up_s), ("ending", run.ending_s), ("memory", run.peak_bytes)):
                if value is not None:
                    see(f"{what}/{toolchain}", value)
        self._typical = None
        return list(changed.values())

    def _mean(self, name: str, prior: float) -> float:
        known = self._known.get(name)
        return prior if known is None else known.mean

    def _any(self) -> float:
        """What a kernel costs of which nothing is known: the median over op types, which one slow operator does not move."""
        if self._typical is None:
            kinds = [row.mean for name, row in self._known.items() if name.startswith("op/") and name.count("/") == 1]
            self._typical = median(kinds) if kinds else self._kernel_s
        return self._typical


@lru_cache(maxsize=4096)
def size_of(canonical: bytes) -> int:
    """A record's size class: each class has eight times the elements of the one below. 0 where no shape can be read."""
    try:
        record: dict[str, Any] = json.loads(canonical)
        elements = sum(_elements(tensor) for side in ("inputs", "outputs") for tensor in record.get(side) or ())
    except (ValueError, TypeError, AttributeError):
        return 0
    return elements.bit_length() // _OCTAVES


def _elements(tensor: Any) -> int:
    if isinstance(tensor, list):
        return sum(_elements(part) for part in tensor)
    if not isinstance(tensor, dict):
        return 0
    product = 1
    for size in tensor.get("shape") or ():
        product *= max(int(size), 1)
    return product
