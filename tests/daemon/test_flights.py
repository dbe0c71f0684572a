"""Keys in flight without a daemon: who shares what, what a failed try means, and who is told."""

from __future__ import annotations

import pytest

from npgxd.compile import Costs, KernelSeen, Seen, Slots, Terms, next_batch
from npgxd.daemon.demand.flights import Flights, Need
from npgxd.daemon.demand.lines import Waiter
from npgxd.daemon.demand.tries import BYSTANDER, GivenUp, Hold, Try
from npgxd.toolchain.record import Record
from npgxd.wire.messages import CompileOptions
from npgxd.wire.states import KeyOutcome

ATTEMPTS = 3
TERMS = Terms(30.0, 1.0)
SLOTS = Slots(8, 8, 8)


def need(key: str, *, uid: int = 0, options: CompileOptions | None = None) -> Need:
    record = Record(name=f"{key}.json", op_type="Add", canonical=b"{}", digest="0" * 64, trace=key)
    return Need(key=key, record=record, fingerprint="f" * 64, options=options or CompileOptions(), uid=uid)


def waiter(name: str = "r", *, job: str = "j", uid: int = 0, background: bool = False) -> Waiter:
    return Waiter(name, job, uid, background)


def failed(key: str, outcome: KeyOutcome = KeyOutcome.FAILED, *, transient: bool = True, **facts: object) -> Try:
    return Try(key, outcome, "because", transient, **facts)


def crashed(*working: str, others: tuple[str, ...] = ()) -> list[Try]:
    return [
        failed(key, KeyOutcome.CRASHED, narrow=True, seen=Seen.WORKING if key in working else Seen.FINISHED, job="run")
        for key in (*working, *others)
    ]


class Node:
    """Flights that are planned and run, one batch at a time."""

    def __init__(self, *keys: str) -> None:
        self.flights = Flights(ATTEMPTS, Costs())
        self.now = 0.0
        self.ran: list[set[str]] = []
        self.ask(*keys)

    def ask(self, *keys: str, by: Waiter | None = None) -> None:
        for key in keys:
            self.flights.add(need(key, uid=by.uid if by else 0), by or waiter(), self.now)

    def batch(self, slots: Slots = SLOTS) -> set[str]:
        """Start what is planned next; its keys."""
        planned = next_batch(self.flights.queues(), slots, TERMS)
        if planned is None:
            return set()
        name = str(len(self.ran))
        self.flights.start(planned.batch.keys, name, planned.processes, planned.queues)
        self.ran.append(set(planned.batch.keys))
        return self.ran[-1]

    def fail(self, *tries: Try) -> list[GivenUp]:
        return self.flights.failed(tries, self.now)


def test_a_batch_has_one_users_records_and_one_set_of_options() -> None:
    node = Node("a", "d")
    node.now = 1.0
    node.ask("b", by=waiter("r2", job="other", uid=1))
    node.flights.add(need("c", options=CompileOptions(super_kernel={"enable": "true"})), waiter(), 0.0)
    assert node.batch() == {"a", "d"}
    assert [node.batch(), node.batch()] == [{"b"}, {"c"}]


def test_a_key_that_two_users_want_is_compiled_once_from_the_record_of_either_and_in_a_batch_of_that_users() -> None:
    node = Node("shared")
    other = waiter("r2", job="other", uid=1)
    node.ask("shared", "own", by=other)
    node.flights.leave("r", ["shared"])
    assert node.batch() == {"shared", "own"}
    assert {one.uid for one in node.flights.records(["shared", "own"], 1)} == {1}
    landed = node.flights.landed("shared")
    assert landed is not None
    assert set(landed.waiters) == {"r2"}


def test_a_key_that_runs_is_joined_and_never_started_again() -> None:
    node = Node("a")
    node.batch()
    node.ask("a", by=waiter("r2", job="later"))
    assert node.batch() == set()
    with pytest.raises(RuntimeError, match="already being compiled"):
        node.flights.start(["a"], "other")
    landed = node.flights.landed("a")
    assert landed is not None
    assert set(landed.waiters) == {"r", "r2"}
    assert "a" not in node.flights


def test_a_refused_key_is_tried_once_more_alone_and_then_remembered_for_good() -> None:
    node = Node("a", "b")
    node.batch()
    assert node.fail(failed("a", transient=False)) == []
    node.flights.landed("b")
    node.ask("c")
    assert [node.batch(), node.batch()] == [{"c"}, {"a"}]
    (lost,) = node.fail(failed("a", transient=False))
    assert lost.hold is Hold.FINAL
    assert "tried 2 times" in lost.reason


def test_a_key_that_is_refused_alone_is_tried_twice_too() -> None:
    node = Node("a")
    node.batch()
    assert node.fail(failed("a", transient=False)) == []
    node.batch()
    assert len(node.fail(failed("a", transient=False))) == 1


def test_what_the_compiler_does_not_support_is_not_tried_again() -> None:
    node = Node("a", "b")
    node.batch()
    (lost,) = node.fail(failed("a", KeyOutcome.UNSUPPORTED, transient=False))
    assert (lost.outcome, lost.hold) == (KeyOutcome.UNSUPPORTED, Hold.FINAL)


