from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from npgxd.daemon.flights import Flights, Need, Try
from npgxd.toolchain.record import Record
from npgxd.wire.messages import CompileOptions
from npgxd.wire.states import KeyOutcome

ATTEMPTS = 3


def need(key: str, *, uid: int = 0, options: CompileOptions | None = None) -> Need:
    record = Record(name=f"{key}.json", op_type="Add", canonical=b"{}", digest="0" * 64, trace="t")
    return Need(key=key, record=record, fingerprint="f" * 64, options=options or CompileOptions(), uid=uid)


def failed(key: str, *, transient: bool) -> Try:
    return Try(key, KeyOutcome.FAILED, "because", transient)


def test_a_batch_never_mixes_users_or_options() -> None:
    flights = Flights(ATTEMPTS)
    flights.add(need("a"), "r1")
    flights.add(need("b", uid=1), "r2")
    flights.add(need("c", options=CompileOptions(super_kernel={"enable": "true"})), "r3")
    flights.add(need("d"), "r4")
    assert [flight.need.key for flight in flights.next_batch()] == ["a", "d"]


def test_a_key_that_runs_is_joined_and_never_started_again() -> None:
    flights = Flights(ATTEMPTS)
    flights.add(need("a"), "r1")
    flights.start(["a"], "job")
    assert flights.join("a", "r2")
    assert flights.next_batch() == []
    with pytest.raises(RuntimeError, match="already being compiled"):
        flights.start(["a"], "other")
    landed = flights.landed("a")
    assert landed is not None
    assert landed.waiters == {"r1", "r2"}
    assert "a" not in flights


def test_a_refused_key_is_tried_once_more_alone_and_then_remembered() -> None:
    flights = Flights(ATTEMPTS)
    for key in ("a", "b"):
        flights.add(need(key), "r")
    flights.start(["a", "b"], "one")
    assert flights.failed(failed("a", transient=False)) is None
    flights.landed("b")
    flights.add(need("c"), "r")
    assert [flight.need.key for flight in flights.next_batch()] == ["a"]
    flights.start(["a"], "two")
    lost = flights.failed(failed("a", transient=False))
    assert lost is not None
    assert lost.remember
    assert "tried 2 times" in lost.reason


def test_a_passing_failure_is_tried_a_bounded_number_of_times_and_not_remembered() -> None:
    flights = Flights(ATTEMPTS)
    flights.add(need("a"), "r")
    for attempt in range(ATTEMPTS):
        flights.start(["a"], str(attempt))
        lost = flights.failed(failed("a", transient=True))
    assert lost is not None
    assert not lost.remember
    assert len(flights) == 0


class Scheduler(RuleBasedStateMachine):
    """Any order of joins, starts, results and failures: no waiter is lost, no key runs twice, tries are bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.flights = Flights(ATTEMPTS)
        self.waiting: dict[str, set[str]] = {}
        self.running: dict[str, str] = {}
        self.tries: dict[str, int] = {}
        self.rounds = 0

    keys = st.sampled_from("abcdefgh")

    @rule(key=keys, uid=st.integers(0, 1))
    def ask(self, key: str, uid: int) -> None:
        self.rounds += 1
        waiter = f"r{self.rounds}"
        name = f"{key}{uid}"
        if not self.flights.join(name, waiter):
            self.flights.add(need(name, uid=uid), waiter)
            self.tries[name] = 0
        self.waiting.setdefault(name, set()).add(waiter)

    @rule(some=st.integers(1, 5))
    def start(self, some: int) -> None:
        batch = self.flights.next_batch()[:some]
        assert len({flight.need.uid for flight in batch}) <= 1
        for flight in batch:
            assert flight.need.key not in self.running
            self.running[flight.need.key] = "job"
            self.tries[flight.need.key] += 1
        self.flights.start([flight.need.key for flight in batch], "job")

    @rule(data=st.data(), transient=st.booleans())
    def end_badly(self, data: st.DataObject, transient: bool) -> None:
        if not self.running:
            return
        key = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[key]
        lost = self.flights.failed(failed(key, transient=transient))
        if lost is not None:
            assert lost.flight.waiters == self.waiting.pop(key)
        else:
            assert self.tries[key] < ATTEMPTS

    @rule(data=st.data())
    def end_well(self, data: st.DataObject) -> None:
        if not self.running:
            return
        key = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[key]
        flight = self.flights.landed(key)
        assert flight is not None
        assert flight.waiters == self.waiting.pop(key)

    @invariant()
    def counters_balance(self) -> None:
        assert len(self.flights) == len(self.waiting)
        assert self.flights.waiting == len(self.waiting) - len(self.running)
        assert self.flights.running(self.waiting) == len(self.running)


TestScheduler = Scheduler.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
