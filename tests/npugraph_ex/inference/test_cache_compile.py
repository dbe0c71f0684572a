from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch._decomp import get_decompositions

import npugraph_ex
from npgxd.errors import ConfigError
from npugraph_ex import backend as backend_module
from npugraph_ex.inference import cache_compile, places
from npugraph_ex.inference.api import NotAMethod
from npugraph_ex.inference.places import Ranks
from npugraph_ex.inference.tracing import TorchUnsupported, check_torch
from npugraph_ex.options import OptionError, read_options


class Net(nn.Module):
    def __init__(self, factor=2):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    def prompt(self, x):
        return self.linear(x) * self.factor

    def decode(self, x):
        return self.linear(x) + self.factor

    @torch.no_grad()
    def decorated(self, x):
        return x

    @staticmethod
    def loose(x):
        return x


def undone(function):
    def inner(self, x):
        return function(self, x)

    return inner


class Hidden(nn.Module):
    @undone
    def method(self, x):
        return x


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x():
    return torch.randn(3, 4)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


# ---- what can be wrapped ---------------------------------------------------------------------------------------------


def test_several_functions_of_one_model_have_each_their_entry_at_the_documented_path(net, x, cache):
    prompt, decode = cache_compile(net.prompt, cache_dir=cache), cache_compile(net.decode, cache_dir=str(cache), dynamic=False)
    assert torch.equal(prompt(x), net.prompt(x))
    assert torch.equal(decode(x), net.decode(x))
    [info] = {path.parent.parent for path in (prompt.path,)}
    assert prompt.path == cache / info.name / "prompt" / "compiled_module"
    assert info.name.startswith("Net_dynamic_aclgraphcache_")
    assert decode.path.parent.parent.name.startswith("Net_static_aclgraphcache_")
    for path in (prompt.path, decode.path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
    again = cache_compile(Net().prompt, cache_dir=cache)
    again(x)
    assert again.origin == "file"


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (lambda net: lambda x: x, "is not a method"),
        (lambda net: Net.prompt, "is not a method"),
        (lambda net: net, "is not a method"),
        (lambda net: net.loose, "is not a method"),
        (lambda net: {}.get, "is not a method"),
        (lambda net: net.decorated, "is decorated"),
        (lambda net: Hidden().method, "is decorated"),
    ],
)
def test_only_undecorated_methods_of_modules_are_taken(net, what, why):
    with pytest.raises(NotAMethod, match=why) as raised:
        cache_compile(what(net))
    assert raised.value.hint


def test_a_method_of_a_local_class_or_given_to_an_instance_is_taken(net, x, cache):
    class Local(Net):
        def more(self, x):
            return self.prompt(x) + 1

    local = Local()
    assert torch.equal(cache_compile(local.more, cache_dir=cache)(x), local.more(x))
    net.given = types.MethodType(_given, net)
    assert torch.equal(cache_compile(net.given, cache_dir=cache)(x), net.given(x))


def _given(self, x):
    return self.linear(x) - 1


def test_two_instances_of_one_class_have_each_their_entry(x, cache):
    def origins():
        found = []
        for factor in (2, 3):
            net = Net(factor)
            cached = cache_compile(net.prompt, cache_dir=cache)
            assert torch.equal(cached(x), net.prompt(x))
            found.append(cached.origin)
        return found

    assert origins() == ["compiled", "compiled"]
    assert origins() == ["file", "file"]
    [directory] = cache.glob("*/prompt")
    assert sorted(name.name.partition(".")[0] for name in directory.iterdir()) == ["compiled_module"] * 2


def test_a_copied_model_calls_its_own_method(net, x, cache):
    net.cached = cache_compile(net.prompt, cache_dir=cache)
    net.cached(x)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.linear.weight.zero_()
    assert torch.equal(other.cached(x), other.prompt(x))
    assert not torch.equal(other.cached(x), net.cached(x))
    assert "cached" not in net.state_dict()


