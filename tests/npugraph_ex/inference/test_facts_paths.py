"""Places and ranges as plain data: what can be said, and that nothing else can."""

import pytest

from npugraph_ex.inference.calls_source import source
from npugraph_ex.inference.facts import Facts
from npugraph_ex.inference.facts_paths import MISSING, NoPath, Paths, Roots, follow, spoken
from npugraph_ex.inference.facts_shapes import NoRange, Reference, holds, read_ranges, used, without

SCALE = 2


class Thing:
    KIND = "k"

    def __init__(self):
        self.items = {"a": [1, 2], 3: "three", (1, 2): "pair"}
        self.pair = (4, 5)


def function(thing):
    return thing.items, SCALE


def paths():
    return Paths(function, {"__import_torch_dot_nn": "torch.nn"})


@pytest.mark.parametrize(
    ("expression", "value", "words"),
    [
        ("L['thing'].items['a'][1]", 2, "thing.items['a'][1]"),
        ("list.__getitem__(L['thing'].items['a'], 0)", 1, "thing.items['a'][0]"),
        ("dict.__getitem__(L['thing'].items, 3)", "three", "thing.items[3]"),
        ("list(dict.keys(L['thing'].items))[1]", 3, "thing.items's key 1"),
        ("L['thing'].items[list(dict.keys(L['thing'].items))[1]]", "three", "thing.items's nth 1"),
        ("L['thing'].items[(1, 2)]", "pair", "thing.items[(1, 2)]"),
        ("getattr(L['thing'], 'pair')[-1]", 5, "thing.pair[-1]"),
        ("object.__getattribute__(L['thing'], 'pair')", (4, 5), "thing.pair"),
        ("L['thing'].__dict__['pair']", (4, 5), "thing.pair"),
        ("dict(type(L['thing']).__dict__)['KIND']", "k", "KIND of the class of thing"),
        ("G['SCALE']", 2, "global mod.SCALE"),
        ("G['__builtins_dict___0']['len']", len, "builtins['len']"),
    ],
)
def test_dynamos_places_are_found_again_and_can_be_told(expression, value, words):
    known = paths()
    node = known.of(expression)
    assert follow(known.nodes, Roots(function, {"thing": Thing()}))[node] == value
    assert spoken(known.nodes, node, "mod", "thing") == words


@pytest.mark.parametrize(
    "expression",
    [
        "G['__import__']('os').system('true')",
        "L['thing'].items.pop('a')",
        "eval('1')",
        "L['thing'].items[open('/etc/passwd')]",
        "(lambda: 1)()",
        "L['thing']; 1",
        "___from_numpy(L['x'])",
        "L['x'].__tensor_flatten__()[0]",
        "G['___unnamed_scope_123']['x']",
    ],
)
def test_nothing_but_places_can_be_said(expression):
    with pytest.raises(NoPath):
        paths().of(expression)


def test_what_is_gone_is_missing_and_so_is_what_lies_in_it():
    known = paths()
    node = known.of("L['thing'].absent.deeper[0]")
    found = follow(known.nodes, Roots(function, {"thing": Thing()}))
    assert found[node] is MISSING
    assert found[0] is not MISSING


def test_a_place_is_written_once():
    known = paths()
    assert known.of("L['thing'].items['a']") == known.of("getattr(L['thing'], 'items')['a']")
    assert len(known.nodes) == 3


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "S[0] == (lambda: 1)()",
        "S.__class__",
        "S[0].real == 1",
        "S['x'] == 1",
        "[s for s in S]",
        "math.factorial(S[0]) == 1",
        "open(S[0])",
        "S[0] == 'text'",
        "(x := S[0]) == 1",
        "1 +",
    ],
)
def test_a_range_can_say_nothing_but_arithmetic(text):
    with pytest.raises(NoRange):
        holds(text, {0: 1})


def test_ranges_are_judged_as_python_would():
    numbers = {0: 6, 1: 3}
    true = [
        "S[0] == 2*S[1]",
        "(S[0] % 2) == 0",
        "2 <= S[1] and not S[1] > 5",
        "max(1, S[0] // 4) == 1",
        "math.floor(S[0] / 4) == 1",
    ]
    assert all(holds(text, numbers) for text in true)
    assert not holds("S[0] == S[1]", numbers)
    assert used("S[12] + S[3] == S[12]") == [3, 12]


