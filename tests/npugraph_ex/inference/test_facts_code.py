"""Digests of code: what a change of the text may and may not change."""

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from npgxd.client import codes
from npgxd.client.codes import class_described, code_digest, described

TEXT = '''
def f(x, k=3):
    """What it does."""
    # how it does it
    y = x * k
    return [g for g in range(y) if g in {"a", "b", "c"}]
'''


def function(text, name="f", file="model.py"):
    scope = {}
    exec(compile(textwrap.dedent(text), file, "exec"), scope)  # noqa: S102 -- the text above
    return scope[name]


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("# how it does it", "# in another way of saying it"),
        TEXT.replace("    # how it does it\n", ""),
        TEXT.replace("What it does.", "What it is for."),
        "\n\n\n# moved down\n" + TEXT,
        TEXT.replace("x * k", "x  *  ( k )"),
    ],
)
def test_what_does_nothing_leaves_the_digest(text):
    assert code_digest(function(text, file="elsewhere/other.py").__code__) == code_digest(function(TEXT).__code__)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * k", "x + k"),
        ('"a"', '"z"'),
        ("in range(y)", "in range(y + 1)"),
        ("x * k", "x * k * 1.0"),
        ("return [", "return list(q for q in ["),
        ("k=3", "*, k=3"),
    ],
)
def test_what_does_something_changes_the_digest(old, new):
    text = TEXT.replace(old, new)
    text = text.replace('"c"}]', '"c"}])') if "list(q" in new else text
    assert code_digest(function(text).__code__) != code_digest(function(TEXT).__code__)


def test_zero_and_minus_zero_and_true_and_one_are_other_code():
    texts = [f"def f(x): return x * {value}" for value in ("0.0", "-0.0", "1", "True", "1.0", "1j", "b'1'", "'1'")]
    assert len({code_digest(function(text).__code__) for text in texts}) == len(texts)


def test_the_hash_seed_does_not_count():
    """A set of constants lies in the code in an order that depends on it."""
    script = textwrap.dedent(f"""
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("codes", {codes.__file__!r})
        codes = importlib.util.module_from_spec(spec)
        sys.modules["codes"] = codes
        spec.loader.exec_module(codes)
        scope = {{}}
        exec({TEXT!r}, scope)
        print(codes.code_digest(scope["f"].__code__), "torch" in sys.modules)
    """)
    told = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert told == {f"{code_digest(function(TEXT).__code__)} False\n"}


def test_code_behind_wrappers_counts():
    def with_inner(text):
        inner = function(text)

        @functools.wraps(inner)
        def outer(*args):
            return inner(*args)

        return [outer, functools.partial(inner, 1), property(inner), staticmethod(inner), functools.lru_cache(inner)]

    for one, same, other in zip(with_inner(TEXT), with_inner(TEXT), with_inner(TEXT.replace("* k", "- k")), strict=True):
        assert described(one) == described(same) != described(other)


def test_what_is_no_code_has_no_description():
    assert described(3) is None
    assert described("text") is None
    assert described(Path()) is None


def test_only_methods_that_could_be_reached_count():
    def kind(body):
        return function(f"class f:\n    def used(self): return 1\n{textwrap.indent(textwrap.dedent(body), '    ')}")

    names = frozenset({"used", "helper"})
    plain = class_described(kind(""), names)
    assert class_described(kind("def unused(self): return 2"), names) == plain
    assert class_described(kind("def __init__(self): self.x = 1"), names) == plain
    assert class_described(kind("def helper(self): return 2"), names) != plain
    assert class_described(kind("def __getattr__(self, name): return 2"), names) != plain
    assert class_described(kind("def used(self): return 2"), names) != plain


def test_an_override_in_a_derived_class_counts():
    base = type("Base", (), {"used": function("def f(self): return 1")})
    derived = type("Derived", (base,), {})
    before = class_described(derived, frozenset({"used"}))
    derived.used = function("def f(self): return 1")
    assert class_described(derived, frozenset({"used"})) != before
