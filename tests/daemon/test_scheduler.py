"""Any history of ranks, batches, failures, limits and clocks, against the real coordinator, dispatcher and store; only the workers are faked.

Promised throughout: no key is compiled twice at once, no waiter is lost and each gets one outcome, complete rounds are settled one at a
time in their order, counters balance, processes never exceed the grant, a batch has one user's records, a job that waits is served within
a few batches, and tries are bounded.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from npgxd.compile import Grant, JobEnding, JobFailed, KeyFailed, Seen
from npgxd.config import load
from npgxd.daemon.compiling.dispatch import Dispatcher
from npgxd.daemon.keeping.keyer import Keyer
from npgxd.daemon.keeping.stores import Stores
from npgxd.daemon.scheduling.coordinator import Coordinator
from npgxd.daemon.sessions import Session, Sessions
from npgxd.store.history import CompileHistory
from npgxd.store.state import StateDirectory
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.messages import Hello, RankInfo, Submit
from npgxd.wire.states import KeyOutcome, RoundState
from tests.daemon.fake_workers import FakeJob, FakePool, QuickDisk
from tests.memory import room_in_memory
from tools.cann_sim import SimulatedCann, create, records

if TYPE_CHECKING:
    from npgxd.daemon.demand.rounds import Round

JOBS = 4
SERVED_WITHIN = 2 * JOBS
MOST_TRIES = 60
FATES = ("well", "well", "well", "crash", "refuse", "leave_out", "memory", "time", "worker_died", "no_word")
GB = 1_000_000_000


class FakeMachine:
    """A machine whose grant changes."""

    processors = 4.0

    def grant(self) -> Grant:
        return Grant(self.processors, 64 * GB, ("a test", "a test"))


class Histories(RuleBasedStateMachine):
    """One daemon's life."""

    cann: SimulatedCann
    keyer: Keyer

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="npgxd-schedule-", dir=room_in_memory()))
        path = self.directory / "npgxd.toml"
        path.write_text(f"""
            [daemon]
            state_dir = "{self.directory / "state"}"
            runtime_dir = "{self.directory / "run"}"
            [toolchain]
            home = "{self.cann.home}"
            opp = "{self.cann.opp}"
            soc = "Ascend910B3"
            [compile]
            cpu_share = 1
        """)
        config = load(path, user=False, environ={})
        self.stores = Stores(StateDirectory.open(config.state_dir, disk=QuickDisk()))
        self.wall = 1e9
        self.stores.history = CompileHistory(self.stores.catalog, clock=lambda: self.wall)
        self.sessions = Sessions()
        self.coordinator = Coordinator(config, self.stores, self.keyer, self.sessions)
        self.coordinator.settling.clock = itertools.count().__next__  # a file of a view to each slice
        self.coordinator.enter_keys = 1  # a round of a group at a time
        self.stores.views.step_files = 1
        self.machine = FakeMachine()
        self.dispatcher = Dispatcher(config, self.stores, self.keyer, self.coordinator, self.machine)
        self.pool = FakePool()
        self.dispatcher._pool = self.pool
        self.now = 0.0
        self.ranks: list[Session] = []
        self.rounds: dict[str, Round] = {}
        self.told: Counter[tuple[str, str]] = Counter()
        self.passed: Counter[str] = Counter()

    def one_of(self, things: dict[str, Any]) -> st.SearchStrategy[Any]:
        """Chosen by its place, since names are random and a history must be the same when it is played again."""
        return st.integers(0, len(things) - 1).map(lambda at: list(things.values())[at])

    # ---- what happens ----

    @rule(
        job=st.integers(0, JOBS - 1),
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True),
        together=st.booleans(),
    )
    def submit(self, job: int, sizes: list[int], together: bool) -> None:
        peer = PeerCredentials(os.getuid() + job % 2, os.getgid(), 0)
        rank = RankInfo(run_id=f"job{job}", local_world_size=3 if together else None)
        session = self.sessions.open(secrets.token_bytes(5), peer, Hello(versions=(1,), rank=rank), self.now)
        self.ranks.append(session)
        raw = [(f"{size}.json", records.encode(records.matmul(16 * size, 32, 64))) for size in sizes]
        taken = self.coordinator.accept(session, Submit(round=secrets.token_hex(16)), raw, self.now)
        self.rounds[taken.id] = taken
        self.turn()

    @precondition(lambda self: self.ranks)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        session = self.ranks.pop(data.draw(st.integers(0, len(self.ranks) - 1)))
        self.sessions.end(session)

    @precondition(lambda self: self.ranks)
    @rule(data=st.data())
    def give_up_waiting(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(range(len(self.ranks))))
        self.coordinator.gave_up(self.ranks[session], "", self.now)
        self.turn()

    @precondition(lambda self: self.rounds)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        taken = data.draw(self.one_of(self.rounds))
        if taken.id not in self.coordinator.rounds:
            return
        peer = PeerCredentials(taken.uid, os.getgid(), 0)
        session = self.sessions.open(secrets.token_bytes(5), peer, Hello(versions=(1,), rank=taken.rank), self.now)
        self.ranks.append(session)
        self.coordinator.accept(session, Submit(round=taken.id), [], self.now)
        self.turn()

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 20.0, 400.0, 5000.0, 1e7]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.coordinator.tick(self.now)
        self.turn()

    @precondition(lambda self: self.coordinator.settling)
    @rule(slices=st.sampled_from([1, 2, 5, 100]))
    def rounds_are_settled_in_slices(self, slices: int) -> None:
        for _ in range(slices):
            unsettled = {name for name, taken in self.rounds.items() if taken.result is None}
            first = next(iter(self.coordinator.settling), None)
            self.coordinator.settle(self.now)
            assert {name for name in unsettled if self.rounds[name].result is not None} <= {first}, (
                "one at a time, in their order"
            )

    @rule(seconds=st.sampled_from([-1e8, -3600.0, 700.0, 1e8]))
    def the_wall_clock_jumps(self, seconds: float) -> None:
        self.wall += seconds

    @rule(processors=st.sampled_from([0.5, 1.0, 2.0, 3.5, 8.0]))
    def the_grant_changes(self, processors: float) -> None:
        self.machine.processors = processors

    def turn(self) -> None:
        """What the loop does after everything that happens."""
        waiting = {line.name for line in self.coordinator.flights.lines if not line.background and not line.running}
        before = set(self.pool.jobs)
        self.dispatcher.tick(self.now)
        started = [job for name, job in self.pool.jobs.items() if name not in before]
        if started:
            granted = max(1, math.ceil(self.machine.processors))
            assert self.processes() <= granted, "more processes than are granted"
        self.now += 0.001
        served = {
            line for name in self.pool.jobs.keys() - before for line in self.coordinator.flights.lines._served.get(name, ())
        }
        still = {line.name for line in self.coordinator.flights.lines if not line.background and not line.running}
        for line in waiting & still - served:
            self.passed[line] += len(started)
            assert self.passed[line] <= SERVED_WITHIN, f"{line} is never served"
        for line in set(self.passed) - (waiting & still - served):
            del self.passed[line]

    @precondition(lambda self: self.pool.jobs)
    @rule(data=st.data(), fate=st.sampled_from(FATES))
    def a_batch_ends(self, data: st.DataObject, fate: str) -> None:
        job = data.draw(self.one_of(self.pool.jobs))
        keys = [item.key for item in job.spec.items]
        self.end(job.spec.job_id, fate, data.draw(st.integers(0, len(keys) - 1)))
        self.turn()

    @precondition(lambda self: self.pool.jobs)
    @rule(data=st.data())
    def op_compiler_ends_and_its_package_is_still_verified(self, data: st.DataObject) -> None:
        job = data.draw(self.one_of(self.pool.jobs))
        job.tell(JobEnding(), ended=False)
        self.dispatcher.read(job.fileno(), self.now)
        self.turn()

    @precondition(lambda self: self.pool.jobs)
    @rule(data=st.data())
    def a_batch_is_stuck(self, data: st.DataObject) -> None:
        """It is told so, and goes on without the kernel at which it hung."""
        job = data.draw(self.one_of(self.pool.jobs))
        self.now += 1e4
        self.turn()
        if job.unstuck:
            self.hang(job.spec.job_id, data.draw(st.integers(0, len(job.spec.items) - 1)))
            self.turn()

    def hang(self, name: str, at: int) -> None:
        keys = [item.key for item in self.pool.jobs[name].spec.items]
        hung = KeyFailed(keys.pop(at), KeyOutcome.TIMED_OUT, "hung", transient=True, narrow=True, seen=Seen.WORKING)
        self.publish(self.pool.end(name, keys, [hung]))

    def end(self, name: str, fate: str, at: int = 0) -> None:
        spec = self.pool.jobs[name].spec
        keys = [item.key for item in spec.items]
        made, failed = _fate(fate, keys, at)
        if fate == "worker_died":
            job = self.pool.jobs.pop(name)
            job.tell(JobFailed("the worker was ended by SIGKILL", tuple(failed), 1.0))
        else:
            job = self.pool.end(name, made, failed)
        self.publish(job)

    def publish(self, job: FakeJob) -> None:
        self.dispatcher.read(job.fileno(), self.now)
        while self.dispatcher._publishing:
            self.dispatcher._publish(self.now)

    # ---- what is promised ----

    def processes(self) -> int:
        return sum(one.job.spec.jobs for one in self.dispatcher._running.values() if not one.ending)

    @invariant()
    def no_key_is_compiled_twice_at_once(self) -> None:
        running = Counter(item.key for job in self.pool.jobs.values() for item in job.spec.items)
        assert all(count == 1 for count in running.values())
        for name, job in self.pool.jobs.items():
            for item in job.spec.items:
                flight = self.coordinator.flights.get(item.key)
                assert flight is None or flight.job == name

    @invariant()
    def a_batch_has_one_users_records(self) -> None:
        for running in self.dispatcher._running.values():
            assert len({need.uid for need in running.needs.values()}) == 1

    @invariant()
    def no_waiter_is_lost(self) -> None:
        for taken in self.rounds.values():
            if taken.result is not None:
                assert taken.settlements.keys() == taken.needs.keys()
            elif taken.state is not RoundState.WAITING:
                for key in taken.open_keys:
                    flight = self.coordinator.flights.get(key)
                    assert flight is not None
                    assert taken.id in flight.waiters

    @precondition(lambda self: self.coordinator.entering)
    @rule()
    def a_group_that_was_closed_goes_on(self) -> None:
        self.coordinator.tick(self.now)
        self.turn()

    @invariant()
    def a_round_whose_group_was_closed_is_in_flight_or_has_its_turn(self) -> None:
        groups = self.coordinator._windows._groups
        closed = {
            r.id for r in self.rounds.values() if r.state is RoundState.WAITING and r.group in groups and groups[r.group].closed
        }
        assert {name for name in closed if self.rounds[name].result is None} <= set(self.coordinator.entering)

    @invariant()
    def a_round_that_is_complete_has_its_turn_and_is_durable_until_then(self) -> None:
        complete = [r for r in self.rounds.values() if r.result is None and r.state is not RoundState.WAITING and not r.open_keys]
        assert {taken.id for taken in complete} <= set(self.coordinator.settling)
        assert {taken.id for taken in complete} <= {entry.round for entry in self.stores.rounds.pending()}
        assert len(self.coordinator.settling) <= sum(taken.result is None for taken in self.rounds.values())

    @invariant()
    def counters_balance(self) -> None:
        flights = self.coordinator.flights
        totals = flights.totals
        assert totals["added"] == totals["landed"] + totals["given_up"] + totals["dropped"] + len(flights)
        assert flights.waiting == sum(flight.job is None for flight in flights._flights.values())
        waiting = Counter(key for line in flights.lines for key, count in line.keys.items() for _ in range(count))
        assert waiting == Counter(
            {key: len(flight.waiters) for key, flight in flights._flights.items() if flight.job is None and flight.waiters}
        )

    @invariant()
    def tries_are_bounded(self) -> None:
        assert all(len(flight.tries) <= MOST_TRIES for flight in self.coordinator.flights._flights.values())

    @invariant()
    def an_estimate_is_never_negative(self) -> None:
        for taken in self.rounds.values():
            told = self.coordinator.eta(taken, self.now)
            assert told is None or told >= 0.0

    def teardown(self) -> None:
        try:
            self.machine.processors = 4.0
            for _ in range(500):
                self.now += 2000.0
                self.coordinator.tick(self.now)
                while self.coordinator.settling:
                    self.coordinator.settle(self.now)
                self.dispatcher.tick(self.now)
                for name in list(self.pool.jobs):
                    self.end(name, "well")
                if all(taken.result is not None for taken in self.rounds.values()):
                    break
            for taken in self.rounds.values():
                assert taken.result is not None, "a round is never settled"
            assert len(self.coordinator.flights) == 0
            assert not list(self.coordinator.flights.lines._lines), "a line of nobody is left"
            assert self.stores.rounds.pending() == []
        finally:
            for session in self.sessions:
                self.sessions.end(session)
            self.stores.close()
            shutil.rmtree(self.directory)


