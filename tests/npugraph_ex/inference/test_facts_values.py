"""Values as plain data: what is one value and what is another."""

import collections
import enum
import functools
import json
import math
import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npugraph_ex.inference.facts_values import Unencodable, encode, told


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Count(int):
    pass


APART = [
    *(None, True, False, 0, 1, -1, 2**80, 0.0, -0.0, 1.0, math.nan, math.inf, 1j, complex(0, -0.0)),
    *("", "1", "None", b"", b"1", (), [], {}, set(), frozenset(), (1,), [1], {1}, frozenset({1}), {1: 1}, {1: True}, {True: 1}),
    *(torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("meta"), torch.strided, torch.channels_last),
    *(torch.Size([1, 2]), (1, 2), [1, 2], {1: 2, 3: 4}, {3: 4, 1: 2}, collections.OrderedDict({1: 2}), collections.deque([1])),
    *(slice(1), slice(1, 2), range(3), range(1, 3), Ellipsis, NotImplemented, Colour.RED, Colour.BLUE, Count(1)),
    *(
        int,
        list[int],
        Colour,
        torch,
        math,
        len,
        list.append,
        math.sqrt,
        torch.relu,
        torch.ops.aten.relu.default,
        torch.ops.aten.relu,
    ),
    *(lambda x: x, lambda x: x + 1, functools.partial(lambda x: x, 1), operator.attrgetter),
]


@pytest.mark.parametrize("value", APART, ids=range(len(APART)))
def test_a_value_is_itself_after_a_round_trip_and_nothing_else(value):
    encoded = encode(value)
    assert json.loads(json.dumps(encoded)) == encoded
    assert encode(value) == encoded
    assert [other for other in APART if other is not value and json.dumps(encode(other)) == json.dumps(encoded)] == []
    assert told(encoded)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner)
    )
)
def test_equal_values_of_equal_types_have_equal_data(value):
    encoded = encode(value)
    assert json.loads(json.dumps(encoded)) == encoded
    assert encode(json.loads(json.dumps(value)) if isinstance(value, (int, str)) else value) == encoded


def test_sets_are_the_same_in_any_order():
    names = [f"name{number}" for number in range(50)]
    assert encode(set(names)) == encode(set(names[25:]) | set(names[:25]))


@pytest.mark.parametrize(
    "value", [object(), torch.Generator(), iter([]), [object()], {"a": object()}], ids=lambda value: type(value).__name__
)
def test_what_means_nothing_elsewhere_is_refused(value):
    with pytest.raises(Unencodable):
        encode(value)


def test_what_holds_itself_is_refused_and_does_not_recur():
    loop = []
    loop.append(loop)
    with pytest.raises(Unencodable):
        encode(loop)


def test_sentences_say_what_the_user_wrote():
    assert [told(encode(value)) for value in (2, 2.5, True, "x", None, Colour.RED, torch.float32, [1, (2, "a")])] == [
        *("2", "2.5", "True", "'x'", "None"),
        *("tests.npugraph_ex.inference.test_facts_values:Colour.RED", "torch.float32", "[1, (2, 'a')]"),
    ]
