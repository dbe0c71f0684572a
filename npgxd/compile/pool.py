"""The worker pool: at most so many jobs at once, each a process that a poll loop watches without ever waiting for it."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from npgxd.compile.running import SLACK_S, Job
from npgxd.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npgxd.compile.job import Event, JobSpec


class Pool:
    """At most ``limit`` jobs at once."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic, slack_s: float = SLACK_S) -> None:
        self.limit = limit
        self._clock = clock
        self._slack_s = slack_s
        self._jobs: dict[str, Job] = {}

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that have not ended."""
        return tuple(job for job in self._jobs.values() if not job.ended)

    @property
    def free(self) -> int:
        """How many jobs may be started now."""
        return max(0, self.limit - len(self.jobs))

    def start(self, spec: JobSpec) -> Job:
        """Start a worker for ``spec``; CompileError if no slot is free or the process cannot be made."""
        self._jobs = {job.spec.job_id: job for job in self.jobs}
        if not self.free:
            raise CompileError(f"all {self.limit} workers are busy", hint="wait until a job has ended", transient=True)
        job = Job(spec, clock=self._clock, slack_s=self._slack_s)
        self._jobs[spec.job_id] = job
        return job

    def enforce(self, now: float) -> None:
        """The second line: end workers that are past their time, whatever they do. Call it at least once a second."""
        for job in self.jobs:
            job.enforce(now)

    def next_check(self) -> float | None:
        """When ``enforce`` has something to do next, if nothing else happens (monotonic seconds)."""
        return min((job.next_check for job in self.jobs), default=None)

    def stop_all(self, reason: str, *, limit_s: float = 30.0) -> list[tuple[Job, list[Event]]]:
        """Cancel every job and wait, at most ``limit_s`` seconds, for their ends: the last act of a daemon that stops."""
        running = self.jobs
        for job in running:
            job.cancel(reason)
        told: dict[str, list[Event]] = {job.spec.job_id: [] for job in running}
        end = self._clock() + limit_s
        while (open_jobs := self.jobs) and self._clock() < end:
            _wait_for(open_jobs, 100)
            self.enforce(self._clock())
            for job in open_jobs:
                told[job.spec.job_id] += job.receive()
        return [(job, told[job.spec.job_id]) for job in running]


def _wait_for(jobs: Iterable[Job], milliseconds: int) -> None:
    poller = select.poll()
    for job in jobs:
        poller.register(job.fileno(), select.POLLIN)
    poller.poll(milliseconds)