def test_threads_that_call_at_once_compile_once_and_get_the_same(net, x, cache):
    cached = cache_compile(net.prompt, cache_dir=cache)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(got, net.prompt(x)) for got in pool.map(cached, [x] * 8))
    assert cached.origin == "compiled"


def test_a_call_in_grad_mode_of_a_model_with_parameters_is_answered_without_gradients(net, x, cache):
    cached = cache_compile(net.prompt, cache_dir=cache)
    assert not cached(x).requires_grad
    wanting = x.clone().requires_grad_()
    cached(wanting).sum().backward()  # an argument that asks for a gradient gets one, by the usual way
    assert wanting.grad is not None


def test_under_inference_mode_and_autocast_results_equal_the_compiled_ones(net, x, cache):
    with torch.inference_mode():
        cached = cache_compile(net.prompt, cache_dir=cache)
        assert torch.equal(cached(x), net.prompt(x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        warm = cache_compile(net.decode, cache_dir=cache)
        assert warm(x).dtype == net.decode(x).dtype
        assert torch.equal(warm(x), net.decode(x))
    assert warm(x).dtype == torch.float32  # another setting: compiled as usual
    assert torch.equal(warm(x), net.decode(x))


# ---- what it is told -------------------------------------------------------------------------------------------------


def test_options_may_be_given_in_three_places_and_must_agree(net):
    on, off = {"remove_noop_ops": True}, {"remove_noop_ops": False}
    ours = functools.partial(backend_module.npugraph_ex, options=off)
    holder = types.SimpleNamespace(config=off)
    for told in (
        {"options": off},
        {"config": off},
        {"config": read_options(off)},
        {"config": types.SimpleNamespace(**off)},
        {"backend": ours},
        {"backend": holder},
        {"config": off, "backend": holder, "options": off},
        {"backend": "npugraph_ex", "options": off},
        {"backend": backend_module.npugraph_ex, "config": off},
    ):
        assert cache_compile(net.prompt, **told)._plan.options.remove_noop_ops is False
    for told in ({"config": on, "backend": holder}, {"options": on, "config": off}, {"options": on, "backend": ours}):
        with pytest.raises(OptionError, match="do not agree"):
            cache_compile(net.prompt, **told)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"backend": "inductor"}, "is not npugraph_ex"),
        ({"backend": lambda gm, inputs: gm}, "is not npugraph_ex"),
        ({"config": {"no_such": 1}}, "does not exist"),
        ({"config": types.SimpleNamespace(mode="max-autotune")}, "GE graph mode"),
        ({"options": 3}, "must be a dict"),
        ({"ge_cache": True}, "max-autotune"),
        ({"ge_cache": 1}, "must be True or False"),
        ({"dynamic": None}, "must be True or False"),
        ({"fullgraph": True}, "no parameter 'fullgraph'"),
        ({"custom_decompositions": [1]}, "get_decompositions"),
    ],
)
def test_what_is_not_documented_is_refused_at_once(net, told, why):
    with pytest.raises(OptionError, match=why):
        cache_compile(net.prompt, **told)


def test_decompositions_are_used_and_decide_the_entry(net, x, cache):
    table = {torch.ops.aten.addmm.default: lambda bias, a, b: (a @ b + bias) * 10}
    plain, changed = (
        cache_compile(net.prompt, cache_dir=cache),
        cache_compile(net.prompt, cache_dir=cache, custom_decompositions=table),
    )
    assert torch.equal(plain(x), net.prompt(x))
    assert torch.allclose(changed(x), net.prompt(x) * 10)
    assert changed.origin == "compiled"
    again = cache_compile(net.prompt, cache_dir=cache)
    assert torch.equal(again(x), net.prompt(x))
    assert again.origin == "file"
    official = cache_compile(net.decode, cache_dir=cache, custom_decompositions=get_decompositions([torch.ops.aten.addmm]))
    assert torch.allclose(official(x), net.decode(x))


