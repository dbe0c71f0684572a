"""Rounds against real stores and a real simulated toolchain, without the loop: what is bounded, what is kept, what is told of a fault."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import psutil
import pytest

from npgxd.config import LimitsSection
from npgxd.daemon.refusals import Refused
from npgxd.daemon.scheduling import kept
from npgxd.daemon.scheduling.quotas import Quotas
from npgxd.errors import NpgxError, StoreError
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.messages import Hello, Lease
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState

OTHER = PeerCredentials(os.getuid() + 1, os.getgid(), 0)


def ready(parts, *sizes: int) -> None:
    """Compile these kernels, as the loop would."""
    taken = parts.submit(parts.session(run_id="earlier"), *sizes)
    parts.drive(lambda: taken.result is not None)
    assert taken.result.state is ClientState.INSTALLED


def drain(steps) -> None:
    for _ in steps:
        pass


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_settled_rounds_are_forgotten_by_their_bytes_however_young(parts, monkeypatch) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES", 50_000)
    session = parts.session()
    for _ in range(20):
        assert parts.submit(session, bad=b"x" * 10_000).result is not None
    assert len(parts.coordinator.rounds) <= 7


def test_a_round_of_an_open_group_may_be_forgotten(parts, monkeypatch) -> None:
    ready(parts, 16)
    monkeypatch.setattr(kept, "KEPT_BYTES", 0)
    job = {"run_id": "r", "local_world_size": 9, "world_size": 9}
    first, second = parts.session(**job), parts.session(**job)
    forgotten = parts.submit(first, 16)
    waiting = parts.submit(second, 32)
    for _ in range(2):
        parts.submit(parts.session(), bad=b"[]")
    assert forgotten.id not in parts.coordinator.rounds
    parts.coordinator.tick(1000.0)
    assert waiting.state is RoundState.QUEUED


def test_two_rounds_whose_ids_begin_alike_are_in_different_groups(parts) -> None:
    session = parts.session()
    one, other = (parts.submit(session, size, name=f"{'a' * 31}{size % 10}") for size in (16, 32))
    assert one.group != other.group
    assert [record.name for record in parts.coordinator.gathered(one)] == ["16.json"]


def test_a_users_connections_are_bounded_and_another_user_may_still_connect(parts) -> None:
    parts.coordinator.quotas = Quotas(LimitsSection(connections=3))
    hello = Hello(versions=(1,))
    for number in range(3):
        parts.handlers.handle(bytes([number]), OTHER, hello, (), 0.0)
    with pytest.raises(Refused, match="connections"):
        parts.handlers.handle(b"more", OTHER, hello, (), 0.0)
    parts.handlers.handle(b"again", replace(OTHER, uid=OTHER.uid + 1), hello, (), 0.0)
    parts.handlers.handle(b"\0", OTHER, hello, (), 0.0)  # a hello on a connection that has one replaces it
    parts.sessions.end(parts.sessions.by_identity(b"\1"))
    parts.handlers.handle(b"more", OTHER, hello, (), 0.0)


def test_a_view_that_was_told_and_never_leased_goes_when_its_time_is_over(parts) -> None:
    ready(parts, 16)
    taken = parts.submit(parts.session(), 16)
    view = taken.result.view
    drain(parts.stores.releasing(lambda: {view}))
    assert view in parts.stores.views
    assert parts.stores.spared, "so that it is looked at again, though no lease ends"
    drain(parts.stores.releasing(set))
    assert view not in parts.stores.views
    assert not parts.stores.spared


def test_a_view_that_is_leased_while_leases_are_looked_through_bit_by_bit_stays(parts) -> None:
    ready(parts, 16, 32, 48)
    *views, held = (parts.submit(parts.session(), size).result.view for size in (16, 32, 48))
    parts.stores.leases.offer(held, session="there", uid=1, pid=1, started=1.0)
    for number, view in enumerate(views):  # these end at once: nobody holds their locks
        offer = parts.stores.leases.offer(view, session=f"gone{number}", uid=1, pid=1, started=1.0)
        parts.stores.leases.session_ended(offer.session)
    steps = parts.stores.releasing(set)
    for _ in range(5):  # three leases to release, what is offered, and the one lease that is left
        next(steps)
    parts.stores.leases.offer(views[1], session="new", uid=1, pid=1, started=1.0)
    drain(steps)
    assert views[0] not in parts.stores.views
    assert views[1] in parts.stores.views
    assert held in parts.stores.views


# ---- whose round it is -----------------------------------------------------------------------------------------------


def test_another_users_round_is_neither_told_nor_taken_over_nor_leased(parts) -> None:
    ready(parts, 16)
    mine, stranger = parts.session(), parts.session(OTHER)
    settled = parts.submit(mine, 16)
    for attempt in (
        lambda: parts.submit(stranger, 16, name=settled.id),
        lambda: parts.coordinator.round_of(stranger, settled.id),
        lambda: parts.handlers.handle(stranger.identity, OTHER, Lease(view=settled.result.view), (), 0.0),
    ):
        with pytest.raises(Refused, match=r"no (such )?round|no such view"):
            attempt()
    assert settled.session == mine.id


def test_an_identity_that_changes_its_user_must_say_hello_again(parts) -> None:
    session = parts.session()
    with pytest.raises(Refused) as refused:
        parts.handlers.handle(session.identity, OTHER, Lease(view="0" * 64), (), 0.0)
    assert refused.value.refusal == "NEED_HELLO"


def test_a_round_that_waits_for_a_toolchain_cannot_be_overwritten_by_another_user(parts) -> None:
    name = "b" * 32
    waiting = parts.submit(parts.session(local_world_size=2), 16, name=name)
    entries = parts.stores.rounds.pending()
    parts.coordinator.rounds.clear()
    home = parts.cann.home.resolve()
    home.rename(home.with_name("away"))
    parts.keyer.find()
    assert parts.coordinator.resume(entries, 0.0) == 0
    home.with_name("away").rename(home)
    parts.keyer.find()
    with pytest.raises(Refused, match="no such round"):
        parts.submit(parts.session(OTHER), 32, name=name)
    assert [entry.uid for entry in parts.stores.rounds.pending()] == [waiting.uid]
    own = parts.submit(parts.session(), 16, name=name)
    parts.coordinator.tick(1000.0)
    assert parts.coordinator.rounds[name] is own, "its own user's round is taken up once"


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_round_that_cannot_be_written_down_leaves_no_trace(parts) -> None:
    session = parts.session()
    shutil.rmtree(parts.stores.state.rounds)
    with pytest.raises(StoreError):
        parts.submit(session, 16)
    assert not parts.coordinator.rounds
    assert not session.round
    assert parts.stores.counters()["rounds"] == 0


def test_a_round_whose_known_kernels_are_still_being_put_in_place_is_in_the_journal_when_it_is_acknowledged(
    parts, monkeypatch
) -> None:
    ready(parts, 16)
    monkeypatch.setattr(parts.coordinator.placing, "begin", lambda *_: None)  # a shared op library takes its time
    taken = parts.submit(parts.session(), 16)
    assert taken.result is None
    assert [entry.round for entry in parts.stores.rounds.pending()] == [taken.id]


def test_a_round_of_an_unknown_vocabulary_stops_no_start(parts) -> None:
    parts.submit(parts.session(local_world_size=2), 16)
    entry = parts.stores.rounds.pending()[0]
    parts.coordinator.rounds.clear()
    strange = replace(entry, round="c" * 32, options={"super_kernel": {"-o": "/etc"}})
    assert parts.coordinator.resume([strange, entry], 0.0) == 1


def test_a_job_whose_result_cannot_be_taken_is_over_and_its_keys_are_tried_again(parts, monkeypatch, caplog) -> None:
    taken = parts.submit(parts.session(), 16)
    parts.dispatcher.tick(0.0)
    (job,) = parts.dispatcher.describe(0.0)["jobs"]

    def fail(*_args: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(parts.stores, "publishing_kernels", fail)
    parts.drive(lambda: "a fault of ours" in caplog.text)
    assert job["job"] not in {running["job"] for running in parts.dispatcher.describe(0.0)["jobs"]}
    monkeypatch.undo()
    parts.drive(lambda: taken.result is not None)
    assert (taken.result.state, taken.result.reason) == (ClientState.INSTALLED, Reason.COMPILED)
    assert taken.settlements[next(iter(taken.needs))].outcome is KeyOutcome.COMPILED


def test_workers_that_cannot_be_started_are_not_tried_without_a_pause(parts, caplog) -> None:
    taken = parts.submit(parts.session(), 16)
    jobs = parts.stores.state.jobs
    shutil.rmtree(jobs)
    retry = parts.dispatcher.tick(0.0)
    assert 0.0 < retry < 5.0
    for _ in range(50):
        assert parts.dispatcher.tick(retry / 2) == retry
    assert caplog.text.count("cannot start a compile") == 1
    jobs.mkdir()
    parts.drive(lambda: taken.result is not None, now=retry)
    assert taken.result.state is ClientState.INSTALLED


def test_a_kernel_waits_without_a_try_while_all_workers_are_taken(parts, monkeypatch, caplog) -> None:
    taken = parts.submit(parts.session(), 16)
    monkeypatch.setattr(parts.dispatcher._pool, "limit", 0)
    parts.dispatcher.tick(0.0)
    assert "cannot start" not in caplog.text
    assert parts.coordinator.flights.tries_of(next(iter(taken.needs))) == []
    monkeypatch.undo()
    parts.drive(lambda: taken.result is not None, now=1000.0)
    assert taken.result.state is ClientState.INSTALLED


def test_a_compiler_that_does_not_run_is_not_asked_again_by_everybody(parts, monkeypatch) -> None:
    tries = []

    def discover(*_args: object) -> None:
        tries.append(1)
        raise NpgxError("no CANN")

    monkeypatch.setattr("npgxd.daemon.keeping.keyer.discover", discover)
    parts.keyer.find()
    for now in range(100):
        parts.keyer.find_if_missing(now / 1000)
    assert len(tries) == 2
    parts.keyer.find_if_missing(3600.0)
    assert len(tries) == 3


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_rank_that_says_again_that_it_records_is_not_waited_for_any_longer(parts) -> None:
    session = parts.session()
    session.tell(ClientState.RECORDING, 10.0, graph="0")
    session.tell(ClientState.RECORDING, 20.0, graph="0")
    assert session.state_since == 10.0
    session.tell(ClientState.RECORDING, 30.0, graph="1")
    assert session.state_since == 30.0


def test_a_process_that_ends_while_it_says_hello_leaves_no_descriptor_that_nobody_knows(parts, monkeypatch) -> None:
    def gone(pid: int) -> None:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", gone)
    session = parts.session(replace(OTHER, pid=os.getpid()))
    assert session.pidfd >= 0
    assert parts.sessions.by_pidfd(session.pidfd) is session
