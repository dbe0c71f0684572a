from __future__ import annotations

import pytest
import torch
from torch import fx

from npugraph_ex.inference.devices import make_relative, relative
from npugraph_ex.inference.facts_values import encode
from npugraph_ex.inference.source import written


@pytest.fixture(autouse=True)
def _second_device_is_current(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


def test_only_the_current_device_loses_its_number():
    for told, expected in (
        ("cuda:1", "cuda"),
        ("cuda:0", "cuda:0"),
        ("cuda", "cuda"),
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
    ):
        assert str(relative(torch.device(told))) == expected


def test_ranks_on_different_devices_write_the_same_graph(monkeypatch):
    def text(number):
        monkeypatch.setattr(torch.cuda, "current_device", lambda: number)
        graph = fx.Graph()
        made = graph.call_function(torch.ops.aten.zeros.default, ([2],), {"device": torch.device("cuda", number)})
        other = graph.call_function(torch.ops.aten.zeros.default, ([2],), {"device": torch.device("cuda", 7)})
        graph.output([made, [other]])
        module = fx.GraphModule(torch.nn.Module(), graph)
        make_relative(module)
        return written(module).source

    assert text(0) == text(3)
    assert "device(type='cuda')" in text(0)
    assert "index=7" in text(0)


def test_facts_of_ranks_on_different_devices_are_equal(monkeypatch):
    def told(number):
        monkeypatch.setattr(torch.cuda, "current_device", lambda: number)
        return encode(torch.device("cuda", number)), encode(torch.device("cuda", 5))

    assert told(0) == told(3)
    assert told(5) != told(3)