def test_a_decomposition_that_calls_itself_is_refused_by_name(net, x, cache):
    table = {torch.ops.aten.add.Tensor: lambda one, other: one + other}
    cached = cache_compile(net.decode, cache_dir=cache, custom_decompositions=table)
    with pytest.raises(OptionError, match=r"add\.Tensor calls aten\.add\.Tensor itself"):
        cached(x)


def test_calls_are_not_checked_where_the_user_says_so(net, x, cache):
    bare = cache_compile(net.prompt, cache_dir=cache, check_calls=False)
    bare(x)
    net.factor = 5
    assert torch.equal(
        bare(x), Net.prompt(types.SimpleNamespace(linear=net.linear, factor=2), x)
    )  # the documented behaviour, bare
    assert torch.equal(cache_compile(net.prompt, cache_dir=cache)(x), net.prompt(x))


def test_another_torch_is_told_that_nobody_knows_its_inside(monkeypatch, net):
    assert check_torch("2.13.1+cpu") == "2_13"
    for version in ("2.6.0", "2.14.0.dev2026", "3.0"):
        with pytest.raises(TorchUnsupported, match=version):
            check_torch(version)


def test_the_documented_name_below_torch_npu_leads_here(monkeypatch):
    npu = types.ModuleType("torch.npu")
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    npugraph_ex.join_torch_npu()
    assert torch.npu.npugraph_ex.inference.cache_compile is cache_compile
    npu.npugraph_ex = bundled = types.ModuleType("bundled")
    npugraph_ex.join_torch_npu()
    assert torch.npu.npugraph_ex is bundled


# ---- where it keeps them ---------------------------------------------------------------------------------------------


def test_the_default_directory_is_made_in_the_working_directory_of_the_wrapping(net, x, tmp_path, monkeypatch):
    monkeypatch.delenv(places.HOME, raising=False)
    cached = cache_compile(net.prompt)
    relative = cache_compile(net.decode, cache_dir="deep/er")
    monkeypatch.chdir("/")
    for one in (cached, relative):
        one(x)
    assert cached.path.is_relative_to(tmp_path / ".torchair_cache")
    assert relative.path.is_relative_to(tmp_path / "deep" / "er")
    monkeypatch.setenv(places.HOME, str(tmp_path / "home"))
    assert cache_compile(net.prompt)._plan.base == tmp_path / "home"


@pytest.mark.parametrize("bad", [3, "", b"", "file", "file/below"])
def test_a_cache_dir_that_cannot_be_one_is_a_clear_error(net, tmp_path, bad):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cache_dir"):
        cache_compile(net.prompt, cache_dir=tmp_path / bad if isinstance(bad, str) and bad else bad)


def test_a_cache_dir_without_permission_is_a_clear_error(net, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_args, **_kwargs: False)  # as for a user who is not root
    with pytest.raises(ConfigError, match="readable and writable"):
        cache_compile(net.prompt, cache_dir=tmp_path)


