"""Rounds whose processes end, come back or never come: nobody waits for them, nothing of them is lost, and nothing is silent."""

from __future__ import annotations

import os

import pytest

from npgxd.compile import Slots, Terms, next_batch
from npgxd.daemon.scheduling.attendance import GRACE_S
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.messages import Follow, Report
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState
from tools.cann_sim import records

OTHER = PeerCredentials(os.getuid() + 1, os.getgid(), 0)
GROUP = {"run_id": "r", "world_size": 4, "local_world_size": 4}
LATER = GRACE_S + 1.0
EXPIRED = LATER + 3600.0 + 10.0


def lines(parts) -> dict[bool, int]:
    """How many keys wait, for somebody and for nobody."""
    told = {False: 0, True: 0}
    for queue in parts.coordinator.flights.queues():
        told[queue.background] += len(queue.keys())
    return told


def journal(parts) -> list[str]:
    return [entry.round for entry in parts.stores.rounds.pending()]


# ---- ranks that end ---------------------------------------------------------------------------------------------------


def test_keys_of_a_rank_that_ended_drop_to_the_background_after_a_moment_and_stay_durable(parts) -> None:
    session = parts.session()
    taken = parts.submit(session, 16, 32)
    parts.sessions.end(session)
    parts.tick(1.0)
    parts.tick(2.0)
    assert lines(parts) == {False: 2, True: 0}, "it may come back"
    parts.tick(1.0 + LATER)
    assert lines(parts) == {False: 0, True: 2}
    assert journal(parts) == [taken.id]
    assert taken.state is RoundState.QUEUED


def test_queued_keys_that_nobody_has_waited_for_expire_in_words_in_the_journal_and_in_the_counters(parts, caplog) -> None:
    session = parts.session()
    taken = parts.submit(session, 16, 32)
    parts.sessions.end(session)
    for now in (1.0, LATER, EXPIRED):
        parts.tick(now)
    assert taken.result is not None
    assert {told.outcome for told in taken.settlements.values()} == {KeyOutcome.EXPIRED}
    assert (taken.result.state, taken.result.reason) == (ClientState.DEGRADED, Reason.EXPIRED)
    assert journal(parts) == []
    assert len(parts.coordinator.flights) == 0
    assert parts.stores.counters()["expired"] == 2
    assert "no process has waited" in caplog.text
    assert parts.tick(EXPIRED + 1) == float("inf"), "nothing is looked at for ever"


def test_what_runs_when_its_rank_ends_is_finished_and_only_the_rest_expires(parts) -> None:
    session = parts.session()
    taken = parts.submit(session, 16, 32)
    running, queued = taken.open_keys
    parts.coordinator.flights.start([running], "job")
    parts.sessions.end(session)
    for now in (1.0, LATER, EXPIRED):
        parts.tick(now)
    assert taken.result is None
    assert taken.settlements[queued].outcome is KeyOutcome.EXPIRED
    assert parts.coordinator.flights.of_job("job") == [running]


def test_a_rank_that_comes_back_brings_its_keys_to_the_front_again(parts) -> None:
    session = parts.session()
    taken = parts.submit(session, 16)
    parts.sessions.end(session)
    for now in (1.0, 1.0 + LATER):
        parts.tick(now)
    assert lines(parts) == {False: 0, True: 1}
    again = parts.submit(parts.session(), 16, name=taken.id, now=LATER + 2)
    assert again is taken
    assert lines(parts) == {False: 1, True: 0}
    parts.tick(EXPIRED + 100)
    assert taken.result is None


def gives_up(parts, session, graph: str, now: float) -> None:
    said = Report(state=ClientState.DEGRADED, reason=str(Reason.DEADLINE), graph=graph)
    parts.handlers.handle(session.identity, session.peer, said, (), now)


def test_a_rank_past_its_deadline_is_no_waiter_any_more_though_its_process_lives_on(parts) -> None:
    session = parts.session()
    given_up = parts.take(session, records.matmul(16, 32, 64), graph="0")
    awaited = parts.take(session, records.matmul(32, 32, 64), graph="1")
    gives_up(parts, session, "0", 5.0)
    assert lines(parts) == {False: 1, True: 1}
    parts.tick(1.0 + LATER)
    assert lines(parts) == {False: 1, True: 1}, "its process being there changes nothing"
    parts.tick(5.0 + EXPIRED)
    assert given_up.result is not None
    assert {told.outcome for told in given_up.settlements.values()} == {KeyOutcome.EXPIRED}
    assert awaited.result is None


def test_a_rank_that_gave_up_and_follows_its_round_again_waits_again(parts) -> None:
    session = parts.session()
    taken = parts.take(session, records.matmul(16, 32, 64), graph="0")
    gives_up(parts, session, "0", 5.0)
    assert lines(parts) == {False: 0, True: 1}
    parts.handlers.handle(session.identity, session.peer, Follow(round=taken.id), (), 6.0)
    assert lines(parts) == {False: 1, True: 0}
    parts.tick(EXPIRED + 100.0)
    assert taken.result is None


def test_another_rank_that_wants_the_same_keys_brings_them_to_the_front(parts) -> None:
    session = parts.session(run_id="gone")
    parts.submit(session, 16, 32)
    parts.sessions.end(session)
    for now in (1.0, 1.0 + LATER):
        parts.tick(now)
    parts.submit(parts.session(run_id="new"), 16, now=LATER + 2)
    assert lines(parts) == {False: 1, True: 2}
    planned = next_batch(parts.coordinator.flights.queues(), Slots(8, 8, 8), Terms(30.0, 1.0))
    assert planned is not None
    assert (len(planned.batch.items), planned.background) == (1, False)


