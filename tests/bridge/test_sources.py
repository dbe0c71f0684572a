from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from npgxd.bridge.sources import UnknownSource, changed, globals_in, names_in, sources_of

SOURCE = '''
import dataclasses
from typing import NamedTuple

LIMIT = 3

class Pair(NamedTuple):
    left: int
    right: int


@dataclasses.dataclass
class Point:
    x: int

class Model:
    def step(self, x):
        def inner(y):
            return y + self.offset
        return inner(x) * LIMIT

def twice(x):
    """Twice as much."""
    return 2 * x  # of it
'''


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """A user's module that can be rewritten, as another process would find it, and what the function of its code is."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"users_model_{tmp_path.name}".replace("-", "_")
    path = tmp_path / f"{name}.py"

    def load(source=SOURCE):
        path.write_text(source)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield load
    sys.modules.pop(name, None)


def traced(module):
    return [module.Model.step.__code__, module.twice.__code__]


def written(module):
    """As it comes back from a sidecar."""
    return json.loads(json.dumps(sources_of(traced(module))))


def test_the_same_source_is_unchanged_whether_its_module_is_loaded_or_not(loaded):
    module = loaded()
    told = written(module)
    assert changed(told) == ""
    del sys.modules[module.__name__]
    assert changed(told) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# of it", "# of all of it"),
        ("Twice as much", "The double"),
        ("import dataclasses", "\n\nimport dataclasses"),
        ("x: int", "z: int"),
    ],
)
def test_what_no_traced_function_says_does_not_count(loaded, old, new):
    told = written(loaded())
    loaded(SOURCE.replace(old, new))
    assert changed(told) == ""


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [("2 * x", "3 * x", "twice"), ("y + self.offset", "y - self.offset", "Model.step"), ("def twice", "def thrice", "twice")],
)
def test_a_change_of_traced_code_is_told_by_name(loaded, old, new, where):
    told = written(loaded())
    loaded(SOURCE.replace(old, new))
    assert changed(told).endswith(f":{where} changed")


def test_a_source_that_is_gone_or_no_python_is_a_change(loaded):
    told = written(loaded())
    module = loaded("def twice(x):\n    return 2 * x\n")
    assert changed(told).endswith(":Model.step changed")
    path = Path(module.__file__)
    path.write_text("def twice(:")
    assert "no Python" in changed(told)
    sys.modules.pop(module.__name__)
    path.unlink()
    importlib.invalidate_caches()
    assert "not found" in changed(told)


def test_code_that_is_made_while_running_is_found_where_it_is_held(loaded):
    module = loaded()
    told = json.loads(json.dumps(sources_of([module.Point.__init__.__code__, module.Pair.__new__.__code__])))
    assert changed(told) == ""
    loaded(SOURCE.replace("x: int", "x: int = 2"))
    assert changed(told) == ""  # a default is no code
    loaded(SOURCE.replace("x: int", "x: int\n    y: int"))
    assert changed(told).endswith(":Point.__init__ changed")
    loaded(SOURCE.replace("right: int", "right: int\n    third: int"))
    assert changed(told).endswith(":Pair.__new__ changed")


def test_code_that_nobody_could_find_again_is_refused():
    space = {}
    exec("def lost(x):\n    return x", space)  # noqa: S102 -- code of no file is what this is about
    with pytest.raises(UnknownSource, match="lost"):
        sources_of([space["lost"].__code__])


def test_the_names_and_globals_that_code_reads_are_known(loaded):
    module = loaded()
    assert {"offset", "LIMIT"} <= names_in(traced(module))
    assert globals_in(traced(module)) == [f"{module.__name__}:LIMIT"]
