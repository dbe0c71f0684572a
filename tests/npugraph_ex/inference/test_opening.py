"""The daemon's part of a first call, with a stand-in that answers as it is told: builders, hits, chains, refusals."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from npgxd.client.artifacts import MAX_CHAIN
from npgxd.client.lookup import Found
from npgxd.wire.states import ArtifactState
from npugraph_ex.inference import opening
from npugraph_ex.inference.container import pack
from npugraph_ex.inference.opening import Opening, Plan
from npugraph_ex.inference.wrapped import CachedMethod
from npugraph_ex.options import OptionError, read_options


@dataclass
class Daemon:
    """Keeps what is published, and every word that it was told."""

    entries: dict[str, bytes] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    told: list[tuple] = field(default_factory=list)
    alone: str = ""

    def lookup(self, key, label="", *, deadline_s=0, on_wait=None):
        self.told.append(("lookup", key, label))
        if key in self.refused:
            return Found(state=ArtifactState.NOT_CACHEABLE, code="random", reason=self.refused[key])
        if key in self.entries:
            data = self.entries[key]
            return Found(state=ArtifactState.HIT, data=data, digest=hashlib.sha256(data).hexdigest())
        return Found(state=ArtifactState.MISS, alone=bool(self.alone), code=self.alone)

    def publish(self, key, data, *, label="", meta=None):
        self.told.append(("publish", key, label))
        self.entries[key] = data

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.told.append((name, *args))

    def words(self):
        return [name for name, *_ in self.told]


class Net(nn.Module):
    def __init__(self, factor=2):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    def method(self, x):
        return self.linear(x) * self.factor

    def random(self, x):
        return torch.rand_like(x)

    def ran(self, x):
        self.linear.weight.data.add_(0)
        return x + 1


@pytest.fixture
def daemon():
    return Daemon()


@pytest.fixture
def begin(daemon, tmp_path):
    number = iter(range(100))

    def wrap(method, place=None, **plan):
        base = tmp_path / (place or f"start{next(number)}")
        base.mkdir(exist_ok=True)
        told = {"options": read_options(None), "dynamic": True, "base": base, "connect": lambda: daemon} | plan
        return CachedMethod(method, Plan(**told))

    return wrap


X = torch.ones(2, 4)


def test_the_builder_publishes_before_its_first_run_and_the_next_start_has_it_from_the_daemon(begin, daemon, monkeypatch):
    order = []
    bind = opening.entry.Entry.bind

    def bound(self, *args, **kwargs):
        run = bind(self, *args, **kwargs)
        return lambda *given: (order.append(daemon.words()[-1]), run(*given))[1]

    monkeypatch.setattr(opening.entry.Entry, "bind", bound)
    net = Net()
    first, second = begin(net.method), begin(Net().method)
    assert torch.equal(first(X), net.method(X))
    assert order == ["publish"]
    second(X)
    assert (first.origin, second.origin) == ("compiled", "daemon")
    assert daemon.words() == ["lookup", "publish", "lookup", "proven"]
    assert second.path.read_bytes() == first.path.read_bytes()  # the documented file is there as well
    third = begin(Net().method, place=second._plan.base.name)
    third(X)
    assert third.origin == "file"
    assert len(daemon.told) == 4  # a file that fits asks nobody


def test_every_rank_asks_for_the_same_entry(begin, daemon, monkeypatch):
    for rank in (0, 3):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setenv("RANK", str(rank))
        cached = begin(Net().method)
        cached(X)
        assert f"world4global_rank{rank}" in str(cached.path)
    assert len(daemon.entries) == 1


def test_an_entry_that_does_not_fit_leads_everybody_with_that_misfit_to_the_same_next_key(begin, daemon):
    for factor in (2, 3, 4):
        net = Net(factor)
        assert torch.equal(begin(net.method)(X), net.method(X))
    assert len(daemon.entries) == 3
    for factor in (4, 3, 2):
        net = Net(factor)
        cached = begin(net.method)
        assert torch.equal(cached(X), net.method(X))
        assert cached.origin == "daemon"
    notes = [word for word in daemon.told if word[0] == "cache_note"]
    assert notes
    assert all(word[3] == "MISFIT" and "factor" in word[4] for word in notes)


def test_a_chain_of_misfits_ends(begin, daemon, monkeypatch):
    monkeypatch.setattr(opening, "MAX_CHAIN", 2)
    assert MAX_CHAIN > 2
    for factor in (2, 3, 4, 5):
        net = Net(factor)
        assert torch.equal(begin(net.method)(X), net.method(X))
    assert len(daemon.entries) == 2


def test_fc07_a_daemons_entry_that_cannot_be_loaded_is_reported_and_built_here(begin, daemon, caplog):
    net = Net()
    begin(net.method)(X)
    [key] = daemon.entries
    for bad in (b"nonsense", pack({"header": b"{}"})):
        daemon.entries[key] = bad
        cached = begin(net.method)
        assert torch.equal(cached(X), net.method(X))
        assert cached.origin == "compiled"
        assert daemon.told[-1][:3] == ("bad_artifact", key, hashlib.sha256(bad).hexdigest())
        assert daemon.entries[key] == bad  # not this process's to replace
    assert "cannot be loaded" in caplog.text


def test_a_fault_of_ours_in_loading_costs_a_compilation_and_no_call(begin, daemon, monkeypatch, caplog):
    net = Net()
    begin(net.method, place="one")(X)
    check, times = opening.CallCheck, iter(range(100))

    def breaks(*args):
        if next(times) < 2:  # the file's, and the daemon's
            raise ZeroDivisionError("ours")
        return check(*args)

    monkeypatch.setattr(opening, "CallCheck", breaks)
    cached = begin(net.method, place="one")
    assert torch.equal(cached(X), net.method(X))
    assert cached.origin == "compiled"
    assert "ZeroDivisionError: ours" in caplog.text


def test_fc05_what_cannot_be_cached_is_remembered_with_its_reason_and_not_tried_again(begin, daemon):
    first = begin(Net().random)
    first(X)
    [word] = [word for word in daemon.told if word[0] == "not_cacheable"]
    assert word[2] == "RANDOM"
    assert "random numbers" in word[3]
    daemon.refused[word[1]] = word[3]
    second = begin(Net().random)
    assert second(X).shape == X.shape
    assert second.reason == word[3]
    assert daemon.words()[-1] == "lookup"


def test_a_build_that_fails_lets_those_who_wait_go_on(begin, daemon, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("the compiler broke")

    monkeypatch.setattr(opening.making, "made", broken)
    net = Net()
    cached = begin(net.method)
    assert torch.equal(cached(X), net.method(X))
    assert daemon.words() == ["lookup", "release"]
    assert "the compiler broke" in cached.reason

    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(opening.making, "made", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begin(net.method)(X)
    assert daemon.words()[-1] == "release"
    monkeypatch.undo()
    table = {torch.ops.aten.mul.Tensor: lambda one, other: one * other}
    with pytest.raises(OptionError, match="never end"):
        begin(net.method, decompositions=table)(X)
    assert daemon.words()[-1] == "release"


@pytest.mark.parametrize("code", ["NO_DAEMON", "SILENT", "REFUSED"])
def test_without_a_daemon_nothing_is_said_to_it(begin, daemon, code):
    daemon.alone = code
    net = Net()
    assert torch.equal(begin(net.method)(X), net.method(X))
    assert daemon.words() == ["lookup"]


def test_a_builder_whose_deadline_passed_still_publishes(begin, daemon):
    daemon.alone = "DEADLINE"
    begin(Net().method)(X)
    assert daemon.words() == ["lookup", "publish"]


def test_the_key_knows_the_structure_of_arguments_and_no_ranks_or_paths(begin, daemon, monkeypatch, tmp_path):
    def key(x, **plan):
        daemon.told.clear()
        daemon.entries.clear()
        begin(Net().method, **plan)(x)
        return daemon.told[0][1]

    plain = key(X)
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setenv("MASTER_PORT", "12345")
    monkeypatch.chdir("/")
    assert key(X) == plain
    assert key(torch.ones(3, 4)) == plain  # a size that may be symbolic
    assert key(torch.ones(1, 4)) != plain
    assert key(torch.ones(2, 4, dtype=torch.float64).to(torch.float32), dynamic=False) != plain
    assert Opening is not None
