"""Two threads at one graph: the one that calls it, and the one that talks to the daemon."""

from __future__ import annotations

import os
import threading

import pytest

from npgxd.client.changing import Calls, Change

BALLOT, OTHER = "a" * 32, "b" * 32
FOREVER_S = 60.0


def call(calls: Calls, times: int = 1) -> list[Change]:
    """Begin this many calls; the changes that were made before the last."""
    taken: list[Change] = []
    for _ in range(times):
        taken = calls.take() if calls.begin() else []
        for change in taken:
            change.made()
    return taken


def in_thread(calls: Calls) -> tuple[threading.Thread, list[list[Change]]]:
    results: list[list[Change]] = []
    thread = threading.Thread(target=lambda: results.append(call(calls)))
    thread.start()
    return thread, results


def votes(box=None):
    return (box if box is not None else {}).setdefault


@pytest.fixture
def calls():
    return Calls()


def test_a_call_at_which_nothing_is_due_takes_no_lock(calls):
    Change(calls, vote=votes())
    with calls._lock:  # would not be given twice
        assert not calls.begin()
    assert calls.begun == 1


def test_with_nobody_to_agree_with_the_next_call_changes(calls):
    change = Change(calls)
    assert call(calls, 3) == []
    change.make_alone()
    assert call(calls) == [change]
    assert (change.made_at, change.is_over) == (4, True)
    assert call(calls, 5) == []


def test_all_armed_and_decided_it_changes_at_that_call_and_not_before(calls):
    change = Change(calls, vote=votes())
    call(calls, 2)
    assert change.arm(BALLOT, 5)
    assert change.commit(BALLOT)
    assert call(calls, 2) == []
    assert call(calls) == [change]
    assert change.made_at == 5


@pytest.mark.parametrize("at", [1, 2])
def test_a_call_that_has_begun_cannot_be_promised(calls, at):
    change = Change(calls, vote=votes())
    call(calls, 2)
    assert not change.arm(BALLOT, at)
    assert call(calls, 3) == []


def test_without_collectives_a_promised_call_needs_no_decision_and_no_wait(calls):
    change = Change(calls, decision_s=FOREVER_S)
    assert change.arm(BALLOT, 2)
    change.make_alone()  # the daemon is gone: the others are at that call, too
    assert call(calls) == []
    assert call(calls) == [change]


def test_a_rank_that_hears_of_no_decision_in_time_stays_as_the_others_do(calls):
    box = {}
    change = Change(calls, vote=votes(box), decision_s=0)
    assert change.arm(BALLOT, 1)
    assert call(calls) == []
    assert box == {BALLOT: False}
    assert change.is_over
    assert "no decision" in change.reason
    assert not change.commit(BALLOT)
    assert not change.arm(OTHER, 9)


def test_the_first_vote_counts_for_a_rank_that_heard_of_no_decision(calls):
    change = Change(calls, vote=votes({BALLOT: True}), decision_s=0)
    assert change.arm(BALLOT, 1)
    assert call(calls) == [change]


def test_the_first_vote_counts_for_a_rank_that_heard_of_the_decision(calls):
    change = Change(calls, vote=votes({BALLOT: False}))
    assert change.arm(BALLOT, 1)
    assert change.commit(BALLOT)
    assert call(calls) == []
    assert change.is_over


def test_a_rank_at_the_call_waits_for_the_decision_and_goes_on_with_it(calls):
    change = Change(calls, vote=votes(), decision_s=FOREVER_S)
    assert change.arm(BALLOT, 1)
    thread, results = in_thread(calls)
    while not change.is_awaited:
        change.wait(0.01)
    assert change.commit(BALLOT)
    thread.join(FOREVER_S)
    assert results == [[change]]


def test_a_rank_that_waits_goes_on_when_another_call_is_proposed(calls):
    change = Change(calls, vote=votes(), decision_s=FOREVER_S)
    assert change.arm(BALLOT, 1)
    thread, results = in_thread(calls)
    while not change.is_awaited:
        change.wait(0.01)
    assert change.arm(OTHER, 3)
    thread.join(FOREVER_S)
    assert results == [[]]
    assert change.commit(OTHER)
    assert not change.commit(BALLOT)
    assert call(calls) == []
    assert call(calls) == [change]


def test_a_withdrawn_promise_is_kept_with_a_vote_for_staying_and_without_a_wait(calls):
    box = {}
    change = Change(calls, vote=votes(box), decision_s=FOREVER_S)
    assert change.arm(BALLOT, 2)
    change.withdraw("the daemon is gone")
    assert not change.is_over
    assert call(calls, 2) == []
    assert box == {BALLOT: False}
    assert (change.is_over, change.reason) == (True, "the daemon is gone")


def test_a_decision_is_not_taken_back(calls):
    change = Change(calls, vote=votes())
    assert change.arm(BALLOT, 2)
    assert change.commit(BALLOT)
    assert not change.arm(OTHER, 7)
    assert call(calls, 2) == [change]


def test_several_changes_of_a_graph_each_have_their_call(calls):
    first, second = Change(calls), Change(calls)
    assert first.arm(BALLOT, 2)
    assert second.arm(OTHER, 3)
    assert call(calls, 2) == [first]
    assert call(calls) == [second]


def test_a_forked_child_goes_on_without_what_its_parents_thread_was_to_decide(calls):
    change = Change(calls, vote=votes(), decision_s=FOREVER_S)
    assert change.arm(BALLOT, 1)
    with calls._lock, change._said:  # as the parent's other thread may hold them at that moment
        child = os.fork()
        if child == 0:
            own = Change(calls)  # of a shape that the child is the first to call
            own.make_alone()
            os._exit(0 if call(calls) == [own] and call(calls) == [] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
