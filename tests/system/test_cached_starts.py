"""cache_compile in many processes at once, with a real daemon: one compilation a round, and a killed builder is replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import Node, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODEL = Path(__file__).with_name("cached_model.py")
LONG = bool(os.environ.get("NPGXD_CRASH_LONG"))
PROCESSES, ROUNDS = (16, 20) if LONG else (3, 2)


class Start:
    """One process; it has said that it is ready."""

    def __init__(self, node: Node) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(MODEL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=node.environment(OMP_NUM_THREADS="1"),
            text=True,
        )

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"a process ended with {self.process.poll()}"
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(node: Node) -> Iterator[Callable[[], Start]]:
    made: list[Start] = []

    def begin() -> Start:
        made.append(Start(node))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.mark.slow
@pytest.mark.timeout(3000 if LONG else 600)
def test_processes_that_start_at_once_compile_once_a_round_and_a_killed_builder_has_one_successor(
    node: Node, start: Callable[[], Start], tmp_path: Path
) -> None:
    crowd = [start() for _ in range(PROCESSES)]
    for one in crowd:
        assert one.answer() == {}
    for number in range(ROUNDS):
        stall = tmp_path / f"stall{number}" if number % 2 else None
        for place, one in enumerate(crowd):
            one.tell(
                width=4 + number, cache=str(tmp_path / f"round{number}" / f"start{place}"), stall=str(stall) if stall else ""
            )
        if stall is not None:
            pid = int(eventually(lambda stall=stall: stall.exists() and stall.read_text(), "somebody builds"))
            [builder] = [one for one in crowd if one.process.pid == pid]
            builder.process.send_signal(signal.SIGKILL)
            builder.process.wait(60)
            crowd.remove(builder)
        told = [one.answer() for one in crowd]
        assert all(one["equal"] for one in told), told
        assert sorted(one["origin"] for one in told) == ["compiled", *["daemon"] * (len(crowd) - 1)], told
        assert len({one["digest"] for one in told}) == 1
        while len(crowd) < PROCESSES:
            crowd.append(start())
            assert crowd[-1].answer() == {}
    status = node.status()
    assert status is not None
    assert status["artifacts"]["published"] == status["artifacts"]["entries"] == ROUNDS
