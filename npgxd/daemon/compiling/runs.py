"""One run of op_compiler as the dispatcher knows it, and in which of its stages it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npgxd.compile import Job
    from npgxd.daemon.compiling.publishing import Result
    from npgxd.daemon.demand.flights import Need


class Stage(StrEnum):
    """What a run is at; the words are those of the status and explain documents."""

    COMPILING = "compiling"
    """op_compiler runs."""
    INSTALLING = "installing"
    """It has ended: what it made is taken out of its package and verified."""
    PUBLISHING = "publishing"
    """What it made goes into the store, which takes as long as the disk does."""


@dataclass(slots=True)
class Running:
    """A job and what it compiles."""

    job: Job
    needs: dict[str, Need]
    started_at: float
    background: bool
    done: int = 0
    current: tuple[str, ...] = ()
    ending: bool = False
    """op_compiler has ended: its processes are free."""
    result: Result | None = None
    """What came out, as long as it is being published."""
    broken: bool = False
    """We failed at what it told."""

    @property
    def stage(self) -> Stage:
        """How far it is."""
        if self.result is not None:
            return Stage.PUBLISHING
        return Stage.INSTALLING if self.ending else Stage.COMPILING

    def describe(self, now: float) -> dict[str, object]:
        """Its part of the status document."""
        spec = self.job.spec
        return {
            "job": spec.job_id,
            "pid": self.job.pid,
            "stage": str(self.stage),
            "keys": len(self.needs),
            "done": self.done,
            "left": len(self.needs) if self.result is None else self.result.remaining,
            "current": list(self.current),
            "processes": spec.jobs,
            "background": self.background,
            "elapsed_s": round(now - self.started_at, 3),
            "deadline_s": spec.deadline_s,
        }
