"""kill -9 of every part in the middle of a compile: no rank hangs or fails, and what is missing afterwards is compiled, and only that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from conftest_node import ALL_COME, PATIENCE_S, Node, eventually, matmuls, named

from tools.cann_sim import records
from tools.demo.children import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (16, 32, 48, 64)


@pytest.fixture
def slow(make_node: Callable[..., Node]) -> Node:
    """A node whose compiler takes about two seconds for SIZES."""
    node = make_node(startup_s=0.5, per_op_s=0.7)
    node.settings["group"] = ALL_COME
    node.start()
    return node


def compiling(node: Node) -> psutil.Process:
    """Wait until op_compiler runs; that process, not one of its children."""
    run = eventually(node.cann.runs, "op_compiler runs")[-1]
    return psutil.Process(run.pid)


def test_kill_9_of_the_daemon_ranks_wait_for_the_next_one_which_compiles_what_is_missing(slow: Node) -> None:
    done = slow.rank(matmuls(100)).outcome()
    ranks = slow.group([matmuls(100, *SIZES)] * 2, LOCAL_WORLD_SIZE="2")
    eventually(lambda: len(slow.cann.runs()) == 2, "the group is being compiled")
    slow.kill()
    eventually(lambda: not slow.compilers(), "no compiler outlives its daemon")
    slow.start()
    outcomes = [rank.outcome() for rank in ranks]
    assert {o["state"] for o in outcomes} == {"INSTALLED"}
    assert {(o["missing"], o["extra"], o["torn"]) for o in outcomes} == {(0, 0, 0)}
    assert slow.compiled().count(slow.compiled()[0]) == 1, "what was published is not compiled again"
    assert done["state"] == "INSTALLED"
    assert len(slow.cann.runs()) == 3


def test_an_acknowledged_round_survives_kill_9_also_when_its_rank_does_not(slow: Node) -> None:
    rank = slow.rank(matmuls(*SIZES))
    compiling(slow)
    rank.process.kill()
    slow.kill()
    slow.start()
    eventually(lambda: (slow.status() or {})["kernels"]["count"] == len(SIZES), "the round is taken up again")
    outcome = slow.rank(matmuls(*SIZES)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("INSTALLED", "hit")
    assert not list((slow.state / "rounds").iterdir())


def test_kill_9_of_the_daemon_and_no_new_one_the_rank_goes_on_with_dynamic_kernels(slow: Node) -> None:
    rank = slow.rank(matmuls(*SIZES), options={"patience": {"reconnect_s": 1.0}})
    compiling(slow)
    slow.kill()
    outcome = rank.outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "daemon_unavailable")
    assert rank.error().count("npgxd --user") == 1, "said once, with the remedy"


def test_kill_9_of_a_worker(slow: Node) -> None:
    rank = slow.rank(matmuls(*SIZES))
    compiling(slow)
    assert slow.daemon is not None
    worker = next(child for child in psutil.Process(slow.daemon.pid).children() if "worker.py" in " ".join(arguments(child)))
    worker.kill()
    outcome = rank.outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
    eventually(lambda: not slow.compilers(), "no compiler outlives its worker")


def test_kill_9_of_op_compiler(slow: Node) -> None:
    rank = slow.rank(matmuls(*SIZES))
    compiling(slow).kill()
    outcome = rank.outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
    assert len(slow.cann.runs()) == 2


def test_a_compiler_that_hangs_and_is_ended_by_hand_costs_only_the_kernel_that_it_was_at(slow: Node) -> None:
    slow.settings["compile"]["workers"] = slow.settings["compile"]["jobs"] = 1
    slow.stop()
    slow.start()
    slow.cann.order("Add", "hang")
    slow.rank([*matmuls(16, 32), *named(records.elementwise("Add", [16, 8], "float16"))])
    run = compiling(slow)

    def hangs() -> bool:
        jobs = (slow.status() or {})["workers"]["jobs"]
        return bool(jobs) and jobs[0]["current"] == ["Add"]

    eventually(hangs, "op_compiler is at the kernel that never ends")
    run.terminate()
    eventually(lambda: len(slow.cann.runs()) > 1, "what the run was for is tried again")
    outcome = slow.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["missing"]) == ("INSTALLED", 0)


def test_kill_9_of_a_rank_does_not_hold_up_its_group(slow: Node) -> None:
    ranks = slow.group([matmuls(*SIZES)] * 3, LOCAL_WORLD_SIZE="3")
    compiling(slow)
    ranks[1].process.kill()
    outcomes = [ranks[0].outcome(), ranks[2].outcome()]
    assert {o["state"] for o in outcomes} == {"INSTALLED"}
    document = slow.status()
    assert document is not None
    assert sum(len(job["ranks"]) for job in document["jobs"]) == 2


def test_a_rank_that_dies_before_it_submits_does_not_hold_up_its_group(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["group"] = {"window_s": 0.5}
    node.start()
    ranks = node.group([matmuls(*SIZES)] * 2, LOCAL_WORLD_SIZE="3")
    outcomes = [rank.outcome() for rank in ranks]
    assert {o["state"] for o in outcomes} == {"INSTALLED"}


def test_sigterm_lets_a_running_compile_finish_and_exits_0(slow: Node) -> None:
    slow.rank(matmuls(*SIZES))
    compiling(slow)
    assert slow.stop() == 0
    assert not slow.compilers()
    slow.start()
    document = slow.status()
    assert document is not None
    assert document["kernels"]["count"] == len(SIZES)


def test_a_rank_whose_compile_a_drain_lets_finish_gets_its_kernels(slow: Node) -> None:
    rank = slow.rank(matmuls(*SIZES))
    compiling(slow)
    assert slow.stop() == 0
    assert not list(slow.runtime.glob("*.sock")), "clients see at once that nobody is there"
    outcome = rank.outcome()
    assert (outcome["state"], outcome["reason"], outcome["missing"]) == ("INSTALLED", "compiled", 0)
    slow.start()
    assert (slow.status() or {})["kernels"]["leases"] == 1, "it holds its lease over the restart"


def test_a_second_sigterm_ends_at_once_and_the_round_is_taken_up_by_the_next_daemon(make_node: Callable[..., Node]) -> None:
    node = make_node()
    daemon = node.start()
    node.cann.order("MatMulV2", "hang", times=1)
    node.rank(matmuls(16))
    compiling(node)
    daemon.send_signal(signal.SIGTERM)
    eventually(lambda: "draining" in node.log.read_text(), "the daemon drains")
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE_S) == 0
    assert not node.compilers()
    node.start()
    eventually(lambda: (node.status() or {})["kernels"]["count"] == 1, "the round is taken up again")


def test_a_second_daemon_is_refused_and_does_not_take_the_socket(node: Node) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "npgxd.daemon.main", "--config", str(node.config)],
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert second.returncode == 75
    assert f"pid {node.daemon.pid}" in second.stderr if node.daemon else False
    assert node.rank(matmuls(16)).outcome()["state"] == "INSTALLED"


def test_a_daemon_stopped_by_a_signal_does_not_hold_a_rank(node: Node) -> None:
    assert node.daemon is not None
    os.kill(node.daemon.pid, signal.SIGSTOP)
    try:
        outcome = node.rank(matmuls(16), options={"patience": {"handshake_s": 0.5}}).outcome()
        assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "daemon_unavailable")
    finally:
        os.kill(node.daemon.pid, signal.SIGCONT)


def test_what_a_process_has_loaded_is_known_also_to_the_next_daemon(node: Node) -> None:
    ask = {"rounds": [matmuls(16), matmuls(16, 32)], "recompile": True, "pause": str(node.directory / "go")}
    rank = node.rank([], options=ask)
    eventually(lambda: (node.status() or {})["kernels"]["leases"] == 1, "the first round is leased")
    node.kill()
    # Another implementation, another kernel under the same name: the process keeps the one that it loaded.
    source = next((node.cann.opp / "built-in/op_impl/ai_core/tbe/impl").rglob("mat_mul_v2.cpp"))
    source.write_bytes(source.read_bytes() + b"\n")
    node.start()
    (node.directory / "go").touch()
    outcome = rank.outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "restart_needed")
    assert len(outcome["shadowed"]) == 1


def test_a_daemon_that_was_started_with_its_signals_blocked_still_drains_at_sigterm(node: Node) -> None:
    assert node.stop() == 0
    program = (
        "import runpy, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT});"
        "runpy.run_module('npgxd.daemon.main', run_name='__main__')"
    )
    node.daemon = node.spawn("-c", program, "--config", str(node.config), stderr=node.log)
    eventually(node.status, "the daemon answers")
    assert node.stop() == 0
