"""What decides a graph, flipped one by one: each is a misfit that says what changed; what decides nothing fits."""

import contextlib
import dataclasses
import enum
import os
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module

from npugraph_ex.inference import cache_compile
from npugraph_ex.inference.facts_settings import settings_now, settings_wanted
from tests.npugraph_ex.inference.facts_made import made

HERE = sys.modules[__name__]
SCALE = 2
UNUSED = 1
TABLE = {"shift": 1, "parts": [1, 2]}


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLE = 2


MODE = Mode.PLAIN


@dataclasses.dataclass
class Meta:
    data: torch.Tensor
    pos: int
    tag: str = "t"
    extra: object = None


def helper(x, k=3):
    return x * SCALE + k


def closing():
    shift = 5

    def inner(x):
        return x + shift

    def change(value):
        nonlocal shift
        shift = value

    return inner, change


INNER, CHANGE = closing()


class Model(nn.Module):
    FACTOR = 5

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.head.weight
        self.register_buffer("bias", torch.ones(4))
        self.count = 3
        self.eps = 1e-5
        self.names = ["a", "b"]
        self.act = torch.nn.functional.gelu

    def run(self, meta, kv, *rest, flag=True):
        x = helper(self.first(meta.data)) * self.FACTOR + self.count
        for layer in self.layers:
            x = layer(x)
        x = self.norm(INNER(self.act(x))) + self.bias
        if MODE is Mode.PLAIN:
            x = x * TABLE["shift"] * len(TABLE["parts"])
        if self.training or not flag:
            x = x + 1
        kv["k"][:, meta.pos] = x[:, 0]
        return {"x": self.tied(self.head(self.part(x))) * self.eps, "n": len(self.names), "rest": [item * 2 for item in rest]}

    def part(self, x):
        return x - 1

    def unused(self):
        return 1


def arguments(batch=3, **changed):
    given = {"pos": 2, "tag": "t", "data": torch.randn(batch, 4), "k": torch.randn(batch, 6), "rest": (torch.randn(2),)} | changed
    return Meta(given["data"], given["pos"], given["tag"]), {"k": given["k"]}, *given["rest"]


@pytest.fixture(scope="module")
def entry():
    torch.manual_seed(0)
    return made(Model().eval(), "run", *arguments())


@pytest.fixture
def check(entry):
    checking = entry.check()
    assert checking(entry.instance, *arguments()) == ""
    return checking


def both(entry, check, *args, **kwargs):
    """The reason, which a whole check gives; the quick check must come to the same."""
    reason = entry.whole(*args, **kwargs)
    assert check(entry.instance, *args, **kwargs) == reason
    return reason


@contextlib.contextmanager
def changed(owner, name, value):
    if isinstance(owner, dict):
        before, owner[name] = owner[name], value
        try:
            yield
        finally:
            owner[name] = before
        return
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def closed_over(value):
    CHANGE(value)
    try:
        yield
    finally:
        CHANGE(5)


@contextlib.contextmanager
def hooked(register):
    handle = register(lambda *_args: None)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def switched(switch, value, back):
    switch(value)
    try:
        yield
    finally:
        switch(back)


@contextlib.contextmanager
def own_method(instance, name):
    setattr(instance, name, types.MethodType(lambda _self, x: x, instance))
    try:
        yield
    finally:
        delattr(instance, name)


def other_helper(x, k=3):
    return x * SCALE - k


def other_part(_self, x):
    return x - 2


