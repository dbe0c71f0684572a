"""Rounds that are complete are settled one at a time and in slices: what holds between two of them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from npgxd.daemon.administering.draining import Draining
from npgxd.wire.messages import Follow
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState

SIZES = (16, 32, 48)


@pytest.fixture
def sliced(parts):
    """A daemon that has compiled three kernels, and makes a view one file at a time."""
    taken = parts.submit(parts.session(run_id="earlier"), *SIZES)
    parts.drive(lambda: taken.result is not None)
    parts.stores.views.drop_unleased(set())
    parts.stores.views.step_files = 1
    parts.coordinator.settling.clock = itertools.count().__next__
    return parts


def settle(parts, *rounds) -> None:
    for _ in range(1000):
        if all(taken.result is not None for taken in rounds):
            return
        parts.coordinator.settle(0.0)
    raise AssertionError("never settled")


def staged(parts) -> list[str]:
    return [path.name for path in parts.stores.state.staging.iterdir()]


def test_a_large_round_is_durable_before_it_is_accepted_and_whole_before_it_is_seen(sliced) -> None:
    taken = sliced.submit(sliced.session(), *SIZES)
    assert taken.result is None, "its view is a long act"
    assert [entry.round for entry in sliced.stores.rounds.pending()] == [taken.id]
    slices = 0
    while taken.result is None:
        assert list(sliced.stores.state.views.iterdir()) == []
        sliced.coordinator.settle(0.0)
        slices += 1
    assert slices >= 2 * len(SIZES) - 1
    assert taken.result.view_kernels == len(SIZES)
    assert taken.result.view in sliced.stores.views
    assert sliced.stores.rounds.pending() == []
    assert staged(sliced) == []


def test_a_view_that_is_there_is_told_at_once_though_others_wait_for_theirs(sliced) -> None:
    known = sliced.submit(sliced.session(), 16)
    settle(sliced, known)
    waiting = sliced.submit(sliced.session(), *SIZES)
    assert sliced.submit(sliced.session(), 16).result.view == known.result.view
    assert waiting.result is None


def test_rounds_are_settled_one_at_a_time_in_the_order_in_which_they_became_complete(sliced) -> None:
    rounds = [sliced.submit(sliced.session(), *sizes) for sizes in ((16, 32), (32, 48), (16, 48))]
    ends = []
    while len(ends) < len(rounds):
        sliced.coordinator.settle(0.0)
        ends += [taken for taken in rounds if taken.result is not None and taken not in ends]
        assert len(ends) <= 1 or ends == rounds[: len(ends)]
    assert ends == rounds


def test_equal_rounds_that_are_settled_in_turns_share_one_view(sliced) -> None:
    rounds = [sliced.submit(sliced.session(), *SIZES) for _ in range(3)]
    settle(sliced, *rounds)
    assert len({taken.result.view for taken in rounds}) == 1
    assert staged(sliced) == []


def test_a_process_that_comes_back_meanwhile_is_given_what_it_does_not_have(sliced) -> None:
    one, has = sliced.session(), sliced.session()
    view = sliced.submit(sliced.session(), 16)
    settle(sliced, view)
    taken = sliced.submit(one, *SIZES)
    sliced.coordinator.settle(0.0)
    sliced.coordinator.loaded(has, view.result.view)
    sliced.sessions.end(one)
    sliced.handlers.handle(has.identity, has.peer, Follow(round=taken.id), (), 0.0)
    settle(sliced, taken)
    assert taken.result.state is ClientState.INSTALLED
    assert taken.result.view_kernels == len(SIZES) - 1


def test_an_operator_that_is_replaced_meanwhile_is_compiled_anew(sliced) -> None:
    taken = sliced.submit(sliced.session(), *SIZES)
    sliced.coordinator.settle(0.0)
    source = next(sliced.cann.opp.glob("built-in/**/mat_mul_v2.py"))
    source.write_text(source.read_text() + "# another\n")
    before = set(taken.needs)
    sliced.drive(lambda: taken.result is not None, now=10.0)
    assert before.isdisjoint(taken.needs)
    assert (taken.result.state, taken.result.reason) == (ClientState.INSTALLED, Reason.COMPILED)
    assert {told.outcome for told in taken.settlements.values()} == {KeyOutcome.COMPILED}


def test_the_rounds_of_a_large_group_are_put_in_flight_one_after_the_other_and_compiled_together(parts) -> None:
    parts.coordinator.enter_keys = 1
    job = {"run_id": "r", "local_world_size": 3, "world_size": 3}
    rounds = [parts.submit(parts.session(rank=at, **job), 16, 32 + 16 * at) for at in range(3)]
    looks = 0
    while parts.coordinator.entering:
        waiting = sum(taken.state is RoundState.WAITING for taken in rounds)
        assert waiting == len(parts.coordinator.entering)
        assert parts.dispatcher.tick(1.0) >= 1.0, "when to look again is told, also before anything was ever started"
        assert parts.dispatcher.describe(1.0)["jobs"] == [], "no worker is given a part of a group"
        assert parts.coordinator.tick(1.0) >= 1.0
        looks += 1
    assert looks == 2
    parts.dispatcher.tick(1.0)
    assert sum(job["keys"] for job in parts.dispatcher.describe(1.0)["jobs"]) == 4
    parts.drive(lambda: all(taken.result is not None for taken in rounds), now=1.0)


def test_a_fault_in_the_making_of_one_view_keeps_nobody_waiting(sliced, monkeypatch, caplog) -> None:
    def fails(_manifests: object) -> object:
        raise ZeroDivisionError

    broken = sliced.submit(sliced.session(), *SIZES)
    other = sliced.submit(sliced.session(), 16, 32)
    monkeypatch.setattr(sliced.stores.kernels, "directory", fails)
    settle(sliced, broken, other)
    assert (broken.result.state, broken.result.reason) == (ClientState.DEGRADED, Reason.STORE_FAILED)
    assert "internal error" in caplog.text


def test_a_daemon_that_ends_finishes_what_is_being_settled_and_one_that_must_end_leaves_nothing_half_made(sliced) -> None:
    page = SimpleNamespace(draining=False)
    parts = (sliced.stores, sliced.sessions, sliced.coordinator, sliced.dispatcher, sliced.handlers)
    draining = Draining(sliced.config, *parts, page, clock=lambda: 100.0)
    taken = sliced.submit(sliced.session(), *SIZES)
    sliced.coordinator.settle(0.0)
    draining.begin("a test")
    assert not draining.is_over()
    assert len(staged(sliced)) == 1
    sliced.coordinator.settling.stop()
    assert staged(sliced) == []
    assert [entry.round for entry in sliced.stores.rounds.pending()] == [taken.id]
    assert draining.is_over()


def test_progress_of_a_round_that_is_being_settled_says_that_all_its_kernels_are_there(sliced) -> None:
    session = sliced.session()
    taken = sliced.submit(session, *SIZES)
    reply, _ = sliced.handlers.handle(session.identity, session.peer, Follow(round=taken.id), (), 1.0)
    assert (reply.done, reply.total, reply.result) == (len(SIZES), len(SIZES), None)
    assert session.identity in sliced.handlers.followers[taken.id]
