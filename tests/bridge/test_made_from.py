from __future__ import annotations

import dataclasses
import enum

import torch

from npgxd.bridge import made_from
from npgxd.bridge.made_from import arguments, attributes_of, classes_of, tensors_of, told


@dataclasses.dataclass
class Meta:
    data: torch.Tensor
    is_prompt: bool
    request: str = ""


class Plain:
    def __init__(self, mode):
        self.mode, self.noise = mode, object()


class Layer(torch.nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.scale, self.port = scale, 29500
        self.config = Plain("fast")
        self.weight = torch.nn.Parameter(torch.zeros(2, 2))

    def forward(self, x):
        return x * self.scale


class Mode(enum.Enum):
    FAST = Plain("fast")  # whose repr is another one in each process
    SLOW = 1


NAMES = frozenset({"scale", "config", "mode", "forward", "is_prompt"})


def test_an_attribute_counts_where_the_traced_code_names_it():
    layer = Layer()
    before = attributes_of(layer, NAMES)
    layer.port, layer.config.noise = 29501, None
    assert attributes_of(layer, NAMES) == before
    layer.config.mode = "slow"
    assert attributes_of(layer, NAMES) != before
    assert attributes_of(Layer(3.0), NAMES) != before
    assert attributes_of(Layer().eval(), NAMES) != before


def test_what_was_replaced_in_a_class_counts(monkeypatch):
    before = classes_of(Layer(), NAMES)
    assert list(before) == [f"{__name__}:Layer"]
    monkeypatch.setattr(Layer, "forward", lambda self, x: x)
    assert classes_of(Layer(), NAMES) != before


def test_what_dynamo_changes_in_torch_when_it_loads_does_not_count(monkeypatch):
    layer, names = Layer(), NAMES | {"__init__"}
    before = classes_of(layer, names), told(Layer, names)
    monkeypatch.setattr(torch.nn.Module, "__init__", lambda self: None)
    assert (classes_of(layer, names), told(Layer, names)) == before


def test_tied_tensors_are_told_from_equal_ones():
    one, other = torch.nn.Sequential(Layer(), Layer()), torch.nn.Sequential(Layer(), Layer())
    assert tensors_of(one) == tensors_of(other)
    other[1].weight = other[0].weight
    assert tensors_of(one) != tensors_of(other)


def test_arguments_count_by_shape_and_value_and_fields_by_name():
    def lines(meta, *, names=NAMES, dynamic=False):
        return arguments((meta, [torch.zeros(4, 2)]), {"step": 5}, dynamic=dynamic, names=names)

    first = Meta(torch.zeros(4, 2), is_prompt=True, request="a")
    assert lines(first) == lines(Meta(torch.ones(4, 2), is_prompt=True, request="b"))
    assert lines(first) != lines(Meta(torch.zeros(4, 2), is_prompt=False))
    named = NAMES | {"data"}
    longer = Meta(torch.zeros(6, 2), is_prompt=True)
    assert lines(first, names=named) != lines(longer, names=named)
    assert lines(first, names=named, dynamic=True) == lines(longer, names=named, dynamic=True)
    assert arguments((3,), {}, dynamic=False) != arguments((4,), {}, dynamic=False)
    assert arguments((3,), {}, dynamic=True) == arguments((4,), {}, dynamic=True) != arguments((1,), {}, dynamic=True)
    assert arguments((Plain("a"),), {}, dynamic=False, names=NAMES) != arguments((Plain("b"),), {}, dynamic=False, names=NAMES)


def test_values_are_told_with_their_type_and_what_has_no_value_is_not_told():
    assert told(1, NAMES) != told(True, NAMES) != told(1.0, NAMES)
    assert told({"b": {2, 1}}, NAMES) == told({"b": {1, 2}}, NAMES)
    assert told("x" * 1000, NAMES) != told("x" * 1001, NAMES)
    assert told(torch.float16, NAMES) == "dtype torch.float16"
    assert told(Mode.FAST, NAMES) == f"{__name__}:Mode FAST None"
    assert told(Mode.SLOW, NAMES) == f"{__name__}:Mode SLOW int 1"
    assert told(torch, NAMES) is told(torch.zeros(1), NAMES) is None
    assert told(made_from, frozenset({"_MANY"})) != told(made_from, frozenset({"_LONG"}))
    assert told(lambda: 1, NAMES) != told(lambda: 2, NAMES)
