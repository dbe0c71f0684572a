"""The quick check: it never lets pass what the whole check would not, and takes its parameters as the function does."""

import marshal
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from npugraph_ex.inference import cache_compile, calls, facts_tensors, fit
from npugraph_ex.inference.calls import FITS, CallCheck
from npugraph_ex.inference.calls_source import compiled, prefix_beside, source
from tests.npugraph_ex.inference.facts_made import made


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2

    def positional(self, x, /, _v1, __k2=3, *rest, only, __own="o", **others):
        return (x + _v1 + __k2) * (only + len(__own) + others["z"]) * self.scale + sum(rest)

    def defaults(self, x, k=3, *, flag=True):
        return x + k if flag else x

    def bare(self):
        return torch.ones(2) * self.scale

    def sizes(self, x, n):
        return x.new_zeros(x.shape[0] * 2, n) + x.sum()

    def number(self, x, k):
        return x * k

    def strided(self, x):
        return x.as_strided((2, 2), (2, 1))

    def doubles(self, x, y):
        x.add_(1)
        return x + y


X = torch.ones(3, 4)


def test_every_sort_of_parameter_is_bound_as_the_function_binds_it():
    entry = made(Many(), "positional", X, 1, 3, 4, only=5, z=6)
    check = entry.check()
    for _ in range(2):
        assert check(entry.instance, X, 1, 3, 4, only=5, z=6) == ""
    assert check(entry.instance, X, 1, only=5, z=6).startswith("argument rest had 1 items")
    assert check(entry.instance, X, 1, 3, 4, only=5, z=6, unread=7) == ""
    assert "do not fit the function" in check(entry.instance, X, 1, 3, 4, z=6)


def test_no_parameter_can_hide_a_name_of_the_check():
    assert prefix_beside(["x", "_v1", "__k2"]) == "___"
    assert prefix_beside([]) == "_"


def test_a_call_may_leave_out_what_has_a_default():
    entry = made(Many(), "defaults", X)
    check = entry.check()
    assert [check(entry.instance, X), check(entry.instance, X, 3), check(entry.instance, x=X, k=3, flag=True)] == [""] * 3
    assert "flag was True" in check(entry.instance, X, flag=False)


def test_defaults_that_change_are_noticed():
    entry = made(Many(), "defaults", X)
    check = entry.check()
    assert check(entry.instance, X) == ""
    before = Many.defaults.__kwdefaults__
    Many.defaults.__kwdefaults__ = {"flag": False}
    try:
        assert "flag was True" in check(entry.instance, X)
    finally:
        Many.defaults.__kwdefaults__ = before
    assert check(entry.instance, X) == ""


def test_a_method_without_arguments_is_checked():
    entry = made(Many(), "bare")
    check = entry.check()
    assert check(entry.instance) == ""
    entry.instance.scale = 3
    assert check(entry.instance) == "self.scale was 2, is 3"


@pytest.mark.parametrize(
    ("name", "fits", "not_"), [("sizes", [4, 7], [0, 1, True, 4.0]), ("number", [2.5, -1.0], [2, float("nan"), "2"])]
)
def test_a_number_stays_within_its_range_and_type(name, fits, not_):
    entry = made(Many(), name, X, fits[0])
    check = entry.check()
    assert [check(entry.instance, X, number) for number in fits] == ["", ""]
    assert all(check(entry.instance, X, number) for number in not_)


def test_a_number_is_a_constant_where_nothing_is_dynamic():
    entry = made(Many(), "number", X, 2.5, dynamic=False)
    assert entry.whole(X, 2.5) == ""
    assert entry.whole(X, 2.0) == "argument k was 2.5, is 2.0"
    assert "had shape (3, 4), has (4, 4)" in entry.whole(torch.ones(4, 4), 2.5)


def test_nan_is_nan():
    entry = made(Many(), "number", X, float("nan"))
    check = entry.check()
    assert [check(entry.instance, X, float("nan")) for _ in range(2)] == ["", ""]
    assert check(entry.instance, X, 2.5)


def test_overlap_that_was_traced_must_be_there_again():
    both, other, third = torch.ones(5, 4), torch.ones(5, 4), torch.ones(5, 4)
    entry = made(Many(), "doubles", both[:4], both[1:])
    check = entry.check()
    assert check(entry.instance, other[:4], other[1:]) == ""
    assert check(entry.instance, other[:4], third[1:]) == "argument y and argument x no longer share memory"
    assert check(entry.instance, torch.ones(4, 4), torch.ones(4, 4)) != ""