def _fate(fate: str, keys: list[str], at: int) -> tuple[list[str], list[KeyFailed]]:
    """Which keys of a run are made, and how the others failed."""
    one, others = keys[at], [key for key in keys if key != keys[at]]
    match fate:
        case "well":
            return keys, []
        case "refuse":
            return others, [KeyFailed(one, KeyOutcome.FAILED, "E40021", transient=False)]
        case "leave_out":
            return others, [KeyFailed(one, KeyOutcome.LEFT_OUT, "no kernel", transient=False)]
        case "no_word":
            return others, []
        case "memory" | "worker_died":
            return [], [KeyFailed(key, KeyOutcome.OUT_OF_MEMORY, "killed", transient=True) for key in keys]
        case _:
            outcome = KeyOutcome.CRASHED if fate == "crash" else KeyOutcome.TIMED_OUT
            seen = {
                key: Seen.FINISHED if n < at else Seen.WORKING if n < at + 2 else Seen.UNTOUCHED for n, key in enumerate(keys)
            }
            return [], [KeyFailed(key, outcome, "died", transient=True, narrow=True, seen=seen[key]) for key in keys]


@pytest.fixture(scope="module")
def shared_toolchain(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("schedule")
    Histories.cann = create(place / "cann", version="9.1.0", soc="Ascend910B3")
    path = place / "npgxd.toml"
    path.write_text(f'[toolchain]\nhome = "{Histories.cann.home}"\nopp = "{Histories.cann.opp}"\nsoc = "Ascend910B3"\n')
    Histories.keyer = Keyer(load(path, user=True, environ={"HOME": str(place)}).toolchain.settings(), {}, place / "memo.json")


@pytest.mark.usefixtures("shared_toolchain")
class TestHistories(Histories.TestCase):
    settings = settings(
        max_examples=int(os.environ.get("NPGXD_SCHEDULE_EXAMPLES", "20")),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
