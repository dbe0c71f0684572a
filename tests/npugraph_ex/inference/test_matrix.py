"""Entries across processes: whatever decides a graph misses and is answered rightly, whatever does not hits.

One process makes an entry for every case; others find the same program moved and commented, or edited in one place a case.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from npugraph_ex.inference.facts import Facts
from npugraph_ex.inference.facts_given import given
from npugraph_ex.inference.fit import unfit
from npugraph_ex.inference.places import model_info
from npugraph_ex.options import Options
from tests.npugraph_ex.inference.facts_made import made

OTHER = '''
"""Helpers of another module."""
import functools

SHIFT = 2
UNRELATED = 1

def scaled(x):
    return x * 3

def outer(x):
    return inner(x) + SHIFT

def inner(x):
    return x - 4

def twice(function):
    @functools.wraps(function)
    def run(self, x):
        return function(self, x) * 2
    return run

class Base:
    def basic(self, x):
        return x + 7

class Cut:
    limit = 0.5
    def __init__(self, by):
        self.by = by
    def __call__(self, x):
        return x.clamp(max=self.limit) - self.by

def hook(module, args, out):
    return out * 5
'''

MODELS = '''
"""The models."""
import dataclasses
import enum
import functools

import torch
from torch import nn

import other
from other import outer

FACTOR = 2
TABLE = {"a": [1, 2]}


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


MODE = Mode.ONE


@dataclasses.dataclass
class Options:
    width: int = 3
    flag: bool = True


class Model(nn.Module, other.Base):
    RATIO = 4

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = torch.relu
        self.options = Options()
        self.level = 3
        self.ratio = 0.5
        self.lam = lambda x: x * 6
        self.part = functools.partial(torch.add, alpha=2)
        self.cut = other.Cut(1)
        self.hooked = nn.Linear(4, 4)
        self.hooked.register_forward_hook(other.hook)

    def helper_of_a_module(self, x):
        return other.scaled(x)

    def helper_of_a_helper(self, x):
        return outer(x)

    def global_of_a_module(self, x):
        return x + other.SHIFT

    def own_global(self, x):
        return x * FACTOR

    def item_of_a_global(self, x):
        return x * TABLE["a"][1]

    def enum_member(self, x):
        return x + 1 if MODE is Mode.ONE else x

    def inherited(self, x):
        return self.basic(x)

    def own_body(self, x):
        return x + 1

    def called(self, x):
        return self.deeper(x) + 1

    def deeper(self, x):
        return x / 2

    def class_attribute(self, x):
        return x * self.RATIO

    def instance_attribute(self, x):
        return x * self.level

    def attribute_of_an_object(self, x):
        return x * self.options.width

    def function_attribute(self, x):
        return self.lam(x)

    def partial_attribute(self, x):
        return self.part(x, x)

    def callable_attribute(self, x):
        return self.cut(x)

    def default(self, x, by="a"):
        return x + len(by)

    def default_of_a_method(self, x):
        return self.defaulted(x)

    def defaulted(self, x, by=3):
        return x + by

    def number(self, x, by=3):
        return x * by * self.ratio

    def closure(self, x):
        by = 3
        def add(y):
            return y + by
        return add(x)

    @property
    def amount(self):
        return 8

    def a_property(self, x):
        return x + self.amount

    def decorated_part(self, x):
        return self.decorated(x)

    @other.twice
    def decorated(self, x):
        return x + 1

    def a_function_of_torch(self, x):
        return self.act(self.first(x))

    def a_hook(self, x):
        return self.hooked(x)

    def a_set(self, x):
        return x + 1 if "k" in {"i", "j", "k"} else x
'''

EDITS = {
    "helper_of_a_module": ("other", "x * 3", "x * 4"),
    "helper_of_a_helper": ("other", "x - 4", "x - 5"),
    "global_of_a_module": ("other", "SHIFT = 2", "SHIFT = 3"),
    "own_global": ("models", "FACTOR = 2", "FACTOR = 2.0"),
    "item_of_a_global": ("models", "[1, 2]", "[1, 3]"),
    "enum_member": ("models", "MODE = Mode.ONE", "MODE = Mode.TWO"),
    "inherited": ("other", "x + 7", "x + 8"),
    "own_body": (
        "models",
        "    def own_body(self, x):\n        return x + 1",
        "    def own_body(self, x):\n        return x - 1",
    ),
    "called": ("models", "x / 2", "x / 3"),
    "class_attribute": ("models", "RATIO = 4", "RATIO = 5"),
    "instance_attribute": ("models", "self.level = 3", "self.level = True"),
    "attribute_of_an_object": ("models", "width: int = 3", "width: int = 5"),
    "function_attribute": ("models", "lambda x: x * 6", "lambda x: x * 7"),
    "partial_attribute": ("models", "alpha=2", "alpha=3"),
    "callable_attribute": ("other", "- self.by", "+ self.by"),
    "default": ("models", 'by="a"', 'by="bc"'),
    "default_of_a_method": ("models", "def defaulted(self, x, by=3)", "def defaulted(self, x, by=4)"),
    "closure": ("models", "        by = 3\n", "        by = 4\n"),
    "a_property": ("models", "return 8", "return 9"),
    "decorated_part": ("other", "function(self, x) * 2", "function(self, x) * 3"),
    "a_function_of_torch": ("models", "= torch.relu", "= torch.tanh"),
    "a_hook": ("other", "out * 5", "out * 6"),
    "a_set": ("models", '{"i", "j", "k"}', '{"i", "j", "l"}'),
}

NUMBERS = {"number": ("models", "self, x, by=3):\n        return x * by *", "self, x, by=5):\n        return x * by *")}
"""Numbers that Dynamo makes inputs of the graph: another one is answered by the same entry."""

CHILD = """
import gc, json, sys
from tests.uncollected import uncollected
with uncollected():
    import torch
    import models
    from npugraph_ex.inference import cache_compile