def test_ranks_are_part_of_the_path_as_documented(net, tmp_path, monkeypatch):
    options = read_options(None)

    def parts(**ranks):
        return places.place_of(tmp_path, net, "prompt", options, dynamic=True, ranks=Ranks(**ranks)).parts[1:]

    assert parts() == ("prompt",)
    assert parts(tp_rank=0, pp_rank=1) == ("tp_rank0_pp_rank1", "prompt")
    assert parts(global_rank=0) == ("global_rank0", "prompt")  # said, and nobody here knows of how many
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    assert parts() == ("world8global_rank5", "prompt")
    assert parts(global_rank=7, tp_rank=3) == ("world8global_rank7_tp_rank3", "prompt")
    for bad in ({"global_rank": 8}, {"global_rank": -1}, {"tp_rank": "0"}, {"pp_rank": True}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            cache_compile(net.prompt, cache_dir=tmp_path, **bad)


def test_a_model_class_cannot_lead_out_of_the_cache_dir(tmp_path):
    evil = type("../../etc/passwd", (Net,), {})()
    assert ".." not in places.model_info(evil, read_options(None), dynamic=True)
    assert "/" not in places.model_info(evil, read_options(None), dynamic=True)
    place = places.place_of(tmp_path, Net(), "../../x", read_options(None), dynamic=True, ranks=Ranks())
    assert place.parts[-1] == "______x"


# ---- what goes wrong -------------------------------------------------------------------------------------------------


class Broken(nn.Module):
    def breaks(self, x):
        print("a side effect that no graph has")  # noqa: T201 -- the point
        return x + 1

    def randoms(self, x):
        return x + torch.rand_like(x)

    def fails(self, x):
        return x @ torch.zeros(3)


def test_what_cannot_be_cached_runs_as_usual_and_says_why(x, cache, caplog):
    model = Broken()
    with caplog.at_level(logging.WARNING, logger="npugraph_ex"):
        breaks = cache_compile(model.breaks, cache_dir=cache)
        assert torch.equal(breaks(x), x + 1)
        randoms = cache_compile(model.randoms, cache_dir=cache)
        torch.manual_seed(3)
        first = randoms(x)
        assert not torch.equal(first, randoms(x))
    for cached, why in ((breaks, "no whole graph"), (randoms, "random")):
        assert cached.origin == "usual"
        assert why in cached.reason
        assert cached.reason in caplog.text
    assert list(cache.rglob("compiled_module")) == []


def test_the_models_own_error_reaches_its_caller(x, cache):
    with pytest.raises(RuntimeError, match=r"size|shape"):
        cache_compile(Broken().fails, cache_dir=cache)(x)


def test_a_directory_that_was_made_unwritable_after_wrapping_costs_only_the_cache(net, x, cache, caplog):
    cached = cache_compile(net.prompt, cache_dir=cache)
    cache.rmdir()
    cache.write_text("now a file")
    assert torch.equal(cached(x), net.prompt(x))
    assert cached.origin == "compiled"
    assert "could not be saved" in caplog.text


def test_a_call_that_does_not_fit_is_compiled_as_usual_and_says_why_once(net, x, cache, caplog):
    cached = cache_compile(net.prompt, cache_dir=cache, dynamic=False)
    cached(x)
    wider = torch.randn(5, 4)
    for _ in range(2):
        assert torch.equal(cached(wider), net.prompt(wider))
    told = [record for record in caplog.records if "does not fit" in record.message]
    assert len(told) == 1
    assert "x" in told[0].message
    assert torch.equal(cached(x), net.prompt(x))


def test_a_start_with_other_arguments_keeps_the_earlier_entry(net, cache):
    for size in (3, 5, 3, 5):
        x = torch.randn(size, 4)
        cached = cache_compile(net.prompt, cache_dir=cache, dynamic=False)
        assert torch.equal(cached(x), net.prompt(x))
    assert cached.origin == "file"


@dataclasses.dataclass
class Meta:
    data: torch.Tensor
    flag: bool
    depth: int = 1


class Takes(nn.Module):
    def method(self, meta, lists, named, number, *rest, scale=1.0):
        y = meta.data * number if meta.flag else meta.data
        return [y + lists[0][1] + named["a"], sum(rest), scale * y, meta.depth]


def test_dataclass_list_nested_and_scalar_arguments_are_taken(cache):
    def arguments():
        torch.manual_seed(1)
        return (Meta(torch.randn(3), True, 2), [[0, torch.randn(3)]], {"a": torch.randn(3)}, 4, torch.randn(3), torch.randn(3))

    model = Takes()
    for _ in range(2):
        cached = cache_compile(model.method, cache_dir=cache)
        got, expected = cached(*arguments(), scale=2.5), model.method(*arguments(), scale=2.5)
        assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(got, expected, strict=True))
    assert cached.origin == "file"
    assert torch.equal(cached(*arguments(), scale=7.5)[2], model.method(*arguments(), scale=7.5)[2])