STATE = {
    "a global": (lambda _m: changed(HERE, "SCALE", 3), "test_fit.SCALE was 2, is 3"),
    "a global's type": (lambda _m: changed(HERE, "SCALE", 2.0), "test_fit.SCALE was 2, is 2.0"),
    "a global that is True for 1": (lambda _m: changed(TABLE, "shift", True), "TABLE['shift'] was 1, is True"),
    "an item of a global": (lambda _m: changed(TABLE, "shift", 4), "TABLE['shift'] was 1, is 4"),
    "a length": (lambda _m: changed(TABLE, "parts", [1]), "had 2 items, has 1"),
    "an enum member": (lambda _m: changed(HERE, "MODE", Mode.DOUBLE), "Mode.PLAIN, is "),
    "a function": (lambda _m: changed(HERE, "helper", other_helper), "helper has other code"),
    "a function's code": (lambda _m: changed(helper, "__code__", other_helper.__code__), "helper has other code"),
    "a default": (lambda _m: changed(helper, "__defaults__", (4,)), "helper.__defaults__[0] was 3, is 4"),
    "a closure": (lambda _m: closed_over(6), "was 5, is 6"),
    "an attribute": (lambda m: changed(m, "count", 4), "self.count was 3, is 4"),
    "a float that an operator takes": (lambda m: changed(m.norm, "eps", 1e-6), "self.norm.eps was 1e-05, is 1e-06"),
    "a float's sort": (lambda m: changed(m, "eps", 1), "self.eps was a builtins:float, is a builtins:int"),
    "a float that is none": (lambda m: changed(m, "eps", float("nan")), "does not hold for nan"),
    "a class attribute": (lambda _m: changed(Model, "FACTOR", 6), "FACTOR of the class of self was 5, is 6"),
    "an attribute that is a function": (lambda m: changed(m, "act", torch.nn.functional.silu), "self.act"),
    "training": (lambda m: switched(m.train, True, False), "self.training was False, is True"),
    "a part's training": (lambda m: switched(m.norm.train, True, False), "self.norm.training was False, is True"),
    "a method": (lambda _m: changed(Model, "part", other_part), "the code of Model.part changed"),
    "a method of the instance": (lambda m: own_method(m, "part"), "now has its own part"),
    "a method of a part": (lambda m: own_method(m.first, "forward"), "now has its own forward"),
    "torch's own method": (lambda _m: changed(nn.Linear, "forward", other_part), "the code of Linear.forward changed"),
    "torch's own function": (lambda _m: changed(torch.nn.functional, "batch_norm", other_helper), "batch_norm has other code"),
    "a hook": (lambda m: hooked(m.norm.register_forward_hook), "_forward_hooks is no longer empty"),
    "a pre-hook": (lambda m: hooked(m.first.register_forward_pre_hook), "_forward_pre_hooks is no longer empty"),
    "a hook on every module": (
        lambda _m: hooked(nn_module.register_module_forward_hook),
        "_global_forward_hooks is no longer empty",
    ),
    "a part": (lambda m: changed(m, "first", nn.Linear(4, 4, bias=False)), "self.first.bias"),
    "a part's class": (lambda m: changed(m, "norm", nn.Identity()), "self.norm was a torch.nn.modules.batchnorm:BatchNorm1d"),
    "tied weights untied": (lambda m: changed(m.tied, "weight", nn.Parameter(m.head.weight.clone())), "is no longer self."),
    "a parameter's dtype": (lambda m: changed(m.first, "weight", nn.Parameter(torch.ones(4, 4).half())), "torch.float16"),
    "a parameter's shape": (lambda m: changed(m.first, "weight", nn.Parameter(torch.ones(5, 4))), "had shape (4, 4), has (5, 4)"),
    "a parameter's data": (lambda m: switched(m.first.to, torch.float64, torch.float32), "torch.float64"),
    "a parameter that is frozen": (
        lambda m: switched(m.first.weight.requires_grad_, False, True),
        "requires_grad True, has False",
    ),
    "deterministic algorithms": (
        lambda _m: switched(torch.use_deterministic_algorithms, True, False),
        "deterministic algorithms: was False, is True",
    ),
    "default dtype": (lambda _m: switched(torch.set_default_dtype, torch.float64, torch.float32), "default dtype"),
    "default device": (lambda _m: torch.device("meta"), "modes: was '', is 'meta'"),
    "autocast": (lambda _m: torch.autocast("cpu", torch.bfloat16), "autocast on cpu: was '', is 'torch.bfloat16'"),
    "matmul precision": (lambda _m: switched(torch.set_float32_matmul_precision, "medium", "highest"), "matmul precision"),
    "attention back ends": (lambda _m: switched(torch.backends.cuda.enable_flash_sdp, False, True), "attention back ends"),
}


@pytest.mark.parametrize("what", STATE)
def test_state_that_decides_the_graph_is_a_misfit_while_it_differs(entry, check, what):
    change, words = STATE[what]
    args = arguments()
    with change(entry.instance):
        assert words in both(entry, check, *args)
    assert both(entry, check, *args) == ""


def stale():
    data = torch.randn(3, 4)
    return arguments(data=data, k=torch.randn(3, 6).t().contiguous().t())


