"""Ranks agree on a capture: in every interleaving all of them capture, or none does."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from npgxd.client.background import Place
from npugraph_ex.capture.agreement import Ballots


@pytest.fixture
def vote():
    """Let ranks of one job vote, each in a thread; ``words`` are (what it captures, whether it could)."""
    store = dist.HashStore()
    ballots = [Ballots(patience_s=60) for _ in range(3)]

    def voted(*words, patience_s=None):
        decisions = {}

        def rank(number, what, mine):
            if patience_s is not None:
                ballots[number]._patience_s = patience_s
            place = Place(rank=number, partners=(0, 1, 2))
            decisions[number] = ballots[number].agree(place, what, mine, store=store)

        threads = [threading.Thread(target=rank, args=(number, *word)) for number, word in enumerate(words)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return decisions

    return voted


def test_all_capture_what_all_can_capture(vote):
    assert vote(("a", True), ("a", True), ("a", True)) == {0: True, 1: True, 2: True}
    assert vote(("b", True), ("b", True), ("b", True)) == {0: True, 1: True, 2: True}


def test_one_that_cannot_means_none_does(vote):
    assert vote(("a", True), ("a", False), ("a", True)) == {0: False, 1: False, 2: False}


def test_ranks_that_are_at_different_shapes_capture_none(vote):
    assert vote(("a", True), ("a", True), ("b", True)) == {0: False, 1: False, 2: False}


def test_a_rank_that_does_not_come_is_waited_for_once(vote):
    assert vote(("a", True), ("a", True), patience_s=0.0) == {0: False, 1: False}
    assert vote(("b", True), ("b", True), patience_s=1e9) == {0: False, 1: False}
