"""What can be told of a job after it has ended: whose it was, what was run, how that ended, and the ends of its logs.

A job that failed leaves its summary and its logs in its directory, until ``prune_jobs`` takes that; so they outlive the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from npgxd.compile.directory import SUMMARY, JobDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_BYTES = 16 * 1024 * 1024
_TAIL_BYTES = 2048
_MAX_LOGS = 8


@dataclass(frozen=True, slots=True)
class Summary:
    """One job. ``began_at`` is in seconds since the epoch; ``exit_code`` is op_compiler's, None if it was not started or ended by us.

    ``failed`` has (key, outcome, reason) for each key without a kernel; ``reason`` says why there is no result at all.
    """

    job: str
    uid: int
    keys: tuple[str, ...]
    began_at: float
    argv: tuple[str, ...] = ()
    wall_s: float = 0.0
    exit_code: int | None = None
    compiled: int = 0
    failed: tuple[tuple[str, str, str], ...] = ()
    reason: str = ""
    tail: str = ""

    def keep(self, jobs_dir: Path) -> None:
        """Into the job's directory, if that is kept; OSError if that cannot be written."""
        with contextlib.suppress(FileNotFoundError):
            (jobs_dir / self.job / SUMMARY).write_text(json.dumps(asdict(self)), encoding="utf-8")


def kept(jobs_dir: Path) -> Iterator[Summary]:
    """The summaries that lie in ``jobs_dir``, the newest first; one that cannot be read is not told of."""
    found = [(path.stat().st_mtime_ns, path) for path in jobs_dir.glob(f"*/{SUMMARY}") if path.is_file()]
    for _, path in sorted(found, reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield _parse(json.loads(path.read_bytes()[:_MAX_BYTES]))


def log_tails(job_dir: Path) -> list[tuple[str, str]]:
    """(file, its end) of a job's logs that say anything: of op_compiler, the installer, the worker, and single kernels' compile logs."""
    directory = JobDirectory(job_dir)
    paths = [*(path for program in ("op_compiler", "installer") for path in directory.output(program)), directory.worker_log]
    with contextlib.suppress(OSError):
        paths += sorted(directory.compile_log.iterdir())
    tails = ((path.relative_to(job_dir).as_posix(), _tail(path)) for path in paths)
    return [(name, text) for name, text in tails if text][:_MAX_LOGS]


def _tail(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as stream:
        stream.seek(max(0, os.fstat(fd).st_size - _TAIL_BYTES))
        return stream.read(_TAIL_BYTES).decode(errors="replace").strip()


def _parse(facts: dict[str, Any]) -> Summary:
    code = facts["exit_code"]
    return Summary(
        job=str(facts["job"]),
        uid=int(facts["uid"]),
        keys=tuple(map(str, facts["keys"])),
        began_at=float(facts["began_at"]),
        argv=tuple(map(str, facts["argv"])),
        wall_s=float(facts["wall_s"]),
        exit_code=None if code is None else int(code),
        compiled=int(facts["compiled"]),
        failed=tuple((str(key), str(outcome), str(reason)) for key, outcome, reason in facts["failed"]),
        reason=str(facts["reason"]),
        tail=str(facts["tail"]),
    )