SHARED = torch.randn(3, 6)
CALLS = {
    "a constant in an index": (lambda: arguments(pos=3), "argument meta.pos was 2, is 3"),
    "a constant's type": (lambda: arguments(pos=True), "meta.pos"),
    "a dtype": (lambda: arguments(data=torch.randn(3, 4).double()), "had dtype torch.float32, has torch.float64"),
    "a shape that was fixed": (lambda: arguments(data=torch.randn(3, 5)), "had shape (*, 4), has (3, 5)"),
    "a rank": (lambda: arguments(data=torch.randn(3, 4, 1)), "had shape"),
    "a stride": (stale, "strides"),
    "a device": (lambda: arguments(data=torch.empty(3, 4, device="meta")), "had device cpu, has meta"),
    "a layout": (lambda: arguments(data=torch.randn(3, 4).to_sparse()), "had layout torch.strided, has torch.sparse_coo"),
    "a subclass": (
        lambda: arguments(data=nn.Parameter(torch.randn(3, 4))),
        "was a torch:Tensor, is a torch.nn.parameter:Parameter",
    ),
    "a gradient that is wanted": (lambda: arguments(data=torch.randn(3, 4, requires_grad=True)), "requires_grad False, has True"),
    "sizes that belong together": (lambda: arguments(k=torch.randn(5, 6)), "does not hold for"),
    "a size out of range": (lambda: arguments(batch=1), "does not hold for 1"),
    "no tensor": (lambda: arguments(data=None), "was a tensor, is NoneType"),
    "more arguments": (lambda: (*arguments(), torch.randn(2)), "had 1 items, has 2"),
    "fewer arguments": (lambda: arguments(rest=()), "had 1 items, has 0"),
    "other keys": (lambda: (arguments()[0], {"v": torch.randn(3, 6)}, torch.randn(2)), "kv"),
    "another class": (lambda: (types.SimpleNamespace(data=torch.randn(3, 4), pos=2), *arguments()[1:]), "argument meta was a"),
    "one tensor twice": (lambda: arguments(data=SHARED[:, :4], k=SHARED[:, :4]), ""),
    "shared memory": (lambda: arguments(k=SHARED, rest=(SHARED.view(-1)[:2],)), "now share memory"),
    "nothing": (lambda: (), "the arguments do not fit the function"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_that_the_graph_was_not_made_for_is_a_misfit(entry, check, what):
    make, words = CALLS[what]
    reason = both(entry, check, *make())
    assert reason
    assert words in reason
    assert both(entry, check, *arguments()) == ""


@pytest.mark.parametrize("flag", [False, 1, None])
def test_a_keyword_that_decides_is_a_misfit(entry, check, flag):
    assert "argument flag was True" in both(entry, check, *arguments(), flag=flag)


FITS = {
    "another batch": lambda: arguments(batch=7),
    "another width of the cache": lambda: arguments(k=torch.randn(3, 9)),
    "a field that is not read": lambda: arguments(tag="other"),
    "other numbers": lambda: arguments(data=torch.full((3, 4), 9.0)),
    "memory that starts elsewhere": lambda: arguments(data=torch.randn(4, 4)[1:]),
}


@pytest.mark.parametrize("what", FITS)
def test_a_call_that_differs_in_what_decides_nothing_fits(entry, check, what):
    assert both(entry, check, *FITS[what]()) == ""


def test_state_that_decides_nothing_fits(entry, check):
    with changed(HERE, "UNUSED", 2), changed(Model, "unused", lambda _self: 2), torch.no_grad(), torch.inference_mode():
        assert both(entry, check, *arguments()) == ""
    entry.instance.other = 3
    with switched(torch.set_num_threads, 2, torch.get_num_threads()), changed(nn.Linear, "extra_repr", other_part):
        assert both(entry, check, *arguments()) == ""


def test_a_float_that_the_graph_takes_as_an_input_may_change(entry, check):
    """With dynamic=True Dynamo traces it as a number, as it does sizes."""
    with changed(entry.instance, "eps", 1e-6):
        assert both(entry, check, *arguments()) == ""


def test_an_equal_part_in_place_of_another_fits(entry, check):
    """The next call is quick again: its constants are those of the part that is there now."""
    with (
        changed(entry.instance, "first", nn.Linear(4, 4)),
        changed(HERE, "SCALE", int("2")),
        changed(entry.instance, "names", ["x", "y"]),
    ):
        assert both(entry, check, *arguments()) == ""


def test_a_copy_of_the_model_fits_and_keeps_its_own_state(entry):
    other = Model().eval()
    check = entry.check()
    assert check(other, *arguments()) == ""
    other.count = 9
    assert check(other, *arguments()) == "self.count was 3, is 9"
    assert check(entry.instance, *arguments()) == ""


def test_a_check_keeps_no_tensor_alive(entry):
    import gc
    import weakref

    check = entry.check()
    args = arguments()
    watched = weakref.ref(args[0].data), weakref.ref(args[1]["k"])
    assert check(entry.instance, *args) == ""
    assert check(entry.instance, *args) == ""
    del args
    gc.collect()
    assert [found() for found in watched] == [None, None]


class Asking(nn.Module):
    """Asks the process for what Dynamo takes for a constant, and guards with nothing."""

    def variable(self, x):
        return x * 2 if os.environ.get("NPGXD_TEST_FLAG") == "1" else x

    def getenv(self, x):
        return x * 2 if os.getenv("NPGXD_TEST_FLAG") else x

    def rank(self, x):
        return x * (1 + torch.distributed.get_rank())

    def builtin(self, x):
        return x * sum([1, 2])

    def own_method_of_tensors(self, x):
        return x.doubled_for_a_test()

    def devices(self, x):
        return x * (1 + torch.cuda.device_count())

    def inherited(self, x):
        return x * self.KIND


class Config:
    width = 2

    def __getattr__(self, name):
        if name == "depth":
            return 3
        raise AttributeError(name)


class Configured(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()

    def run(self, x):
        return x * self.config.width + self.config.depth


@pytest.mark.parametrize("name", ["width", "depth"])
def test_an_attribute_of_an_objects_own_that_hides_its_classs_is_a_misfit(name):
    entry = made(Configured(), "run", torch.ones(3))
    check = entry.check()
    assert both(entry, check, torch.ones(3)) == ""
    setattr(entry.instance.config, name, 7)
    assert f"self.config now has its own {name}" in both(entry, check, torch.ones(3))
    delattr(entry.instance.config, name)
    entry.instance.config.unread = 1
    assert both(entry, check, torch.ones(3)) == ""


class Base:
    KIND = "ab"


class Derived(Asking, Base):
    def inherited(self, x):
        return x * len(self.KIND)


@pytest.mark.parametrize("name", ["variable", "getenv"])
def test_an_environment_variable_that_the_model_asks_for_is_a_fact(name, monkeypatch):
    monkeypatch.delenv("NPGXD_TEST_FLAG", raising=False)
    entry = made(Asking(), name, torch.ones(3))
    check = entry.check()
    assert both(entry, check, torch.ones(3)) == ""
    monkeypatch.setenv("NPGXD_TEST_FLAG", "1")
    assert "environment variable NPGXD_TEST_FLAG: was None, is '1'" in both(entry, check, torch.ones(3))
    monkeypatch.delenv("NPGXD_TEST_FLAG")
    monkeypatch.setenv("NPGXD_TEST_OTHER", "1")
    assert both(entry, check, torch.ones(3)) == ""


def test_the_rank_is_a_fact_where_the_model_asks_for_it(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 0)
    asked = torch.distributed.get_rank
    settings = settings_now(settings_wanted(["cpu"], frozenset({"get_rank"}), ()))
    assert settings["rank"] == asked() == 0
    assert "rank" not in settings_wanted(["cpu"], frozenset({"forward"}), ())


def test_a_method_that_users_give_to_tensors_is_a_fact(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "doubled_for_a_test", lambda self: self * 2, raising=False)
    entry = made(Asking(), "own_method_of_tensors", torch.ones(3))
    check = entry.check()
    assert both(entry, check, torch.ones(3)) == ""
    monkeypatch.setattr(torch.Tensor, "doubled_for_a_test", lambda self: self * 3)
    assert "the code of Tensor.doubled_for_a_test changed" in both(entry, check, torch.ones(3))


def test_a_global_that_hides_a_builtin_is_a_misfit():
    entry = made(Asking(), "builtin", torch.ones(3))
    check = entry.check()
    assert both(entry, check, torch.ones(3)) == ""
    HERE.sum = lambda _items: 7
    try:
        assert "now has 'sum'" in both(entry, check, torch.ones(3))
    finally:
        del HERE.sum


def test_a_class_that_hides_what_its_base_has_is_a_misfit():
    entry = made(Derived(), "inherited", torch.ones(3))
    check = entry.check()
    assert both(entry, check, torch.ones(3)) == ""
    Derived.KIND = "abc"
    try:
        assert "Derived now defines KIND" in both(entry, check, torch.ones(3))
    finally:
        del Derived.KIND


def test_a_call_inside_a_mode_is_answered_and_not_kept(tmp_path):
    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            return found * 2 if function is torch.Tensor.mul else found

    model = Asking()
    cached = cache_compile(model.builtin, cache_dir=tmp_path)
    with Doubling():
        assert torch.equal(cached(torch.ones(3)), torch.full((3,), 6.0))
    assert cached.origin == "usual"


def test_a_default_device_is_a_setting_like_others():
    with torch.device("cpu"):
        entry = made(Asking(), "builtin", torch.ones(3))
        assert entry.whole(torch.ones(3)) == ""
    assert entry.whole(torch.ones(3)).startswith("default device and torch function modes: was 'cpu', is ''")
