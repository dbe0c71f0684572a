"""Properties of records that hypothesis tries to break."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npgxd.errors import RecordError
from npgxd.toolchain.record import coarse_trace, parse_record, trace_of_support_info

if TYPE_CHECKING:
    import random

words = st.sampled_from(["float", "float16", "int64", "bool", "bfloat16", "complex64", "ND", "FRACTAL_NZ", ""])
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=10
)
shapes = st.lists(st.integers(0, 4096), max_size=4)
tensors = st.fixed_dictionaries(
    {"dtype": words, "format": words, "shape": shapes},
    optional={
        "origin_shape": shapes,
        "name": st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
        "is_view": st.booleans(),
        "stride": shapes,
        "const_data": st.lists(st.integers(0, 9), max_size=3),
    },
)
elements = st.none() | tensors | st.lists(tensors, max_size=2)
attributes = st.lists(
    st.sampled_from(["float", "int", "list_int", "list_bool"]).flatmap(
        lambda dtype: st.fixed_dictionaries(
            {
                "dtype": st.just(dtype),
                "value": {
                    "float": st.integers(-9, 9) | st.floats(-1e9, 1e9),
                    "int": st.integers(-9, 9),
                    "list_int": st.lists(st.integers(-9, 9), max_size=3),
                    "list_bool": st.lists(st.booleans(), max_size=3),
                }[dtype],
            }
        )
    ),
    max_size=3,
).map(lambda items: [{"name": f"a{at}", "index": at, **item} for at, item in enumerate(items)])
records = st.fixed_dictionaries(
    {
        "op_type": st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,20}", fullmatch=True),
        "inputs": st.lists(elements, max_size=3),
        "outputs": st.lists(elements, max_size=2),
        "attrs": attributes,
    },
    optional={
        "deterministic": st.sampled_from(["true", "false"]),
        "impl_mode": st.sampled_from(["", "high_precision"]),
        "platform_info": st.fixed_dictionaries({"vector_core_cnt": st.integers(0, 64), "cube_core_cnt": st.integers(0, 64)}),
        "later": st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=2),
    },
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same JSON value with the keys of every object in another order."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, chance)) for key, item in value.items()]
        chance.shuffle(items)
        return dict(items)
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@quick
@given(records, st.randoms(use_true_random=False), st.sampled_from([None, 1, 4]), st.booleans())
def test_order_space_and_escapes_never_count(
    fields: dict[str, Any],
    chance: random.Random,
    indent: int | None,
    ascii_: bool,
) -> None:
    plain = parse_record("a", json.dumps(fields).encode())
    other = parse_record("b", json.dumps(shuffled(fields, chance), indent=indent, ensure_ascii=ascii_).encode())
    assert (plain.digest, plain.canonical, plain.trace) == (other.digest, other.canonical, other.trace)


@quick
@given(records)
def test_the_canonical_form_is_a_fixed_point(fields: dict[str, Any]) -> None:
    record = parse_record("a", json.dumps(fields).encode())
    again = parse_record("b", record.canonical)
    assert (again.canonical, again.trace) == (record.canonical, record.trace)


@quick
@given(records, st.data())
def test_another_shape_dtype_or_attribute_is_another_record(fields: dict[str, Any], data: st.DataObject) -> None:
    places = [
        (side, at, name)
        for side in ("inputs", "outputs")
        for at, element in enumerate(fields[side])
        if isinstance(element, dict)
        for name in ("shape", "dtype", "format")
    ] + [("attrs", at, "value") for at in range(len(fields["attrs"]))]
    other = json.loads(json.dumps(fields))
    if not places:
        other["inputs"].append(None)
    else:
        side, at, name = data.draw(st.sampled_from(places))
        element = other[side][at]
        if name == "value":
            element.update({"dtype": "int", "value": data.draw(st.integers(10, 99))})
        else:
            element[name] = [*element[name], 1] if name == "shape" else f"{element[name]}x"
    one, two = (parse_record("r", json.dumps(item).encode()) for item in (fields, other))
    assert one.digest != two.digest
    assert one.trace != two.trace or not places


@quick
@given(st.binary(max_size=200))
def test_any_bytes_give_a_record_or_a_record_error(raw: bytes) -> None:
    with pytest.raises(RecordError):
        parse_record("r", raw)


@quick
@given(records, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4), st.integers(0, 400))
def test_a_damaged_record_gives_a_record_or_a_record_error(fields: dict[str, Any], hits: list[tuple[int, int]], cut: int) -> None:
    raw = bytearray(json.dumps(fields).encode())
    for position, byte in hits:
        raw[position % len(raw)] = byte
    survives(bytes(raw[: len(raw) - cut if cut < 20 else len(raw)]))


@quick
@given(
    records, st.sampled_from(["op_type", "inputs", "outputs", "attrs", "deterministic", "platform_info", "extra_params"]), values
)
def test_any_value_in_any_field_gives_a_record_or_a_record_error(fields: dict[str, Any], name: str, value: Any) -> None:
    survives(json.dumps({**fields, name: value}).encode())
    survives(json.dumps({**fields, "inputs": [{"dtype": "float", "format": "ND", "shape": [1], "const_data": value}]}).encode())
    survives(json.dumps({**fields, "inputs": [{"dtype": "float", "format": "ND", "shape": value}]}).encode())
    for dtype in ("float", "list_list_int", "bool", "strange"):
        survives(json.dumps({**fields, "attrs": [{"name": "a", "dtype": dtype, "value": value}]}).encode())


@quick
@given(values)
def test_any_support_info_gives_a_trace_or_a_record_error(value: Any) -> None:
    for document in (
        {"supportInfo": value},
        {"supportInfo": {"inputs": value}},
        {"supportInfo": {"attrs": value}},
        {"supportInfo": {"inputs": [{"dtype": value, "format": value, "shape": value}], "implMode": value}},
        {"supportInfo": {"attrs": [{"name": "a", "dtype": "float", "value": value}]}},
    ):
        try:
            trace = trace_of_support_info("Add", document)
        except RecordError:
            continue
        assert isinstance(coarse_trace(trace), str)


def survives(raw: bytes) -> None:
    try:
        record = parse_record("r", raw)
    except RecordError:
        return
    assert parse_record("again", record.canonical).digest == record.digest
    assert isinstance(coarse_trace(record.trace), str)
