from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from tools.cann_sim.records import elementwise
from tools.cann_sim.runs import read_runs

if TYPE_CHECKING:
    from pathlib import Path


def start(pid: int, time: float) -> dict[str, Any]:
    return {"event": "start", "pid": pid, "time": time, "argv": ["-j", "2"], "cwd": "/w", "ops": []}


def end(pid: int, time: float, **facts: object) -> dict[str, Any]:
    return {"event": "end", "pid": pid, "time": time, "status": 0, "compiled": ["k"], "seconds": 1.0, **facts}


def write(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_there_are_no_runs_before_the_first(tmp_path: Path):
    assert read_runs(tmp_path / "none") == ()


def test_a_killed_run_has_no_end_and_its_pid_may_come_again(tmp_path: Path):
    first, second = read_runs(write(tmp_path / "log", start(7, 1.0), end(7, 2.0, status=3), start(7, 5.0)))
    assert (first.status, first.compiled) == (3, ("k",))
    assert (second.status, second.compiled, second.seconds) == (None, (), None)


def test_an_end_belongs_to_the_latest_start_of_its_pid(tmp_path: Path):
    killed, ended = read_runs(write(tmp_path / "log", start(7, 1.0), start(7, 5.0), end(7, 6.0)))
    assert (killed.status, ended.status) == (None, 0)


def test_concurrent_runs_never_mix_their_lines(bench):
    def compile_once(size: int) -> None:
        bench.run(
            bench.cann.op_compiler, "-p", bench.directory / f"p{size}", "-v", "Ascend910B3", "-f", "-o", bench.directory / "o"
        )

    from tools.cann_sim.records import write_records

    for size in range(4):
        write_records(bench.directory / f"p{size}", [elementwise("Add", (at + 1, size + 1)) for at in range(30)])
    threads = [threading.Thread(target=compile_once, args=(size,)) for size in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(run.status, len(run.ops), len(run.compiled)) for run in bench.cann.runs()] == [(0, 30, 30)] * 4
