"""How many compiler processes there may be now: what the machine grants, what is configured, and what memory has shown to be too much.

Explicit numbers in ``[compile]`` win.  Else the processors and the memory that are granted to the daemon count, less the part that is
left to the jobs that it serves, and both are read again before every start.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.compile import Slots

if TYPE_CHECKING:
    from npgxd.compile import Machine
    from npgxd.config import CompileSection

log = logging.getLogger(__name__)

MB: Final = 1_000_000
RUNS: Final = 32
"""op_compiler runs at the same time, at most, where no number is configured."""
STARVED_S: Final = 300.0
"""For so long after memory ran out there are half as many processes; then twice as many again, step by step."""


@dataclass(frozen=True, slots=True)
class Busy:
    """What runs: op_compiler runs, their processes, and how many of these are background work's."""

    runs: int = 0
    processes: int = 0
    background: int = 0


class Capacity:
    """The slots of one daemon. All times are monotonic seconds, passed in."""

    def __init__(self, settings: CompileSection, machine: Machine) -> None:
        self._settings = settings
        self._machine = machine
        self._ceiling: int | None = None
        self._ceiling_until = 0.0
        self._why = ""
        self.total = 1
        """Processes that there may be, as of the last look."""

    @property
    def runs(self) -> int:
        """op_compiler runs that there may be at the same time."""
        return self._settings.workers or min(self.total, RUNS)

    def slots(self, busy: Busy, memory_bytes: int, now: float) -> Slots:
        """What may be started now, when one process is taken to need ``memory_bytes``."""
        self.total = self._bounded(self._granted(busy, memory_bytes), now)
        return Slots(
            total=self.total,
            free=max(0, self.total - busy.processes),
            runs=max(0, self.runs - busy.runs),
            background=busy.background,
        )

    def starved(self, processes: int, now: float) -> None:
        """A run of so many processes ran out of memory: fewer are started for a while."""
        before = self.total if self._ceiling is None else self._ceiling
        self._ceiling = max(1, min(before, max(processes, 1)) // 2)
        self._ceiling_until = now + STARVED_S
        log.warning("memory ran out: at most %d compiler processes for %.0f s", self._ceiling, STARVED_S)

    def describe(self, now: float) -> dict[str, object]:
        """For the status document. ``starved``: how many processes there are while memory that ran out is remembered, and how long yet."""
        starved = None
        if self._ceiling is not None and now < self._ceiling_until:
            starved = {"processes": self._ceiling, "for_s": round(self._ceiling_until - now, 3)}
        return {"limit": self.runs, "processes": self.total, "bound_by": self._why, "starved": starved}

    def _granted(self, busy: Busy, memory_bytes: int) -> int:
        if self._settings.jobs:
            self._why = "[compile] jobs"
            return self._settings.jobs
        grant = self._machine.grant()
        processors = max(1, math.ceil(grant.processors * self._settings.cpu_share))
        each = self._settings.process_mb * MB or max(memory_bytes, MB)
        # What runs has its memory already, and the grant tells what is left beside it.
        memory = max(1, busy.processes + int(grant.memory * self._settings.memory_share / each))
        self._why = grant.why[0] if processors <= memory else grant.why[1]
        return min(processors, memory)

    def _bounded(self, granted: int, now: float) -> int:
        while self._ceiling is not None and now >= self._ceiling_until:
            self._ceiling *= 2
            self._ceiling_until += STARVED_S
            if self._ceiling >= granted:
                self._ceiling = None
        if self._ceiling is None or granted <= self._ceiling:
            return granted
        self._why = "memory that ran out a while ago"
        return self._ceiling
