"""``static_kernel_wait``: who waits, for how long, and how a graph that did not changes to its kernels."""

from __future__ import annotations

import logging
import threading

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import npugraph_ex
from npgxd.client.background import Place
from npgxd.wire.states import ClientState, Reason
from npugraph_ex import collectives, late
from npugraph_ex.collectives import Collectives, collectives_of, place_of
from npugraph_ex.engines import ReselectFailed
from npugraph_ex.engines._eager import EagerEngine, EagerRunner
from npugraph_ex.loading import Loads

BACKGROUND = {"static_kernel_compile": True, "static_kernel_wait": "background"}


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """What a device is asked for, in order: views loaded, captures dropped, and runs."""
    acts: list[object] = []
    usual = EagerRunner.__call__

    def run(self, inputs, observers=()):
        acts.append("run")
        return usual(self, inputs, observers)

    monkeypatch.setattr("npugraph_ex.late.LOADS", loads := Loads())
    monkeypatch.setattr("npugraph_ex.settling.LOADS", loads)
    monkeypatch.setattr("npugraph_ex.static_kernels.LOADS", loads)
    monkeypatch.setattr(EagerEngine, "reselect", lambda _self, view: acts.append(view) or "loaded")
    monkeypatch.setattr(EagerRunner, "renew", lambda _self: acts.append("renew"))
    monkeypatch.setattr(EagerRunner, "__call__", run)
    return acts


def compiled(options=BACKGROUND, function=torch.exp):
    return torch.compile(function, backend="npugraph_ex", options=options, fullgraph=True, dynamic=False)


def only_report():
    (report,) = npugraph_ex.static_kernel_report()
    return report


def test_the_graph_runs_at_once_and_changes_before_the_call_that_is_due(client, device, tmp_path, caplog):
    caplog.set_level(logging.INFO, "npugraph_ex")
    model, x = compiled(), torch.rand(3)
    for _ in range(3):
        assert torch.equal(model(x), torch.exp(x))
    report = only_report()
    assert (report.outcome.state, report.outcome.reason) == (ClientState.QUEUED, Reason.IN_BACKGROUND)
    assert client.told == [("recording", "0"), ("submitted", "0")]
    client.ready(view=tmp_path)
    assert only_report().outcome.reason is Reason.CHANGE_PENDING
    assert device == ["run"] * 3
    model(x)
    assert device == ["run"] * 3 + [tmp_path, "renew", "run"]
    client.end()
    report = only_report()
    assert (report.outcome.state, report.changed_at) == (ClientState.INSTALLED, 4)
    assert any("INSTALLED" in line and "in use since call 4" in line for line in caplog.messages)
    model(x)
    assert device[-1] == "run"
    assert device.count("renew") == 1


def test_the_documented_tree_is_written_all_the_same(client, tmp_path, outputs_root):
    package = tmp_path / "a.run"
    package.write_bytes(b"#!/bin/sh\n")
    compiled()(torch.rand(3))
    client.ready(packages=(("static_kernel_1.run", package),))
    assert (only_report().outputs / "static_kernel_1.run").exists()
    assert only_report().outputs.parent == outputs_root


def test_what_was_leased_before_is_loaded_before(client, device, tmp_path):
    """The second round's view does not hold what the first one's does: the process was taken to have that."""
    first, second, x = compiled(), compiled(function=torch.sin), torch.rand(3)
    first(x)
    second(x)
    client.rounds[0]["change"].calls.begun += 100  # the first graph is not called for a long time
    client.ready(0, view=tmp_path / "first")
    client.ready(1, view=tmp_path / "second")
    second(x)
    assert device[2:] == [tmp_path / "first", tmp_path / "second", "renew", "run"]
    first(x)
    assert device[6:] == ["renew", "run"]


def test_a_view_that_cannot_be_loaded_is_that_graphs_state(client, device, monkeypatch, tmp_path):
    def refuse(_self, _view):
        raise ReselectFailed("the runtime said no", hint="Restart")

    monkeypatch.setattr(EagerEngine, "reselect", refuse)
    model, x = compiled(), torch.rand(3)
    model(x)
    client.ready(view=tmp_path)
    assert torch.equal(model(x), torch.exp(x))
    assert client.end().reason is Reason.RESELECT_FAILED
    assert only_report().outcome.detail == "the runtime said no"


