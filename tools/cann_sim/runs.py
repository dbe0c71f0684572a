"""The run log of a simulated home: which compiles really happened, told by the compiler and not by the daemon."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunOp:
    """One record that a run was given."""

    op_type: str
    record: str
    """sha256 of the record's canonical form."""
    file: str


@dataclass(frozen=True, slots=True)
class Run:
    """One op_compiler run. ``status`` is None while it runs, and stays None when it was killed."""

    pid: int
    argv: tuple[str, ...]
    cwd: str
    ops: tuple[RunOp, ...]
    started: float
    status: int | None = None
    compiled: tuple[str, ...] = ()
    """Names of the kernels that the run compiled, told at its end; a name has the record's digest in it."""
    seconds: float | None = None


def read_runs(path: Path) -> tuple[Run, ...]:
    """Every run in the log, in the order of their starts; none when there is no log yet."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return ()
    runs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    latest: dict[int, dict[str, Any]] = {}
    for line in lines:
        event = json.loads(line)
        if event["event"] == "start":
            latest[event["pid"]] = {}  # pids come again; an end belongs to the latest start
            runs.append((event, latest[event["pid"]]))
        else:
            latest[event["pid"]].update(event)
    return tuple(_run(start, end) for start, end in runs)


def _run(start: dict[str, Any], end: dict[str, Any]) -> Run:
    return Run(
        pid=start["pid"],
        argv=tuple(start["argv"]),
        cwd=start["cwd"],
        ops=tuple(RunOp(op["op_type"], op["record"], op["file"]) for op in start["ops"]),
        started=start["time"],
        status=end.get("status"),
        compiled=tuple(end.get("compiled", ())),
        seconds=end.get("seconds"),
    )