names, cache_dir = json.loads(sys.argv[1]), sys.argv[2]
told = {}
for name in names:
    torch.manual_seed(0)
    model = models.Model()
    cached = cache_compile(getattr(model, name), cache_dir=cache_dir)
    x = torch.randn(3, 4)
    with torch.no_grad():
        equal = torch.equal(cached(x), getattr(model, name)(x)) and torch.equal(cached(x + 1), getattr(model, name)(x + 1))
    told[name] = [cached.origin, equal, cached.reason]
print(json.dumps({"told": told, "dynamo": "torch._dynamo" in sys.modules}))
gc.freeze()
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """The two modules and the script, as one directory of files."""

    other: str = OTHER
    models: str = MODELS

    def edited(self):
        texts = {"other": self.other, "models": self.models}
        for file, old, new in (*EDITS.values(), *NUMBERS.values()):
            assert texts[file].count(old) == 1, (file, old)
            texts[file] = texts[file].replace(old, new)
        return Program(**texts)

    def commented(self):
        """Other lines, comments, docstrings, spaces, and what no case reads."""
        models = self.models.replace("The models.", "The same models.").replace("\n    def ", "\n    # a comment\n\n    def ")
        models = models.replace("x * FACTOR", "x  *  ( FACTOR )  # times").replace("import enum\n", "import enum\nimport sys\n")
        other = "\n\n" + self.other.replace("UNRELATED = 1", "UNRELATED = 2").replace(
            "def inner", "def unused():\n    return 1\n\ndef inner"
        )
        return Program(other, models.replace("FACTOR = 2\n", "FACTOR = 2\nNEW = 3\n"))

    def run(self, directory, cache, names=(*EDITS, *NUMBERS), **environment):
        directory.mkdir(parents=True)
        for name, text in (("other", self.other), ("models", self.models), ("child", CHILD)):
            (directory / f"{name}.py").write_text(text)
        result = subprocess.run(
            [sys.executable, str(directory / "child.py"), json.dumps(names), str(cache)],
            env=os.environ | {"PYTHONPATH": str(Path.cwd()), "NPGXD_SOCKET": str(directory / "none")} | environment,
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-4000:]
        return json.loads(result.stdout.splitlines()[-1]), result.stderr


def unlike(told, origin):
    """The cases that came from elsewhere, or were answered wrongly."""
    return {name: found for name, found in told.items() if found[:2] != [origin, True]}