def test_a_rank_that_asks_again_for_a_round_that_expired_has_it_compiled(parts) -> None:
    session = parts.session()
    taken = parts.submit(session, 16)
    parts.sessions.end(session)
    for now in (1.0, LATER, EXPIRED):
        parts.tick(now)
    parts.submit(parts.session(), 16, name=taken.id, now=EXPIRED + 1)
    assert taken.result is None
    assert journal(parts) == [taken.id]
    parts.drive(lambda: taken.result is not None)
    assert taken.result.state is ClientState.INSTALLED


def test_rounds_of_an_earlier_life_wait_for_their_ranks_and_are_compiled_without_them(parts) -> None:
    taken = parts.submit(parts.session(local_world_size=2), 16)
    entries = parts.stores.rounds.pending()
    parts.coordinator.rounds.clear()
    assert parts.coordinator.resume(entries, 100.0) == 1
    parts.tick(100.0 + LATER)
    parts.tick(101.0 + LATER)
    assert lines(parts) == {False: 0, True: 1}
    resumed = parts.coordinator.rounds[taken.id]
    parts.drive(lambda: resumed.result is not None, now=LATER + 200.0)
    assert resumed.result.compiled == 1


def test_a_clock_that_jumps_far_ahead_expires_nothing_that_somebody_waits_for(parts) -> None:
    taken = parts.submit(parts.session(), 16)
    parts.tick(1e9)
    assert taken.result is None
    assert lines(parts) == {False: 1, True: 0}


# ---- groups -----------------------------------------------------------------------------------------------------------


def test_ranks_with_different_graphs_are_one_group_and_each_gets_its_own(parts) -> None:
    rounds = [parts.submit(parts.session(rank=rank, **GROUP), 16, 32 + 16 * rank) for rank in range(4)]
    assert len({taken.group for taken in rounds}) == 1
    assert {taken.state for taken in rounds} == {RoundState.QUEUED}, "the last one closed the window"
    assert len(parts.coordinator.flights) == 5
    parts.drive(lambda: all(taken.result is not None for taken in rounds))
    assert [(taken.result.state, taken.result.compiled) for taken in rounds] == [(ClientState.INSTALLED, 2)] * 4


def test_a_rank_that_is_missing_is_waited_for_by_its_window_and_one_that_is_late_joins_what_runs(parts) -> None:
    early = [parts.submit(parts.session(rank=rank, **GROUP), 16) for rank in range(3)]
    assert {taken.state for taken in early} == {RoundState.WAITING}
    parts.tick(3.0)
    assert {taken.state for taken in early} == {RoundState.QUEUED}
    (key,) = early[0].open_keys
    parts.coordinator.flights.start([key], "job")
    late = parts.submit(parts.session(rank=3, **GROUP), 16, now=4.0)
    parts.tick(10.0)
    flight = parts.coordinator.flights.get(key)
    assert flight is not None
    assert set(flight.waiters) == {taken.id for taken in (*early, late)}
    assert flight.job == "job"


def test_a_rank_that_dies_in_an_open_window_holds_nobody_up(parts) -> None:
    dying = parts.session(rank=0, **GROUP)
    parts.submit(dying, 16)
    parts.sessions.end(dying)
    others = [parts.submit(parts.session(rank=rank, **GROUP), 32) for rank in range(1, 4)]
    assert {taken.state for taken in others} == {RoundState.QUEUED}


def test_more_ranks_than_were_announced_are_served_too(parts) -> None:
    rounds = [parts.submit(parts.session(rank=rank, **{**GROUP, "local_world_size": 2}), 16 * (rank + 1)) for rank in range(5)]
    parts.tick(3.0)
    assert {taken.state for taken in rounds} == {RoundState.QUEUED}


@pytest.mark.parametrize("stated", [(4, 2, 8), (None, 4, 4), (None, None, None)])
def test_fc31_contradictory_or_missing_sizes_hold_nobody_up(parts, stated: tuple[int | None, ...]) -> None:
    sessions = [parts.session(**{**GROUP, "rank": rank, "local_world_size": size}) for rank, size in enumerate(stated)]
    rounds = [parts.submit(session, 16) for session in sessions]
    assert {taken.state for taken in rounds} == {RoundState.QUEUED}
    assert len(parts.coordinator.flights) == 1


def test_a_key_of_two_users_is_compiled_once_and_each_round_has_it(parts) -> None:
    mine, others = parts.submit(parts.session(), 16, 32), parts.submit(parts.session(OTHER), 16, 48)
    assert len(parts.coordinator.flights) == 3
    parts.drive(lambda: mine.result is not None and others.result is not None)
    assert [taken.result.state for taken in (mine, others)] == [ClientState.INSTALLED] * 2
    batches = [{op.record for op in run.ops} for run in parts.cann.runs()]
    assert sum(map(len, batches)) == len(set().union(*batches)) == 3
    assert len(batches) == 2


# ---- what is remembered -----------------------------------------------------------------------------------------------


def test_fc12_a_remembered_failure_is_told_at_once_and_retry_has_it_compiled_again(parts) -> None:
    parts.cann.order("MatMulV2", "fail")
    first = parts.submit(parts.session(), 16)
    parts.drive(lambda: first.result is not None)
    (row,) = parts.stores.history.latest_failures(9)
    assert (row.outcome, row.attempts, row.until) == ("failed", 2, 0.0)
    assert (parts.stores.state.jobs / row.job).is_dir(), "its logs are kept"
    parts.cann.cancel_orders()
    second = parts.submit(parts.session(), 16)
    assert second.result is not None
    assert [one.reason for one in second.result.failures] == [row.reason]
    assert [one.key for one in parts.stores.history.forget(keys=[row.key[:12]])] == [row.key]
    third = parts.submit(parts.session(), 16)
    parts.drive(lambda: third.result is not None)
    assert third.result.state is ClientState.INSTALLED
