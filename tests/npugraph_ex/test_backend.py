from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own habit
from torch import nn

import npugraph_ex
from npgxd.wire.states import ClientState, Reason
from npugraph_ex.compiling import compile_graph

ON = {"static_kernel_compile": True}


class Decoder(nn.Module):
    """A decode step with everything that makes recording delicate: a cache that is updated in place, views, attention."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.Parameter(torch.rand(width) + 0.5)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * width)
        self.gate = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.register_buffer("cache", torch.zeros(2, 8, 16, width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x, position):
        batch, width = x.shape
        self.steps.add_(1)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
        key, value = self.kv(y).chunk(2, -1)
        self.cache[0, :batch, position] = key
        self.cache[1, :batch, position] = value
        query = self.q(y).view(batch, self.heads, 1, -1)
        keys, values = (side[:batch].view(batch, 16, self.heads, -1).transpose(1, 2) for side in self.cache)
        attended = F.scaled_dot_product_attention(query, keys, values)
        x = x + attended.reshape(batch, width)
        return x + self.down(F.silu(self.gate(x)))


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model = Decoder()
    return model, copy.deepcopy(model)


def test_static_shapes_equal_eager_and_each_call_advances_state_once(client, pair):
    model, eager = pair
    compiled = torch.compile(model, backend="npugraph_ex", options=ON, dynamic=False, fullgraph=True)
    with torch.no_grad():
        for step, batch in enumerate((2, 4, 2, 4)):
            x = torch.randn(batch, 32)
            assert torch.equal(compiled(x, 3), eager(x, 3))
            assert torch.equal(model.cache, eager.cache)
            assert model.steps.item() == step + 1
    first, second = npugraph_ex.static_kernel_report()
    assert [report.graph for report in (first, second)] == ["0", "1"]
    assert all(report.outcome.state is ClientState.INSTALLED for report in (first, second))
    assert first.undescribed == ()
    assert [name for name, _ in first.submitted] != [name for name, _ in second.submitted]
    assert len(client.rounds) == 2


def test_one_dynamic_graph_records_each_batch_size_once(client, pair):
    model, eager = pair
    compiled = torch.compile(model, backend="npugraph_ex", options=ON, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for batch in (2, 4, 2, 5, 4):
            x = torch.randn(batch, 32)
            assert torch.allclose(compiled(x, 3), eager(x, 3), atol=1e-6)
            assert torch.equal(model.steps, eager.steps)
    assert sorted(report.graph for report in npugraph_ex.static_kernel_report()) == [
        "0[2,3]",
        "0[4,3]",
        "0[5,3]",
    ]  # the position is a symbol too


@pytest.mark.parametrize(("wanted", "graphs"), [([4], ["0[4]"]), ([9], []), (None, ["0[2]", "0[4]"])])
def test_a_symbolic_range_limits_what_is_recorded(client, wanted, graphs):
    options = ON | {"_vllm_aclnn_static_kernel_sym_range": wanted}
    compiled = torch.compile(lambda x: x * 2, backend="npugraph_ex", options=options, dynamic=True, fullgraph=True)
    for batch in (2, 4, 2):
        x = torch.randn(batch, 3)
        assert torch.equal(compiled(x[:, :]), x * 2)
    told = [report.graph for report in npugraph_ex.static_kernel_report()]
    assert [graph.split(",")[0].removesuffix("]") for graph in told] == [graph.removesuffix("]") for graph in graphs]


def test_capture_limit_bounds_the_shapes_of_a_graph(client, caplog):
    options = ON | {"capture_limit": 2}
    compiled = torch.compile(lambda x: x * 2, backend="npugraph_ex", options=options, dynamic=True, fullgraph=True)
    for batch in (2, 3, 4, 5):
        compiled(torch.randn(batch, 3))
    assert len(client.rounds) == 2
    assert sum("capture_limit" in record.getMessage() for record in caplog.records if record.name == "npugraph_ex") == 1


def test_a_random_generator_advances_once(client):
    def model(x):
        return F.dropout(x, 0.5, training=True) + torch.rand_like(x)

    compiled = torch.compile(model, backend="npugraph_ex", options=ON, fullgraph=True)
    x = torch.ones(64)
    for _ in range(2):
        torch.manual_seed(7)
        expected, state = model(x), torch.get_rng_state()
        torch.manual_seed(7)
        assert torch.equal(compiled(x), expected)
        assert torch.equal(torch.get_rng_state(), state)
    assert len(client.rounds) == 1


def test_training_records_forward_and_backward_and_gradients_equal_eager(client):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 4))
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="npugraph_ex", options=ON, dynamic=False, fullgraph=True)
    x, target = torch.randn(3, 8), torch.tensor([0, 1, 2])
    for _ in range(2):
        for one in (compiled, eager):
            torch.manual_seed(1)
            F.cross_entropy(one(x), target).backward()
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)
    reports = npugraph_ex.static_kernel_report()
    assert [report.graph for report in reports] == ["0.forward", "0.backward"]
    assert all(report.submitted and not report.undescribed for report in reports)


def test_without_the_option_nothing_is_recorded(client, outputs_root):
    compiled = torch.compile(lambda x: x * 2, backend="npugraph_ex", options={"force_eager": True}, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert npugraph_ex.static_kernel_report() == ()
    assert client.told == []
    assert not outputs_root.exists()


def test_an_error_in_the_model_is_the_users_and_the_next_call_records(client):
    def model(x, index):
        return x[index] * 2

    compiled = torch.compile(model, backend="npugraph_ex", options=ON, fullgraph=True)
    x = torch.randn(4)
    with pytest.raises(IndexError, match="out of"):
        compiled(x, torch.tensor([9]))
    assert client.rounds == []
    assert client.told[-1] == ("report", (ClientState.CONNECTED, "", "0"))
    assert torch.equal(compiled(x, torch.tensor([1])), x[1:2] * 2)
    assert len(client.rounds) == 1


def test_tuples_lists_and_dictionaries_come_back(client):
    def model(x):
        return {"a": x + 1, "b": [x * 2, (x - 1, None)]}, x

    x = torch.randn(3)
    result, same = torch.compile(model, backend="npugraph_ex", options=ON, fullgraph=True)(x)
    assert torch.equal(result["b"][1][0], x - 1)
    assert same is x


def test_two_threads_record_two_graphs(client):
    results = {}

    def work(function):
        compiled = torch.compile(function, backend="npugraph_ex", options=ON, fullgraph=True)
        results[function] = [compiled(torch.ones(4)) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(function,)) for function in (torch.exp, torch.sin)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for function, got in results.items():
        assert all(torch.equal(one, function(torch.ones(4))) for one in got)
    assert sorted(report.graph for report in npugraph_ex.static_kernel_report()) == ["0", "1"]


def test_without_a_daemon_there_is_one_warning_and_the_results_are_right(monkeypatch, tmp_path, caplog):
    from npgxd.client import Client, Patience

    alone = Client({"NPGXD_SOCKET": str(tmp_path / "npgxd.sock")}, patience=Patience())
    monkeypatch.setattr("npugraph_ex.static_kernels.current", lambda: alone)
    for function in (torch.exp, torch.sin):
        compiled = torch.compile(function, backend="npugraph_ex", options=ON, fullgraph=True)
        x = torch.rand(4)
        assert torch.equal(compiled(x), function(x))
    states = [(report.outcome.state, report.outcome.reason) for report in npugraph_ex.static_kernel_report()]
    assert states == [(ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE)] * 2
    warnings = [record for record in caplog.records if record.levelno >= 30 and record.name.startswith(("npgxd", "npugraph_ex"))]
    assert len(warnings) == 1


def test_a_graph_that_will_ask_for_static_kernels_begins_to_look_at_cann_before_it_is_compiled(client, monkeypatch):
    done, real = [], compile_graph
    monkeypatch.setattr("npgxd.client.Client.look_early", lambda _: done.append("looked"))
    monkeypatch.setattr(
        "npugraph_ex.backend.compile_graph", lambda *args, **named: done.append("compiled") or real(*args, **named)
    )
    for options in (ON, {}):
        torch.compile(lambda x: x + 1, backend="npugraph_ex", options=options)(torch.zeros(2))
        torch._dynamo.reset()
    assert done == ["looked", "compiled", "compiled"]
