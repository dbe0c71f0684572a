"""Static kernels of cached graphs: recorded from the stored graph, with the documented outputs beside the entry."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import npugraph_ex
from npgxd.wire.states import ClientState
from npugraph_ex.inference import cache_compile

ON = {"static_kernel_compile": True}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros(()))

    def method(self, x):
        self.steps.add_(1)
        shift = torch.tensor([1.0, 2.0]).repeat(4)
        shift.add_(self.steps)
        return torch.relu(self.linear(x)) + shift, x.sum(-1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def run(model, cache, **options):
    """One start: two calls, each equal to eager; where the graph came from, and the outputs beside the entry."""
    eager = copy.deepcopy(model)
    cached = cache_compile(model.method, cache_dir=cache, options=ON | options, dynamic=False)
    for seed in (1, 2):
        torch.manual_seed(seed)
        x = torch.randn(4, 8)
        got, expected = cached(x), eager.method(x)
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
        assert torch.equal(model.steps, eager.steps)
    return cached, sorted(cached.path.parent.glob("static_kernel_compile_outputs/ts*"))


def records(round_):
    return sorted(json.dumps(json.loads(raw), sort_keys=True) for _, raw in round_["records"])


def test_a_loaded_graph_asks_for_the_kernels_that_the_compiled_one_asked_for(client, model, tmp_path):
    cold, outputs = run(model, tmp_path)
    assert len(outputs) == 1
    warm, outputs = run(model, tmp_path)
    assert (cold.origin, warm.origin) == ("compiled", "file")
    assert len(outputs) == 2
    first, second = client.rounds
    assert records(first) == records(second)
    assert len(first["records"]) > 2
    assert [report.outcome.state for report in npugraph_ex.static_kernel_report()] == [ClientState.INSTALLED] * 2


def test_a_loaded_graph_is_not_recorded_again(client, model, tmp_path, monkeypatch):
    run(model, tmp_path)
    [kept] = tmp_path.rglob("operator_records.*")
    assert kept.stat().st_mode & 0o777 == 0o600

    def never(*_args, **_kwargs):
        raise AssertionError("recorded again")

    with monkeypatch.context() as patched:
        patched.setattr("npugraph_ex.engines._eager.run_observed", never)
        run(model, tmp_path)
    assert records(client.rounds[0]) == records(client.rounds[1])
    kept.write_bytes(kept.read_bytes()[:-1])  # damaged: recorded, and kept, as if there were none
    run(model, tmp_path)
    assert records(client.rounds[2]) == records(client.rounds[0])
    with monkeypatch.context() as patched:
        patched.setattr("npugraph_ex.engines._eager.run_observed", never)
        run(model, tmp_path)
    torch.use_deterministic_algorithms(True)  # other records: another entry, recorded for itself
    try:
        run(model, tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(list(tmp_path.rglob("operator_records.*"))) == 2


def test_its_records_are_those_of_the_same_graph_without_a_cache(client, model, tmp_path):
    class Plain(Net):
        def method(self, x):
            return torch.relu(self.linear(x)).sum(-1)

    plain = Plain()
    cache_compile(plain.method, cache_dir=tmp_path, options=ON, dynamic=False)(torch.randn(4, 8))
    with torch.no_grad():
        torch.compile(plain.method, backend="npugraph_ex", options=ON, dynamic=False, fullgraph=True)(torch.randn(4, 8))
    cached, usual = client.rounds
    assert records(cached) == records(usual)


def test_the_outputs_lie_beside_the_script_where_force_eager_is_on(client, model, tmp_path, outputs_root):
    _, beside = run(model, tmp_path / "cache", force_eager=True)
    assert beside == []
    assert len(list(outputs_root.glob("ts*"))) == 1
    assert len(client.rounds) == 1


def test_beside_an_entry_there_is_no_selected_folder_as_documented(client, model, tmp_path):
    _, [outputs] = run(model, tmp_path)
    suffixes = {folder.name.lstrip("0123456789") for folder in outputs.iterdir() if folder.is_dir()}
    assert suffixes == {"", "_debug", "_opcompile"}
