"""The jobs of this daemon's life, and those of earlier lives whose logs are kept: what was run for a kernel, and how that ended."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from npgxd.compile import JobFailed
from npgxd.compile.summary import Summary, kept

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from npgxd.compile import JobResult

log = logging.getLogger(__name__)

MAX_JOBS: Final = 200
MAX_KEYS: Final = 20_000
"""Of all jobs that are remembered together; beyond either, the oldest job is forgotten."""


class JobHistory:
    """Summaries of jobs by id, in the order in which they began."""

    def __init__(self, jobs_dir: Path) -> None:
        self._jobs_dir = jobs_dir
        self._jobs: OrderedDict[str, Summary] = OrderedDict()
        self._keys = 0
        self._earlier: list[Summary] | None = None
        """Of jobs of earlier lives; None: nobody has asked yet."""

    def begun(self, job: str, uid: int, keys: Iterable[str], at: float) -> None:
        """A worker was started for these keys. ``at``: seconds since the epoch."""
        summary = self._jobs[job] = Summary(job, uid, tuple(keys), at)
        self._keys += len(summary.keys)
        while len(self._jobs) > 1 and (len(self._jobs) > MAX_JOBS or self._keys > MAX_KEYS):
            _, oldest = self._jobs.popitem(last=False)
            self._keys -= len(oldest.keys)

    def started(self, job: str, argv: tuple[str, ...]) -> None:
        """op_compiler runs, with this command line."""
        if job in self._jobs:
            self._jobs[job] = replace(self._jobs[job], argv=argv)

    def ended(self, job: str, event: JobResult | JobFailed) -> None:
        """The job's last word; where its logs are kept, this is, too."""
        if job not in self._jobs:
            return
        failed = tuple((each.key, str(each.outcome), each.reason) for each in event.failed)
        known = replace(self._jobs[job], wall_s=event.wall_s, failed=failed)
        if isinstance(event, JobFailed):
            known = replace(known, reason=event.reason)
        else:
            known = replace(known, exit_code=event.exit_code, compiled=len(event.kernels), tail=event.log_tail)
        self._jobs[job] = known
        try:
            known.keep(self._jobs_dir)
        except OSError as error:
            log.error("the summary of job %s is not kept: %s", job, error)

    def all(self) -> list[Summary]:
        """Every job that is known of, the newest first."""
        return [*reversed(self._jobs.values()), *self._from_before()]

    def of_key(self, key: str, most: int = 5) -> list[Summary]:
        """The jobs that had this key, the newest first."""
        found = (summary for summary in self.all() if key in summary.keys)
        return list(islice(found, most))

    def _from_before(self) -> list[Summary]:
        if self._earlier is None:
            self._earlier = [known for known in islice(kept(self._jobs_dir), MAX_JOBS) if known.job not in self._jobs]
        return [known for known in self._earlier if (self._jobs_dir / known.job).exists()]
