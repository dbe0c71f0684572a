"""What those who follow rounds are told, and when: results at once, news in moderation, and never too much in one go."""

from __future__ import annotations

import itertools

import pytest

from npgxd.daemon.serving.following import NEWS_S, Following
from npgxd.wire import limits
from npgxd.wire.messages import Follow


class Told:
    """The followers of a daemon's rounds, and the events that each was sent."""

    def __init__(self, parts) -> None:
        self.parts = parts
        self.events = []
        self.following = Following(
            parts.handlers.followers,
            parts.coordinator,
            parts.handlers.progresses,
            parts.handlers._lookups,
            lambda identity, event: self.events.append((identity, event)),
        )

    def follow(self, session, taken) -> None:
        self.parts.handlers.handle(session.identity, session.peer, Follow(round=taken.id), (), 0.0)

    def tick(self, now: float) -> float:
        self.events.clear()
        return self.following.tick(now)


@pytest.fixture
def told(parts) -> Told:
    return Told(parts)


def test_news_is_told_at_once_and_more_of_it_a_moment_later_and_all_of_it_every_second(parts, told) -> None:
    session = parts.session()
    taken = parts.submit(session, 16, 32)
    told.follow(session, taken)
    told.tick(10.0)
    assert len(told.events) == 1, "it was queued"
    parts.coordinator.compiling(taken.open_keys, 10.0)
    due = told.tick(10.01)
    assert told.events == []
    assert due == pytest.approx(10.0 + NEWS_S)
    told.tick(due)
    assert [event.state for _, event in told.events] == [taken.state]
    due = told.tick(due + 0.01)
    assert (told.events, due) == ([], 10.0 + limits.PROGRESS_INTERVAL_S)
    told.tick(due)
    assert len(told.events) == 1


def test_a_result_is_told_at_once_and_nothing_after_it(parts, told) -> None:
    session = parts.session()
    taken = parts.submit(session, 16)
    told.follow(session, taken)
    told.tick(10.0)
    parts.drive(lambda: taken.result is not None, now=10.0)
    told.tick(10.01)
    assert [(identity, event.result) for identity, event in told.events] == [(session.identity, taken.result)]
    assert told.tick(20.0) == float("inf")
    assert told.events == []


def test_many_rounds_are_told_of_in_slices_the_settled_ones_first(parts, told) -> None:
    earlier = parts.submit(parts.session(run_id="earlier"), 16)
    parts.drive(lambda: earlier.result is not None)
    told.following._clock = itertools.count().__next__  # one round is a slice
    sessions = [parts.session(run_id=str(number)) for number in range(3)]
    rounds = [parts.submit(session, 32 + 16 * number) for number, session in enumerate(sessions)]
    for session, taken in zip(sessions, rounds, strict=True):
        told.follow(session, taken)
    rounds[2].result = earlier.result  # as if it were settled
    order = []
    for due in (10.0, 10.0, 10.0 + limits.PROGRESS_INTERVAL_S):
        assert told.tick(10.0) == due
        order += [identity for identity, _ in told.events]
    assert order == [sessions[2].identity, sessions[0].identity, sessions[1].identity]
    rounds[2].result = None


def test_a_daemon_that_ends_tells_all_there_is(parts, told) -> None:
    told.following._clock = itertools.count().__next__
    sessions = [parts.session(run_id=str(number)) for number in range(3)]
    for session in sessions:
        told.follow(session, parts.submit(session, 16))
    told.following.tell_all(10.0)
    assert {identity for identity, _ in told.events} == {session.identity for session in sessions}