def test_the_users_module_keeps_its_globals(net, x, cache):
    before = set(globals())
    cache_compile(net.prompt, cache_dir=cache)(x)
    added = set(globals()) - before
    assert all(name.startswith("__") for name in added)
    assert sys.modules["torch._dynamo"] is not None


def test_a_first_call_leaves_the_random_generators_as_the_method_does(cache):
    import random

    torch.manual_seed(3)
    random.seed(3)
    net, x = Net(), torch.randn(2, 4)
    before = torch.get_rng_state(), random.getstate()
    cache_compile(net.prompt, cache_dir=cache)(x)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_methods_that_are_first_called_at_once_from_many_threads_are_all_cached(cache):
    nets, x = [Net(factor) for factor in range(2, 6)], torch.randn(3, 4)
    cached = [cache_compile(method, cache_dir=cache) for net in nets for method in (net.prompt, net.decode)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda one: one(x), cached))
    assert [one.origin for one in cached] == ["compiled"] * 8
    expected = [method(x) for net in nets for method in (net.prompt, net.decode)]
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))


class _Announced:
    """A lock that says when somebody is about to wait for it."""

    def __init__(self, lock):
        self.lock, self.asked = lock, threading.Event()

    def __enter__(self):
        self.asked.set()
        return self.lock.__enter__()

    def __exit__(self, *error):
        return self.lock.__exit__(*error)


def _while_traced(inside):
    """``inside(let go)`` runs while another thread is in the middle of an FX trace, which ends when it lets go."""
    from torch.fx.experimental.proxy_tensor import make_fx

    began, go_on = threading.Event(), threading.Event()

    def traced(value):
        began.set()
        assert go_on.wait(60)
        return value + 1

    def trace():
        with torch._dynamo.convert_frame.compile_lock:
            make_fx(traced)(torch.ones(2))

    with ThreadPoolExecutor(1) as pool:
        tracing = pool.submit(trace)
        assert began.wait(60)
        try:
            return inside(go_on.set)
        finally:
            go_on.set()
            tracing.result()


def test_a_call_that_meets_another_threads_trace_waits_for_it_and_still_fits(cache, caplog, monkeypatch):
    net, x = Net(3), torch.randn(3, 4)
    method = cache_compile(net.prompt, cache_dir=cache)
    expected = method(x)
    lock = _Announced(threading.RLock())
    monkeypatch.setattr(torch._dynamo.convert_frame, "compile_lock", lock)

    def call(let_go):
        lock.asked.clear()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(method, x)
            assert lock.asked.wait(60)
            assert not answer.done()
            let_go()
            return answer.result()

    assert torch.equal(_while_traced(call), expected)
    assert "does not fit" not in caplog.text


def test_a_method_that_is_not_cached_also_answers_during_another_threads_trace(cache):
    class Breaks(nn.Module):
        def method(self, x):
            torch._dynamo.graph_break()
            return x * 2

    x = torch.ones(3)
    method = cache_compile(Breaks().method, cache_dir=cache)
    assert torch.equal(method(x), x * 2)
    assert method.origin == "usual"
    assert torch.equal(_while_traced(lambda _: method(x + 1)), (x + 1) * 2)


class Custom(nn.Module):
    def method(self, x):
        return torch.ops.npugraph_ex_tests.twice(x) + 1


def test_a_custom_operator_is_kept_by_name_and_missed_where_it_is_not_registered(cache, caplog):
    def started():
        library = torch.library.Library("npugraph_ex_tests", "FRAGMENT")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        return library

    x = torch.ones(3)
    library = started()
    for origin in ("compiled", "file"):
        cached = cache_compile(Custom().method, cache_dir=cache)
        assert torch.equal(cached(x), x * 2 + 1)
        assert cached.origin == origin
    library._destroy()
    missing = cache_compile(Custom().method, cache_dir=cache)
    with pytest.raises((AttributeError, RuntimeError)):
        missing(x)
    assert "twice" in caplog.text
