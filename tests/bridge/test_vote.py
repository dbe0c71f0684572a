from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from npgxd.bridge import vote
from npgxd.bridge.vote import Scheme


class Job:
    """Ranks of one job on one node, as threads that share a store."""

    def __init__(self, monkeypatch, ranks):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        self.size = ranks
        self.store = dist.HashStore()

    def rank(self, number):
        return SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_world_size=lambda: self.size,
            get_rank=lambda: number,
            distributed_c10d=SimpleNamespace(_get_default_store=lambda: self.store),
        )

    def choose(self, served, patience_s=30.0):
        """What each rank chooses; ``served`` has True, False, or None for one that never comes."""
        chosen = {}

        def come(number, is_served):
            chosen[number] = vote.choose(self.rank(number), served=is_served, patience_s=patience_s)

        coming = [threading.Thread(target=come, args=item) for item in enumerate(served) if item[1] is not None]
        for thread in coming:
            thread.start()
        for thread in coming:
            thread.join()
        return [chosen[number] for number in sorted(chosen)]


@pytest.fixture
def job(monkeypatch):
    return lambda ranks: Job(monkeypatch, ranks)


def test_all_ranks_without_a_daemon_follow_the_bundled_scheme(job):
    assert job(4).choose([False] * 4) == [Scheme.BUNDLED] * 4


STORES = {
    "tcp": lambda _: dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False),
    "file": lambda directory: dist.FileStore(str(directory / "store"), 3),
    "hash": lambda _: dist.HashStore(),
}


@pytest.mark.parametrize("kind", STORES)
def test_every_kind_of_store_holds_a_vote(job, tmp_path, kind):
    for name, served, wanted in (("a", [False] * 3, Scheme.BUNDLED), ("b", [False, True, False], Scheme.ALONE)):
        one = job(3)
        (tmp_path / name).mkdir()
        one.store = dist.PrefixStore("default_pg", STORES[kind](tmp_path / name))
        assert one.choose(served) == [wanted] * 3


@pytest.mark.parametrize("served", [[True, False, False], [False, False, True], [True, True, True], [False, True, False]])
def test_one_served_rank_keeps_all_out_of_the_bundled_scheme(job, served):
    assert job(3).choose(served) == [Scheme.ALONE] * 3


def test_a_rank_that_never_comes_ends_the_vote_and_finds_it_ended(job):
    one = job(3)
    assert one.choose([False, False, None], patience_s=0.2) == [Scheme.ALONE] * 2
    assert one.choose([None, None, False], patience_s=0.2) == [Scheme.ALONE]


def test_a_decision_holds_for_whoever_comes_later(job):
    one = job(2)
    assert one.choose([False, False]) == [Scheme.BUNDLED] * 2
    assert one.choose([True, None]) == [Scheme.BUNDLED]


def test_a_node_with_a_daemon_keeps_the_ranks_of_the_other_nodes_out_too(job, monkeypatch):
    one = job(4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert one.choose([False, False, True, False]) == [Scheme.ALONE] * 4


def test_a_store_that_is_gone_means_alone(job):
    one = job(2)
    one.store = SimpleNamespace(set=lambda *_: (_ for _ in ()).throw(RuntimeError("connection reset")))
    assert one.choose([False, None]) == [Scheme.ALONE]


def test_a_process_of_its_own_decides_for_itself(monkeypatch):
    single = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert vote.choose(single, served=False) is Scheme.BUNDLED
    assert vote.choose(single, served=True) is Scheme.ALONE


def test_ranks_that_cannot_ask_one_another_do_not_enter_the_bundled_scheme(job, monkeypatch):
    apart = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    one = job(2)
    assert vote.choose(apart, served=False) is Scheme.ALONE
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert one.choose([False, False]) == [Scheme.ALONE] * 2
