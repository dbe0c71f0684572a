"""Runs of op_compiler that give no sign of life: when they are taken to be stuck, what is saved of them, and who is told."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from npgxd.compile import Costs, JobProgress, KernelSeen
from npgxd.daemon.compiling.stuck_runs import LATE_S, LOOK_S, StuckRuns
from npgxd.daemon.demand.flights import Flights
from npgxd.daemon.demand.tries import Try
from npgxd.daemon.keeping.disk_watch import SLOW_S
from npgxd.store.under_way import UnderWay
from npgxd.wire.states import KeyOutcome
from tests.daemon.fake_workers import FakeJob
from tests.daemon.test_flights import need, waiter
from tools.cann_sim import records

STALL_S = 300.0


class Node:
    """A run with two keys that one round waits for."""

    def __init__(self, *, cost_s: float = 1.0, background: bool = False, stall_s: float = STALL_S) -> None:
        costs = Costs()
        costs.learn([KernelSeen("Add", 0, cost_s)] * 5)
        self.flights = Flights(3, costs)
        for key in "ab":
            self.flights.add(need(key), waiter(background=background), 0.0)
        self.stuck = StuckRuns(self.flights, stall_s)

    def start(self, name: str, *keys: str, now: float = 0.0) -> FakeJob:
        job = FakeJob(SimpleNamespace(job_id=name), 1)
        self.flights.start(keys, name)
        self.stuck.began(job, keys, now)
        return job


def test_a_run_that_gives_no_sign_for_so_long_is_told_so_once_and_again_only_after_as_long(node: Node) -> None:
    job = node.start("run", "a", "b")
    assert node.stuck.tick(STALL_S - 1) == STALL_S
    assert job.unstuck == []
    assert node.stuck.tick(STALL_S) == 2 * STALL_S
    node.stuck.tick(STALL_S + 10)
    assert job.unstuck == ["it gave no sign of life for 300 s"]
    node.stuck.tick(2 * STALL_S)
    assert job.unstuck[1:] == ["it gave no sign of life for 600 s"]


def test_a_daemon_that_was_away_takes_no_run_for_stuck_before_it_has_heard_it(node: Node) -> None:
    """It was stopped, or waited for its own disk: what the runs told meanwhile is to be read first."""
    job = node.start("run", "a", "b")
    assert node.stuck.tick(1.0) == STALL_S
    back = STALL_S + LATE_S + 1.0
    assert node.stuck.tick(back) == back + STALL_S
    assert job.unstuck == []
    node.stuck.tick(back + STALL_S)
    assert len(job.unstuck) == 1


def test_while_the_disk_does_not_answer_no_run_is_taken_for_stuck(parts) -> None:
    """op_compiler waits for it as everybody does, and its kernels are not to be remembered as too slow for that."""
    excused: list[float] = []
    parts.dispatcher._stuck.excuse = excused.append
    parts.dispatcher.tick(1.0)
    assert excused == []
    parts.stores.state.disk.under_way = UnderWay(lambda: time.monotonic() - SLOW_S)
    with parts.stores.state.disk.under_way.act("fsync", Path("a")):
        parts.dispatcher.tick(2.0)
    assert excused == [2.0]


@pytest.mark.parametrize("sign", [JobProgress(1, 2, ("Add",), 1), JobProgress(0, 2, ("Add",), 2), JobProgress(0, 2, ("Mul",), 1)])
def test_a_kernel_that_is_begun_or_finished_is_a_sign_of_life_and_the_same_words_again_are_none(node: Node, sign) -> None:
    job = node.start("run", "a", "b")
    node.stuck.told("run", JobProgress(0, 2, ("Add",), 1), 0.0)
    node.stuck.told("run", JobProgress(0, 2, ("Add",), 1), STALL_S - 1)
    node.stuck.told("run", sign, STALL_S - 1)
    node.stuck.tick(STALL_S)
    assert job.unstuck == []
    assert node.stuck.silent_s("run", STALL_S) == 1.0
    node.stuck.told("run", sign, STALL_S + 1)
    node.stuck.tick(2 * STALL_S - 1)
    assert len(job.unstuck) == 1


def test_kernels_that_are_known_to_take_long_have_three_times_that() -> None:
    node = Node(cost_s=200.0)
    job = node.start("run", "a", "b")
    node.stuck.tick(599.0)
    assert job.unstuck == []
    node.stuck.tick(600.0)
    assert len(job.unstuck) == 1


def test_a_kernel_that_ran_out_of_time_before_has_twice_as_long_since_it_may_just_be_slow(node: Node) -> None:
    for number, patience in enumerate((STALL_S, 2 * STALL_S, 4 * STALL_S)):
        job = node.start(f"run{number}", "a")
        node.stuck.tick(patience - 1)
        assert job.unstuck == []
        node.stuck.tick(patience)
        assert len(job.unstuck) == 1
        node.stuck.ended(f"run{number}")
        node.flights.failed([Try("a", KeyOutcome.TIMED_OUT, "late", transient=True)], 0.0)
        if number < 1:
            node.flights.get("a").counts.clear()


def test_what_nobody_waits_for_is_left_to_its_deadline_until_somebody_does() -> None:
    node = Node(background=True)
    job = node.start("run", "a", "b")
    assert node.stuck.tick(STALL_S) == STALL_S + LOOK_S
    assert job.unstuck == []
    node.flights.add(need("c"), waiter("other"), STALL_S)
    node.stuck.tick(STALL_S + LOOK_S)
    assert len(job.unstuck) == 1


def test_a_node_without_such_a_limit_ends_nothing_early() -> None:
    node = Node(stall_s=0.0)
    job = node.start("run", "a", "b")
    assert node.stuck.tick(1e9) == float("inf")
    assert job.unstuck == []


def test_kernels_of_a_run_that_hangs_at_another_are_published_long_before_its_deadline(parts) -> None:
    parts.cann.order("Mul", "hang")
    described = [records.elementwise("Add", (4, 64)), records.elementwise("Mul", (4, 64)), records.matmul(16, 64, 128)]
    taken = parts.take(parts.session(), *described)
    add, mul, matmul = taken.needs
    parts.coordinator.tick(1000.0)
    parts.drive(lambda: any(running.current == ("Mul",) for running in parts.dispatcher._running.values()))
    (run,) = parts.dispatcher.describe(STALL_S)["jobs"]
    assert run["silent_s"] == STALL_S
    parts.drive(lambda: {add, matmul} <= taken.settlements.keys(), now=STALL_S)
    assert {str(taken.settlements[key].outcome) for key in (add, matmul)} == {"compiled"}
    (tried,) = parts.coordinator.flights.tries_of(mul)
    assert tried.outcome is KeyOutcome.TIMED_OUT
    assert parts.coordinator.flights.get(mul).part, "it is tried without the others from now on"


@pytest.fixture
def node() -> Node:
    return Node()