def test_the_text_is_the_same_each_time_and_can_be_kept(tmp_path):
    entries = [made(Many(), "sizes", X, 4) for _ in range(2)]
    assert entries[0].facts == entries[1].facts
    texts = {source(entry.facts, entry.function.__code__) for entry in entries}
    assert len(texts) == 1
    code = compiled(entries[0].facts, Many.sizes.__code__)
    assert marshal.dumps(code) == marshal.dumps(compiled(entries[1].facts, Many.sizes.__code__))
    again = CallCheck(entries[0].facts, marshal.loads(marshal.dumps(code)), Many.sizes)  # noqa: S302 -- written above
    assert again(entries[0].instance, X, 9) == ""


def test_a_fitting_call_is_quick_from_the_second_on(monkeypatch):
    entry = made(Many(), "sizes", X, 4)
    check = entry.check()
    assert check(entry.instance, X, 4) == ""
    monkeypatch.setattr(calls, "Misfits", None)  # a closer look would fail
    assert check(entry.instance, torch.ones(9, 4), 5) == ""


def test_what_went_back_and_forth_too_often_is_still_judged_rightly():
    entry = made(Many(), "bare")
    check = entry.check()
    for _ in range(12):
        entry.instance.scale = 3
        assert check(entry.instance) != ""
        entry.instance.scale = 2
        assert check(entry.instance) == ""


def test_an_error_inside_the_quick_check_is_a_reason_to_look_closer():
    entry = made(Many(), "sizes", X, 4)
    check = entry.check()
    assert check(entry.instance, X, 4) == ""
    assert "was a tensor, is int" in check(entry.instance, 3, 4)
    assert check._quick(entry.instance, X, 4) == FITS


def test_a_private_storage_format_is_a_fact_on_every_call(monkeypatch):
    """An NPU keeps a weight in a format that shape and strides do not show; here one is told of ordinary tensors."""
    told = {"format": 29}
    for module in (calls, facts_tensors):
        monkeypatch.setattr(module, "storage_format", lambda _tensor: told["format"])
    entry = made(Many(), "doubles", torch.ones(3, 4), torch.ones(3, 4))
    check = entry.check()
    assert [check(entry.instance, torch.ones(3, 4), torch.ones(3, 4)) for _ in range(2)] == ["", ""]
    told["format"] = 2
    assert check(entry.instance, torch.ones(3, 4), torch.ones(3, 4)) == "argument x had format 29, has 2"


def test_the_format_is_asked_of_torch_npu_for_its_devices_alone(monkeypatch):
    asked = []
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(get_npu_format=lambda tensor: asked.append(tensor) or 29))
    tensor = SimpleNamespace(device=SimpleNamespace(type="npu"))
    assert facts_tensors.storage_format(tensor) == 29
    assert asked == [tensor]
    assert facts_tensors.storage_format(torch.ones(2)) is None
    assert len(asked) == 1


def test_a_call_that_does_not_fit_costs_no_whole_check(monkeypatch):
    entry = made(Many(), "sizes", X, 4)
    check = entry.check()
    assert check(entry.instance, X, 4) == ""
    looked = []
    follow = fit.follow
    monkeypatch.setattr(fit, "follow", lambda nodes, roots, wanted=None: looked.append(wanted) or follow(nodes, roots, wanted))
    assert "had dtype" in check(entry.instance, X.double(), 4)
    assert [wanted is not None and len(wanted) <= 2 for wanted in looked] == [True]


def test_a_first_call_that_the_method_does_not_take_decides_nothing(tmp_path):
    cached = cache_compile(Many().sizes, cache_dir=tmp_path)
    with pytest.raises(TypeError, match=r"sizes\(\) missing 1 required positional argument: 'n'"):
        cached(X)
    assert cached.origin == ""
    assert torch.equal(cached(X, 4), Many().sizes(X, 4))
    assert cached.origin == "compiled"


def test_where_a_tensor_begins_in_its_memory_counts_only_for_graphs_that_look():
    whole = torch.ones(9, 4)
    entry = made(Many(), "doubles", whole[2:5], torch.ones(3, 4))
    assert [entry.whole(whole[start : start + 3], torch.ones(3, 4)) for start in (0, 1, 6)] == ["", "", ""]
    assert entry.whole(torch.ones(5, 7), torch.ones(5, 7)) == ""
    looking = made(Many(), "strided", whole[2:5])
    assert looking.whole(whole[2:5]) == ""
    assert "storage_offset" in looking.whole(whole[:3])