def test_fixed_sizes_are_told_apart_from_ranges():
    names = {"L['x'].size()[0]": 0, "L['x'].stride()[1]": 1, "L['x'].storage_offset()": 2, "L['n']": 3}
    ranges = read_ranges(["S[0] == 4", "S[1] <= S[0]", "True", "S[3] == 0.5", "S[2] == 0"], names)
    assert ranges.fixed == {0: 4, 2: 0}
    assert ranges.expressions == ("S[1] <= S[0]", "S[3] == 0.5")
    assert ranges.references == (
        Reference("L['x']", "size", 0),
        Reference("L['x']", "stride", 1),
        Reference("L['x']", "storage_offset", None),
        Reference("L['n']", "value", None),
    )


PLAIN = {
    "module": "m",
    "own": "self",
    "code": "",
    "nodes": [[-1, "argument", "thing"]],
    "facts": [["len", 0, 2]],
    "classes": [],
    "names": [],
    "devices": [],
    "settings": {},
    "versions": {},
    "made_from": {},
}


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": [[0, "attr", "x"]]},
        {"nodes": [[-1, "attr", "x"]]},
        {"nodes": [[-1, "argument", "x"], [0, "call", "x"]]},
        {"nodes": [[-1, "argument", ["x"]]]},
        {"nodes": [[-1, "argument"]]},
        {"facts": [["runs", 0, "x"]]},
        {"facts": [["len", 7, 2]]},
        {"facts": None},
    ],
)
def test_facts_outside_the_vocabulary_are_refused(other):
    with pytest.raises(ValueError, match=r"no such|not of this format"):
        Facts.parse(PLAIN | other)


def test_facts_enter_the_checks_text_as_literals_alone():
    evil = 'x"]); __import__("os").system("true"); ([("'
    nodes = [[-1, "argument", "thing"], [0, "attr", evil], [1, "item", evil], [2, "literal", "(1, 2)"], [-1, "global", evil]]
    facts = [["len", 3, 2], ["has", 2, [evil, True]], ["absent", 2, evil], ["contains", 2, [evil, True]], ["value", 4, True]]
    text = source(Facts.parse(PLAIN | {"nodes": nodes, "facts": facts}), function.__code__)
    assert text.count("__import__") == text.count(repr(evil))
    with pytest.raises((ValueError, SyntaxError)):
        source(
            Facts.parse(PLAIN | {"nodes": [*nodes[:2], [1, "literal", "print(1)"]], "facts": [["len", 2, 2]]}), function.__code__
        )


@pytest.mark.parametrize(
    "fact",
    [
        ["type", 0, "0: print(1)"],
        ["range", -1, ["print(S[0])", [[0, "value", None]]]],
        ["range", -1, ["S[0] == 1", [[0, "fill_(0) or x", None]]]],
        ["storage", -1, [[0, 0], [0, "0] or print(1) or [0"]]],
        ["tensor", 0, ["t", "torch.float32", "cpu", "torch.strided", False, False, "1 or print(1)", [1], [1], None]],
        ["tensor", 0, ["t", "torch.float32", "cpu", "torch.strided", False, False, None, [1], [1], "1 or print(1)"]],
    ],
)
def test_a_fact_that_is_no_data_makes_no_text(fact):
    with pytest.raises((ValueError, NoRange, KeyError)):
        source(Facts.parse(PLAIN | {"facts": [fact]}), function.__code__)


def test_places_that_nothing_depends_on_are_left_out_and_their_conditions_kept():
    """0 is idle and was traced as one number with 1, which is none: what was said of 0 holds for 1."""
    told = ["S[0] == S[1]", "S[0] % 2 == 0", "2 <= S[0]", "3 <= S[2]", "S[4] == S[0]", "2 <= S[4]", "S[3] == S[1]", "2 <= S[5]"]
    assert without(told, {0, 4, 5}) == ["2 <= S[1]", "3 <= S[2]", "S[1] % 2 == 0", "S[3] == S[1]"]
    assert without(told, set()) == sorted(told)
    assert without(["S[0] == 2 * S[1]"], {0}) == ["S[0] == 2 * S[1]"]
