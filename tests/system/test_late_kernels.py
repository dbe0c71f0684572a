"""Ranks that do not wait for their kernels, on a whole node: they change at one call, whatever becomes of the daemon or of one of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from conftest_node import PATIENCE_S, REPOSITORY, Node, eventually

from tools.cann_sim import Costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("torch.distributed")

SCRIPT = Path(__file__).with_name("late_ranks.py")
RANKS = 4
LONG_S = 150.0
pytestmark = pytest.mark.slow


class Job:
    """The ranks of one job, as processes of their own."""

    def __init__(self, forker: subprocess.Popen[bytes], node: Node, ask: dict[str, object]) -> None:
        self.reports = node.directory / "reports"
        self.reports.mkdir()
        self.errors = node.directory / "job.err"
        self.errors.touch()
        assert forker.stdin is not None
        assert forker.stdout is not None
        order = {"ask": ask, "reports": str(self.reports), "environment": node.environment(), "errors": str(self.errors)}
        forker.stdin.write(json.dumps(order).encode() + b"\n")
        forker.stdin.flush()
        self.process = psutil.Process(int(forker.stdout.readline()))

    def calls(self, rank: int) -> int:
        path = self.reports / f"{rank}.calls"
        return int(path.read_text() or 0) if path.exists() else 0

    def kill(self, rank: int) -> None:
        os.kill(json.loads((self.reports / "pids").read_text())[rank], signal.SIGKILL)

    def codes(self) -> list[int]:
        """How each rank ended; a rank that hangs would run into the timeout."""
        codes = self.reports / "codes.json"
        eventually(codes.exists, "all ranks have ended", LONG_S)
        return json.loads(codes.read_text())

    def told(self) -> list[dict[str, Any]]:
        """What each rank wrote down at its end; all ended well."""
        codes = self.codes()
        assert codes == [0] * RANKS, self.why()
        return [json.loads((self.reports / f"{rank}.json").read_text()) for rank in range(RANKS)]

    def why(self) -> str:
        return self.errors.read_text() + "".join(path.read_text() for path in self.reports.glob("*.err"))

    def close(self) -> None:
        """End what is left of it; its ranks end with it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """What jobs are forked from; it lies where graphs may write beside it."""
    script = shutil.copy(SCRIPT, tmp_path_factory.mktemp("ranks"))
    process = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    yield process
    process.communicate()


@pytest.fixture
def start(forker: subprocess.Popen[bytes]) -> Iterator[Callable[..., Job]]:
    """Starts a job on a node."""
    jobs: list[Job] = []

    def begin(node: Node, **ask: object) -> Job:
        jobs.append(Job(forker, node, {"ranks": RANKS, "size": 32, "collective": True, "reconnect_s": PATIENCE_S, **ask}))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


@pytest.fixture
def slow_node(make_node: Callable[..., Node]) -> Node:
    """A node on which the kernels of a small graph take a second or two."""
    made = make_node(startup_s=1.0, per_op_s=0.2)
    made.start()
    return made


@pytest.fixture
def very_slow_node(make_node: Callable[..., Node]) -> Node:
    """A node on which they take so long that something can happen meanwhile, however busy this machine is."""
    made = make_node(startup_s=60.0)
    made.start()
    return made


def in_the_middle(node: Node, job: Job) -> None:
    """Wait until the graph runs while its kernels are compiled."""
    eventually(lambda: job.calls(0) > 1 and node.compilers(), "the graph runs while its kernels are compiled")


def test_four_ranks_with_a_collective_change_at_the_same_call(slow_node: Node, start: Callable[..., Job]) -> None:
    told = start(slow_node).told()
    assert [(rank["state"], rank["reason"]) for rank in told] == [("INSTALLED", "compiled")] * RANKS
    (at,) = {rank["changed_at"] for rank in told}
    assert at > 2  # it did run before
    assert [rank["renewed"] for rank in told] == [[at]] * RANKS
    assert all(rank["right"] and rank["loaded"] == 1 for rank in told)
    assert len({rank["last"] for rank in told}) == 1


def test_a_daemon_killed_in_the_middle_hangs_nobody_and_nobody_changes_alone(
    very_slow_node: Node, start: Callable[..., Job]
) -> None:
    job = start(very_slow_node, reconnect_s=1.0)
    in_the_middle(very_slow_node, job)
    very_slow_node.kill()
    told = job.told()
    assert all(rank["right"] for rank in told)
    assert len({rank["last"] for rank in told}) == 1
    assert {(rank["state"], rank["changed_at"]) for rank in told} == {("DEGRADED", None)}
    assert {rank["reason"] for rank in told} <= {"daemon_unavailable", "not_agreed"}  # the kernels of some may have been ready


def test_a_daemon_restarted_in_the_middle_brings_them_to_one_call_all_the_same(
    very_slow_node: Node, start: Callable[..., Job]
) -> None:
    job = start(very_slow_node)
    in_the_middle(very_slow_node, job)
    very_slow_node.kill()
    very_slow_node.cann.set_costs(Costs(startup_s=0.5))
    very_slow_node.start()
    told = job.told()
    assert all(rank["right"] for rank in told)
    assert {rank["state"] for rank in told} == {"INSTALLED"}
    assert len({rank["changed_at"] for rank in told}) == 1


def test_a_rank_killed_in_the_middle_hangs_nobody(very_slow_node: Node, start: Callable[..., Job]) -> None:
    job = start(very_slow_node)
    in_the_middle(very_slow_node, job)
    job.kill(3)
    codes = job.codes()
    # The others' collective fails, as it would without npgxd; nothing of ours waits for the dead rank.
    assert codes == [1, 1, 1, -signal.SIGKILL], job.why()
    assert all("Gloo" in (job.reports / f"{rank}.err").read_text() or "gloo" in job.why() for rank in range(3))


def test_a_rank_that_never_calls_again_keeps_nobody_from_changing(slow_node: Node, start: Callable[..., Job]) -> None:
    told = start(slow_node, collective=False, stops=3, calls=2, ordinary_end=True).told()
    assert all(rank["right"] for rank in told)
    assert [rank["state"] for rank in told] == ["INSTALLED"] * 3 + ["QUEUED"]
    assert len({rank["changed_at"] for rank in told[:3]}) == 1
    assert (told[3]["calls"], told[3]["changed_at"]) == (2, None)