@pytest.fixture
def repository(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


@pytest.mark.slow
@pytest.mark.usefixtures("repository")
def test_edits_miss_and_the_rest_hits_fc03_fc04(tmp_path):
    """Four processes: made; moved and commented; edited in every place; as it was, whose entries the edited one left alone."""
    cache, program = tmp_path / "cache", Program()
    first, _ = program.run(tmp_path / "made", cache, PYTHONHASHSEED="1")
    assert unlike(first["told"], "compiled") == {}
    moved, log = program.commented().run(
        tmp_path / "else" / "where",
        cache,
        PYTHONHASHSEED="2",
        LOCAL_RANK="1",
        MASTER_PORT="29999",
        HOSTNAME="other",
        LOGLEVEL="DEBUG",
        OMP_NUM_THREADS="1",
    )
    assert unlike(moved["told"], "file") == {}, log[-4000:]
    assert not moved["dynamo"]
    edited, log = program.edited().run(tmp_path / "edited", cache)
    numbers = {name: edited["told"].pop(name) for name in NUMBERS}
    assert unlike(edited["told"], "compiled") == {}, log[-4000:]
    assert unlike(numbers, "file") == {}, log[-4000:]
    assert [name for name in EDITS if f"Model.{name}: what is in" not in log] == []
    again, log = program.run(tmp_path / "again", cache, PYTHONHASHSEED="3")
    assert unlike(again["told"], "file") == {}, log[-4000:]
    assert not again["dynamo"]


class Plain(torch.nn.Module):
    def run(self, x):
        return x * 2


@pytest.fixture(scope="module")
def plain():
    return made(Plain(), "run", torch.ones(3, 4))


@pytest.mark.parametrize("name", ["torch", "Python", "npgxd", "facts", "torch_npu", "CANN", "npu device"])
def test_another_version_misses_and_is_named_fc04(plain, name):
    now = given(Options(), {}, dynamic=True)
    assert unfit(plain.facts, Plain.run, now) == ""
    other = dataclasses.replace(plain.facts, versions=dict(plain.facts.versions) | {name: "0.1"})
    assert unfit(other, Plain.run, now).startswith(f"{name} was 0.1, is ")


def test_another_function_misses(plain):
    def run(self, x):
        return x * 3

    assert "the code of" in unfit(plain.facts, run, given(Options(), {}, dynamic=True))


def one_decomposition(x):
    return x + OFFSET


OFFSET = 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: given(Options(remove_noop_ops=False), {}, dynamic=True), "options remove_noop_ops was True, is False"),
        (lambda: given(Options(), {"aten.add": one_decomposition}, dynamic=True), "decompositions aten.add"),
        (lambda: given(Options(), {}, dynamic=False), "dynamic was True, is False"),
        (lambda: given(Options(post_grad_custom_pre_pass=one_decomposition), {}, dynamic=True), "post_grad_custom_pre_pass"),
    ],
)
def test_other_options_miss(plain, other, words):
    assert words in unfit(plain.facts, Plain.run, other())


@pytest.mark.parametrize("other", [{"data_dump_dir": "/elsewhere"}, {"static_kernel_wait": "background"}], ids=str)
def test_where_tensors_are_dumped_and_what_is_waited_for_decide_nothing(plain, other):
    options = Options(**other, given=frozenset(other))
    assert unfit(plain.facts, Plain.run, given(options, {}, dynamic=True)) == ""
    assert model_info(Plain(), options, dynamic=True) == model_info(Plain(), Options(), dynamic=True)


def test_a_pass_or_decomposition_whose_helper_changed_misses(monkeypatch):
    before = given(Options(post_grad_custom_pre_pass=one_decomposition), {"aten.add": one_decomposition}, dynamic=True)
    monkeypatch.setattr(sys.modules[__name__], "OFFSET", 2)
    after = given(Options(post_grad_custom_pre_pass=one_decomposition), {"aten.add": one_decomposition}, dynamic=True)
    assert before["options"] != after["options"]
    assert before["decompositions"] != after["decompositions"]


def test_equal_models_have_equal_facts(plain):
    assert json.dumps(made(Plain(), "run", torch.zeros(5, 4)).facts.plain()) == json.dumps(plain.facts.plain())
    assert Facts.parse(json.loads(json.dumps(plain.facts.plain()))) == plain.facts
