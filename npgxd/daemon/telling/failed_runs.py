"""What runs of op_compiler that failed have left, for administrators: which they were, and the ends of their logs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from npgxd.compile.summary import log_tails
from npgxd.daemon.refusals import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from npgxd.compile.summary import Summary
    from npgxd.daemon.compiling.job_history import JobHistory

MAX_RUNS: Final = 100
MAX_FAILURES: Final = 100


def failed_runs(history: JobHistory, jobs_dir: Path, digits: str) -> dict[str, Any]:
    """The document of ``logs``: all of them in brief, the newest first, or one whole. Refused if none, or several, begin so."""
    runs = [run for run in history.all() if (run.failed or run.reason) and run.job.startswith(digits)]
    if not digits:
        return {"jobs": [_brief(run) for run in runs[:MAX_RUNS]], "jobs_total": len(runs)}
    if not runs:
        raise Refused(
            "NOTHING_FOUND", f"no run of op_compiler that failed is known under {digits}", hint="npgxctl logs lists them"
        )
    if len(runs) > 1:
        names = ", ".join(run.job for run in runs[:8])
        raise Refused("AMBIGUOUS", f"{digits} may mean {names}", hint="give more digits")
    return {"jobs": [_whole(runs[0], jobs_dir)], "jobs_total": 1}


def _brief(run: Summary) -> dict[str, Any]:
    reasons = dict.fromkeys(reason for _, _, reason in run.failed)
    return {
        "job": run.job,
        "uid": run.uid,
        "began_at": run.began_at,
        "wall_s": run.wall_s,
        "exit_code": run.exit_code,
        "keys": len(run.keys),
        "compiled": run.compiled,
        "failed": len(run.failed),
        "reason": (run.reason or next(iter(reasons), ""))[:500],
    }


def _whole(run: Summary, jobs_dir: Path) -> dict[str, Any]:
    logs = log_tails(jobs_dir / run.job)
    failures = [{"key": key, "outcome": outcome, "reason": reason[:500]} for key, outcome, reason in run.failed[:MAX_FAILURES]]
    return {
        **_brief(run),
        "command": shlex.join(run.argv),
        "directory": str(jobs_dir / run.job) if logs else "",
        "failures": failures,
        "logs": [{"file": name, "text": text} for name, text in logs] or ([{"file": "", "text": run.tail}] if run.tail else []),
    }
