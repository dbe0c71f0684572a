from __future__ import annotations

import pytest

from npgxd.compile import Costs, KernelSeen, RunSeen, Terms
from npgxd.compile.forecast import Run
from npgxd.daemon.demand.flights import Flights, Need
from npgxd.daemon.demand.lines import Waiter
from npgxd.daemon.scheduling.prospects import Prospects
from npgxd.toolchain.record import Record
from npgxd.wire.messages import CompileOptions

CANN = "9.1.0/x"
TERMS = Terms(30.0, 5.0)
MINE, OTHERS = Waiter("r", "mine", 0), Waiter("s", "others", 0)


def need(key: str) -> Need:
    record = Record(name=key, op_type="Add", canonical=b"{}", digest="0" * 64, trace=key)
    return Need(key=key, record=record, fingerprint="f" * 64, options=CompileOptions(), uid=0)


class Node:
    """Flights whose kernels are known to cost 2 s each, an op_compiler that starts in 5 s and ends in 1 s, and 4 slots."""

    def __init__(self) -> None:
        self.costs = Costs()
        self.costs.learn([KernelSeen("Add", 0, 2.0)], CANN, RunSeen(5.0, 1.0))
        self.flights = Flights(3, self.costs)
        self.prospects = Prospects(self.flights, self.costs, 30.0)
        self.prospects.toolchain, self.prospects.slots, self.prospects.runs = CANN, 4, 4

    def wait(self, waiter: Waiter, *keys: str) -> list[Need]:
        needs = [need(key) for key in keys]
        for one in needs:
            self.flights.add(one, waiter, 0.0)
        return needs

    def run(self, keys: list[str], *, at: float = 0.0) -> None:
        self.flights.start(keys, "job", 4)
        self.prospects.began("job", keys, 4, TERMS, at)


@pytest.fixture
def node() -> Node:
    return Node()


def test_nothing_is_promised_where_nothing_was_ever_compiled() -> None:
    flights = Flights(3, Costs())
    flights.add(need("a"), MINE, 0.0)
    assert Prospects(flights, Costs(), 30.0).eta(MINE, [need("a")], 0.0) is None


def test_what_waits_takes_a_start_up_its_work_and_an_ending_also_before_its_window_has_closed(node: Node) -> None:
    told = node.prospects.eta(MINE, [need(str(n)) for n in range(8)], 0.0)
    assert told == 5.0 + 2.0 * 8 / 4 + 1.0
    node.wait(MINE, *map(str, range(8)))
    assert node.prospects.eta(MINE, [need(str(n)) for n in range(8)], 0.0) == told


def test_what_runs_is_done_when_its_batch_is_and_never_before(node: Node) -> None:
    needs = node.wait(MINE, *map(str, range(8)))
    node.run([one.key for one in needs])
    assert [node.prospects.eta(MINE, needs, at) for at in (0.0, 4.0, 9.5)] == [10.0, 6.0, 0.5]


def test_a_run_that_is_late_is_told_by_its_progress_and_without_one_nothing_is_told(node: Node) -> None:
    needs = node.wait(MINE, *map(str, range(8)))
    node.run([one.key for one in needs])
    assert node.prospects.eta(MINE, needs, 25.0) is None
    node.prospects.progressed("job", 2, 6, 5.0)
    assert node.prospects.eta(MINE, needs, 25.0) == 20.0, "two are done and four half: half of all in 20 s"


def test_a_queue_behind_a_run_and_beside_another_waits_for_both(node: Node) -> None:
    node.run([one.key for one in node.wait(OTHERS, *(f"o{n}" for n in range(8)))])
    mine = node.wait(MINE, "a", "b", "c", "d")
    alone = node.prospects.eta(MINE, mine, 0.0)
    assert alone == 9.0 + 2.0 + 5.0 + 1.0, "the slots are free when the compiler has ended, a second before its job has"
    node.wait(OTHERS, *(f"p{n}" for n in range(400)))
    beside = node.prospects.eta(MINE, mine, 0.0)
    assert beside is not None
    assert alone < beside <= alone + 2.0 + 5.0, "no more of others than its own, and their start-up"


def test_what_runs_holds_its_slots_until_its_compiler_has_ended_and_not_while_its_kernels_are_looked_at(node: Node) -> None:
    needs = node.wait(MINE, *map(str, range(8)))
    node.run([one.key for one in needs])
    assert node.prospects.running(4.0) == (Run(4, 5.0),)
    assert node.prospects.running(12.0) == (Run(4, 3.0),), "3 s late, and without a word"
    node.prospects.ending("job", 9.0)
    assert node.prospects.running(9.0) == ()
    assert [node.prospects.eta(MINE, needs, at) for at in (9.0, 9.5, 99.0)] == [1.0, 0.5, 0.0]


def test_what_runs_is_estimated_anew_when_costs_are_learned_and_when_its_start_up_is_over(node: Node) -> None:
    needs = node.wait(MINE, *map(str, range(8)))
    node.run([one.key for one in needs])
    node.costs.learn([KernelSeen("Add", 0, 6.0)], CANN, RunSeen(5.0, 1.0))
    node.prospects.reprice()
    assert node.prospects.expected_s("job") == 5.0 + 4.0 * 8 / 4
    assert node.prospects.eta(MINE, needs, 0.0) == 5.0 + 4.0 * 8 / 4 + 1.0
    node.prospects.progressed("job", 0, 1, 8.0)
    assert node.prospects.expected_s("job") == 8.0 + 4.0 * 8 / 4


def test_what_comes_after_the_first_run_of_a_node_is_planned_by_what_that_seems_to_have_taken_not_by_a_prior() -> None:
    costs = Costs()
    flights = Flights(3, costs)
    prospects = Prospects(flights, costs, 30.0)
    for number in range(20):
        flights.add(need(str(number)), MINE, 0.0)
    for job, keys in (("first", range(8)), ("second", range(8, 16))):
        flights.start(map(str, keys), job, 4)
        prospects.began(job, map(str, keys), 4, TERMS, 0.0)
    prospects.progressed("first", 0, 4, 2.0)
    prospects.progressed("first", 8, 8, 3.0)
    prospects.ending("first", 3.0)
    assert not costs.known, "it was not looked at yet"
    assert (costs.start_up_s(CANN), flights.cost_of(need("19"))) == (2.0, 0.5)
    assert prospects.running(3.0) == (Run(4, 2.0 + 8 * 0.5 / 4 - 3.0),)
    costs.learn([KernelSeen("Add", 0, 0.25)], CANN, RunSeen(1.0, 1.0))
    prospects.reprice()
    assert (costs.start_up_s(CANN), flights.cost_of(need("19"))) == (1.0, 0.25)