def test_a_passing_failure_is_tried_a_bounded_number_of_times_and_not_remembered() -> None:
    node = Node("a")
    for _ in range(ATTEMPTS):
        node.batch()
        told = node.fail(failed("a"))
    assert [lost.hold for lost in told] == [Hold.NOT]
    assert len(node.flights) == 0


def test_after_a_crash_the_suspects_are_halved_and_everybody_else_goes_on_together() -> None:
    node = Node(*"abcdefgh")
    assert node.batch() == set("abcdefgh")
    assert node.fail(*crashed(*"cdef", others=tuple("abgh"))) == []
    batches = [node.batch(), node.batch(), node.batch()]
    assert batches == [set("abgh"), set("cd"), set("ef")]
    for key in "abghef":
        node.flights.landed(key)
    assert node.fail(*crashed("c", "d")) == []
    assert [node.batch(), node.batch()] == [{"c"}, {"d"}]
    node.flights.landed("d")
    assert node.fail(*crashed("c")) == []
    assert node.batch() == {"c"}
    (lost,) = node.fail(*crashed("c"))
    assert (lost.outcome, lost.hold) == (KeyOutcome.CRASHED, Hold.FINAL)
    assert [tried.mates for tried in lost.flight.tries] == [8, 2, 1, 1]


def test_a_compiler_that_dies_whatever_it_is_given_is_not_asked_for_ever() -> None:
    node = Node(*(f"k{n}" for n in range(64)))
    runs = 0
    while node.flights.waiting:
        batch = sorted(node.batch())
        runs += 1
        assert runs < 200
        node.fail(*crashed(*batch[:2], others=tuple(batch[2:])))
    assert runs > BYSTANDER


def test_a_compiler_that_dies_before_its_first_kernel_accuses_none_of_them() -> None:
    node = Node(*"abcd")
    for _ in range(ATTEMPTS):
        assert node.batch() == set("abcd")
        told = node.fail(*(failed(key, KeyOutcome.CRASHED, narrow=True) for key in "abcd"))
    assert len(told) == 4


def test_fc12_out_of_memory_is_retried_on_half_as_many_processes_down_to_one_and_then_by_halves() -> None:
    node = Node(*"abcdefgh")
    processes = []
    for _ in range(4):
        batch = sorted(node.batch())
        processes.append(max(flight.processes for key in batch if (flight := node.flights.get(key)) is not None))
        assert (
            node.fail(
                *(failed(key, KeyOutcome.OUT_OF_MEMORY, seen=Seen.WORKING if key < "c" else Seen.UNTOUCHED) for key in batch)
            )
            == []
        )
    assert processes == [8, 4, 2, 1]
    assert [node.batch(), node.batch(), node.batch()] == [set("cdefgh"), {"a"}, {"b"}]
    told = []
    for _ in range(ATTEMPTS):
        told = node.fail(failed("a", KeyOutcome.OUT_OF_MEMORY))
        node.batch()
    assert [(lost.outcome, lost.hold) for lost in told] == [(KeyOutcome.OUT_OF_MEMORY, Hold.PASSING)]


def test_keys_that_nobody_waits_for_go_behind_those_of_ranks_and_come_back_with_their_rank() -> None:
    node = Node("a")
    node.flights.attend(waiter(background=True), ["a"], 1.0)
    node.ask("b", by=waiter("r2", job="later"))
    slots = Slots(1, 1, 1)
    assert node.batch(slots) == {"b"}
    node.flights.failed([failed("b")], 2.0)
    node.flights.attend(waiter(), ["a"], 3.0)
    assert [queue.background for queue in node.flights.queues()] == [False, False]


def test_a_key_that_a_rank_wants_too_is_no_background_work() -> None:
    node = Node("a")
    node.flights.attend(waiter(background=True), ["a"], 1.0)
    node.ask("a", by=waiter("r2", job="later"))
    planned = next_batch(node.flights.queues(), SLOTS, TERMS)
    assert planned is not None
    assert not planned.background


def test_a_round_that_leaves_takes_with_it_what_only_it_waited_for_and_what_runs_goes_on() -> None:
    node = Node("running")
    node.batch()
    node.ask("a", "b")
    node.ask("b", by=waiter("r2", job="other"))
    assert node.flights.leave("r", ["running", "a", "b"]) == ["a", "b"]
    assert [key in node.flights for key in ("running", "a", "b")] == [True, False, True]
    assert node.flights.landed("running") is not None


def test_what_is_learned_of_costs_counts_for_what_waits_already() -> None:
    costs = Costs()
    flights = Flights(ATTEMPTS, costs)
    flights.add(need("a"), waiter(), 0.0)
    costs.learn([KernelSeen("Add", 0, 9.0)])
    flights.reprice()
    (queue,) = flights.queues()
    assert (queue.cost_s, next(iter(queue.items())).cost_s) == (9.0, 9.0)


def test_how_a_key_was_tried_can_be_asked_for_a_while_after_its_end() -> None:
    node = Node("a")
    node.batch()
    node.fail(failed("a", transient=False, job="first"))
    node.batch()
    node.flights.landed("a")
    assert [tried.job for tried in node.flights.tries_of("a")] == ["first"]
    assert node.flights.tries_of("b") == []