def test_each_shape_of_a_dynamic_graph_changes_for_itself(client, device, tmp_path):
    model = torch.compile(torch.exp, backend="npugraph_ex", options=BACKGROUND, fullgraph=True, dynamic=True)
    model(torch.rand(3))
    model(torch.rand(5))
    assert [asked["graph"] for asked in client.rounds] == ["0[3]", "0[5]"]
    client.ready(1, view=tmp_path)
    model(torch.rand(3))
    assert device[-3:] == [tmp_path, "renew", "run"]


def test_a_number_is_a_deadline_and_the_variable_counts_before_the_option(client, monkeypatch):
    compiled({"static_kernel_compile": True, "static_kernel_wait": 30})(torch.rand(3))
    assert 29 < client.rounds[0]["deadline_s"] <= 30
    monkeypatch.setenv("NPGXD_WAIT", "block")
    torch._dynamo.reset()
    compiled(BACKGROUND)(torch.rand(3))
    assert client.rounds[1]["deadline_s"] is None
    monkeypatch.setenv("NPGXD_WAIT", "background")
    torch._dynamo.reset()
    compiled({"static_kernel_compile": True})(torch.rand(3))
    assert "change" in client.rounds[2]


def test_fc71_a_daemon_that_does_not_say_what_it_is_delays_the_first_run_for_a_moment_only(client, monkeypatch):
    silence = threading.Event()
    monkeypatch.setattr(client, "welcome", lambda: silence.wait(60) and None)
    monkeypatch.setattr(late, "HELLO_S", 0.05)
    monkeypatch.setattr("npugraph_ex.static_kernels.answered", lambda ask, otherwise: late.answered(ask, otherwise, 0.05))
    x = torch.rand(3)
    assert torch.equal(compiled()(x), torch.exp(x))
    assert client.told == [("submitted", "0")]
    silence.set()


# ---- collectives -----------------------------------------------------------------------------------------------------


def exchange(x):
    y = torch.ops._c10d_functional.all_reduce.default(x, "sum", "tp")
    return torch.ops._c10d_functional.wait_tensor.default(y) + 1


@pytest.fixture
def groups(monkeypatch):
    known = {"tp": [2, 3]}
    monkeypatch.setattr(collectives, "_ranks_of", lambda name: known.get(name, []))
    monkeypatch.setattr(collectives, "_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 16)
    return known


def graph_of(function):
    return make_fx(function, tracing_mode="fake")(torch.rand(3))


def test_a_graph_without_collectives_has_no_partners():
    found = collectives_of(graph_of(lambda x: torch.broadcast_to(x, (2, 3)).exp()))
    assert not found
    assert place_of(found) == Place(rank=0, alone=True)


def test_a_rank_of_several_is_not_alone_although_its_graph_is(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert place_of(Collectives()) == Place(rank=1)


def test_the_partners_are_the_ranks_of_the_graphs_process_groups(groups):
    found = collectives_of(graph_of(exchange))
    assert found == Collectives(frozenset({"tp"}))
    assert place_of(found) == Place(rank=2, partners=(2, 3))


def test_where_the_group_cannot_be_told_all_ranks_are_partners(groups):
    groups.clear()
    found = collectives_of(graph_of(exchange))
    assert found == Collectives(unnamed=True)
    assert place_of(found).partners == tuple(range(16))


def test_an_operator_of_another_library_that_exchanges_data_counts(groups):
    @torch.library.custom_op("npugraph_ex_late::all_gather_and_cast", mutates_args=())
    def gather(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    gather.register_fake(torch.empty_like)
    assert collectives_of(graph_of(lambda x: gather(x) + 1)).unnamed


def test_more_ranks_than_a_node_has_do_not_agree(groups):
    groups["tp"] = list(range(5000))
    assert "5000 ranks" in place_of(collectives_of(graph_of(exchange))).problem


def test_without_torch_distributed_there_is_no_box_to_vote_in(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "no torch.distributed store" in place_of(Collectives(unnamed=True)).problem


def test_a_vote_counts_once_for_all(monkeypatch):
    store = torch.distributed.HashStore()
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda: store)
    assert collectives.vote("a" * 32, True) is True
    assert collectives.vote("a" * 32, False) is True
    assert collectives.vote("b" * 32, False) is False
    assert collectives.vote("b" * 32, True) is False


def test_a_store_that_fails_is_a_vote_for_staying(monkeypatch):
    def gone():
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", gone)
    assert collectives.vote("a" * 32, True) is False
