"""The cost model: what a compile takes, and the least that a set of records can take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .record import Record

CUBE_WEIGHT = 2.0
_CUBE_WORDS = ("MatMul", "Gemm", "Conv", "Attention", "GroupedMatmul")
_REDUCING_WORDS = ("Reduce", "Softmax", "Norm", "Loss", "Grad")


@dataclass(frozen=True)
class Costs:
    """Seconds. Start-up is paid once a run, the rest once a kernel; ``scale`` multiplies both, and 0 makes tests free.

    ``per_op_type`` gives the seconds of single op types, before scaling. ``object_bytes`` is the size of a kernel's ``.o``.
    """

    startup_s: float = 0.0
    per_op_s: float = 0.0
    scale: float = 1.0
    object_bytes: int = 3072
    per_op_type: dict[str, float] = field(default_factory=dict)

    def startup(self) -> float:
        """Seconds from the start of op_compiler to its first op."""
        return self.startup_s * self.scale

    def seconds(self, record: Record) -> float:
        """Seconds for one kernel: cube ops cost twice a vector op, and size adds a little (a tenth for each 1024-fold)."""
        own = self.per_op_type.get(record.op_type)
        if own is not None:
            return own * self.scale
        weight = 1.0
        if any(word in record.op_type for word in _CUBE_WORDS):
            weight = CUBE_WEIGHT
        elif any(word in record.op_type for word in _REDUCING_WORDS):
            weight = 1.3
        return self.per_op_s * weight * (1.0 + 0.01 * math.log2(record.elements())) * self.scale

    def ideal(self, records: Iterable[Record], slots: int) -> float:
        """The least wall seconds for compiling ``records`` once on ``slots`` workers: start-up + max(sum / slots, longest)."""
        costs = [self.seconds(record) for record in records]
        if not costs:
            return 0.0
        return self.startup() + max(sum(costs) / slots, *costs)

    def to_json(self) -> dict[str, object]:
        """As ``sim.json`` holds it."""
        return {
            "startup_s": self.startup_s,
            "per_op_s": self.per_op_s,
            "scale": self.scale,
            "object_bytes": self.object_bytes,
            "per_op_type": dict(self.per_op_type),
        }


FREE = Costs()
"""Nothing takes time: for tests."""
