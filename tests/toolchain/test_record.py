from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.errors import NpgxError, RecordError
from npgxd.toolchain.record import Record, RecordParser, parse_record, parse_records
from npgxd.wire import limits
from npgxd.wire.messages import Rejected
from tools.cann_sim import records as described

if TYPE_CHECKING:
    from collections.abc import Callable


def parse(fields: dict[str, Any], name: str = "r.json") -> Record:
    return parse_record(name, json.dumps(fields).encode())


def matmul(**changes: Any) -> dict[str, Any]:
    return {**described.matmul(16, 64, 128, bias=True, cores=(40, 20)), **changes}


def with_attribute(dtype: str, value: Any) -> dict[str, Any]:
    return matmul(attrs=[described.attribute("a", dtype, value)])


# ---- identity --------------------------------------------------------------------------------------------------------


def test_a_record_is_what_it_says() -> None:
    record = parse(matmul())
    assert (record.name, record.op_type) == ("r.json", "MatMulV2")
    assert record.digest == hashlib.sha256(record.canonical).hexdigest()
    assert json.loads(record.canonical) == matmul()


def test_identity_is_the_content_and_never_the_name() -> None:
    first, second = parse(matmul(), "MatMulV2_float16_ND_16_64_0.json"), parse(matmul(), "MatMulV2_float16_ND_16_64_7.json")
    assert first.digest == second.digest
    assert first.canonical == second.canonical


def test_the_spelling_of_json_does_not_count() -> None:
    fields = matmul(note="é")
    reversed_keys = dict(reversed(fields.items()))
    spellings = [
        json.dumps(fields),
        json.dumps(fields, indent=2, sort_keys=True),
        json.dumps(reversed_keys, separators=(",", ":"), ensure_ascii=False),
        f"\n\t {json.dumps(reversed_keys, indent=7)} \r\n",
    ]
    assert len({parse_record("r", spelling.encode()).digest for spelling in spellings}) == 1


def test_what_only_the_debug_folder_has_does_not_count() -> None:
    assert parse(matmul(bin_type=1, bin_info="/usr/local/Ascend/x.o")).canonical == parse(matmul()).canonical


def test_the_canonical_form_is_itself_a_record() -> None:
    record = parse(matmul(bin_type=1))
    assert parse_record("again", record.canonical).canonical == record.canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (with_attribute("float", 1), with_attribute("float", 1.0)),
        (with_attribute("float32", 1e3), with_attribute("float32", 1000)),
        (with_attribute("list_float", [0, 1.5]), with_attribute("list_float", [0.0, 1.5])),
        (with_attribute("int", 4.0), with_attribute("int", 4)),
        (with_attribute("listInt", [1.0, 2]), with_attribute("listInt", [1, 2])),
        (with_attribute("bool", 1), with_attribute("bool", True)),
        (with_attribute("list_bool", [0, True]), with_attribute("list_bool", [False, 1])),
        (with_attribute("list_list_int", [[1.0], []]), with_attribute("list_list_int", [[1], []])),
    ],
)
def test_a_number_is_spelled_as_its_dtype_says(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert parse(one).canonical == parse(other).canonical


def test_constant_data_is_spelled_as_its_tensor_says() -> None:
    def reduce(dtype: str, data: Any) -> Record:
        return parse(matmul(inputs=[described.tensor((2,), dtype, const_data=data)]))

    assert reduce("float", [1, 2]).digest == reduce("float", [1.0, 2.0]).digest
    assert reduce("int64", [1.0]).digest == reduce("int64", [1]).digest
    assert reduce("int64", "NULL").digest != reduce("int64", [0]).digest
    assert reduce("unheard_of", [1]).digest != reduce("unheard_of", [1.0]).digest


def change_first_input(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda fields: {**fields, "inputs": [{**fields["inputs"][0], **changes}, *fields["inputs"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        lambda f: {**f, "op_type": "MatMulV3"},
        lambda f: {**f, "impl_mode": "high_precision"},
        lambda f: {**f, "deterministic": "true"},
        lambda f: {**f, "deterministic_level": 1},
        lambda f: {**f, "tune_mode": "tune"},
        lambda f: {**f, "platform_info": {"vector_core_cnt": 24, "cube_core_cnt": 20}},
        lambda f: {**f, "platform_info": {"vector_core_cnt": 40, "cube_core_cnt": 12}},
        lambda f: {**f, "extra_params": {"rank_size": 8}},
        lambda f: {**f, "of_a_later_release": [1]},
        lambda f: {**f, "inputs": f["inputs"][::-1]},
        lambda f: {**f, "inputs": f["inputs"][:2]},
        lambda f: {**f, "inputs": [*f["inputs"][:2], None]},
        lambda f: {**f, "inputs": [f["inputs"][:2], f["inputs"][2]]},
        lambda f: {**f, "attrs": f["attrs"][:1]},
        lambda f: {**f, "attrs": [described.attribute("transpose_x1", "bool", True), f["attrs"][1]]},
        change_first_input(dtype="bfloat16"),
        change_first_input(format="FRACTAL_NZ"),
        change_first_input(shape=[64, 16]),
        change_first_input(origin_shape=[64, 16]),
        change_first_input(origin_format="NCHW"),
        change_first_input(is_view=True, stride=[1, 16], offset=0),
        change_first_input(value_depend=True, const_data=[1, 2]),
        change_first_input(sub_format=1),
    ],
)
def test_fc04_whatever_may_decide_bytes_is_in_the_identity(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    assert parse(change(matmul())).digest != parse(matmul()).digest


def test_another_constant_is_another_kernel() -> None:
    assert parse(described.reduce("ReduceSum", (4, 8), [0])).digest != parse(described.reduce("ReduceSum", (4, 8), [1])).digest


# ---- refusals --------------------------------------------------------------------------------------------------------


def tensor(**changes: Any) -> dict[str, Any]:
    return matmul(inputs=[{**described.tensor((4,)), **changes}])


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (without(matmul(), "op_type"), "op_type"),
        (matmul(op_type="../../etc/passwd"), "op_type"),
        (matmul(op_type="9Lives"), "op_type"),
        (matmul(op_type="A" * 129), "op_type"),
        (matmul(op_type="MatMul\n"), "op_type"),
        (matmul(op_type=7), "op_type"),
        (without(matmul(), "inputs"), "inputs must be an array"),
        (matmul(outputs={}), "outputs must be an array"),
        (matmul(attrs=None), "attrs must be an array"),
        (matmul(inputs=[7]), "inputs[0] must be a tensor object"),
        (matmul(inputs=[[[]]]), "inputs[0][0] must be a tensor object"),
        (tensor(shape=[-1]), "inputs[0].shape has a dimension of -1"),
        (tensor(shape=[2**49]), "has a dimension of"),
        (tensor(shape=[2**40, 2**40]), "elements"),
        (tensor(shape=[True]), "whole numbers"),
        (tensor(shape=[4.0]), "whole numbers"),
        (tensor(shape=["4"]), "whole numbers"),
        (tensor(shape=4), "must be an array"),
        (tensor(shape=[1] * 33), "dimensions"),
        (tensor(dtype=""), None),
        (tensor(dtype=None), "inputs[0].dtype must be a word"),
        (tensor(format="N D"), "inputs[0].format must be a word"),
        (tensor(origin_shape=[-2]), "origin_shape"),
        (tensor(index="0"), "whole number"),
        (tensor(is_view="yes"), "true or false"),
        (tensor(is_view=True, stride=[1.5], offset=0), "stride"),
        (tensor(is_view=True, stride=[1], offset=-1), "offset must not be negative"),
        (tensor(const_data={"a": 1}), "const_data"),
        (tensor(dtype="int64", const_data=[1.5]), "const_data"),
        (matmul(inputs=[without(described.tensor((4,)), "shape")]), "has no shape"),
        (matmul(attrs=[7]), "attrs[0] must be an attribute object"),
        (matmul(attrs=[{"name": "a", "dtype": "int"}]), "attrs[0] has no value"),
        (matmul(attrs=[described.attribute("a", "int", 1), described.attribute("a", "int", 2)]), "given twice"),
        (with_attribute("int", "1"), "whole number"),
        (with_attribute("int", 1.5), "whole number"),
        (with_attribute("int", True), "whole number"),
        (with_attribute("int", 2**70), "whole number"),
        (with_attribute("float", "1.0"), "number"),
        (with_attribute("float", None), "number"),
        (with_attribute("float", 2**60), "exactly"),
        (with_attribute("bool", 2), "true or false"),
        (with_attribute("str", 1), "must be text"),
        (with_attribute("list_int", 1), "must be an array"),
        (with_attribute("list_int", [1, None]), "attrs[0].value[1]"),
        (matmul(deterministic=True), "deterministic"),
        (matmul(deterministic="yes"), "deterministic"),
        (matmul(impl_mode=1), "impl_mode"),
        (matmul(platform_info=[]), "platform_info must be an object"),
        (matmul(platform_info={"vector_core_cnt": -1}), "must not be negative"),
        (matmul(deterministic_level="1"), "deterministic_level"),
    ],
)
def test_a_record_that_breaks_the_schema_is_refused_by_field(fields: dict[str, Any], reason: str | None) -> None:
    if reason is None:
        parse(fields)
        return
    with pytest.raises(RecordError) as caught:
        parse(fields, "bad_0.json")
    assert "bad_0.json" in caught.value.message
    assert reason in str(caught.value.data["reason"])


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"op_type": "Add"} x', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"Add"', "not a JSON object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"op_type": "Add", "op_type": "Mul"}', "given twice"),
        (b'{"op_type": "Add", "inputs": [{"shape": [1], "shape": [2]}]}', "given twice"),
        (b'{"op_type": "Add", "x": NaN}', "NaN"),
        (b'{"op_type": "Add", "x": -Infinity}', "-Infinity"),
        (b'{"op_type": "Add", "inputs": [], "outputs": [], "attrs": [], "x": 1e999}', "out of range"),
        (b'{"op_type": "Add", "inputs": [], "outputs": [], "attrs": [], "x": "\\ud800"}', "surrogate"),
        (b'{"op_type": "Add", "inputs": [], "outputs": [], "attrs": [], "\\udfff": 1}', "surrogate"),
        (b'{"op_type": "Add", "x": ' + b"[" * 20 + b"]" * 20 + b"}", "nested deeper"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 50_000, "nested deeper"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not JSON"),
        (b" " * (limits.MAX_RECORD_BYTES + 1), "bytes"),
        (b'{"x": "' + b"\0" + b'"}', "not JSON"),
        (b"\x80\x04\x95", "not UTF-8"),
    ],
)
def test_fc57_bytes_that_are_no_record_are_refused_with_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        parse_record("half written.json", raw)
    assert "half written.json" in caught.value.message
    assert reason in caught.value.message


def test_a_bad_record_is_named_and_the_rest_goes_on() -> None:
    good = json.dumps(matmul()).encode()
    records, rejected = parse_records([("a", good), ("b", b"{"), ("c", good), ("d" * 300, b"[]")])
    assert [record.name for record in records] == ["a", "c"]
    assert [item.name for item in rejected] == ["b", "d" * limits.MAX_NAME]
    assert rejected[1].reason == "not a JSON object"
    for item in rejected:  # it can be sent as it is
        assert Rejected.parse({"name": item.name, "reason": item.reason}) == item


def test_a_reason_is_short_enough_for_a_message_whatever_the_record_held() -> None:
    for raw in (b'{"' + b"k" * 200_000 + b'": 1, "' + b"k" * 200_000 + b'": 2}', json.dumps(tensor(shape=[10**4000])).encode()):
        _, rejected = parse_records([("r", raw[: limits.MAX_RECORD_BYTES])])
        assert len(rejected[0].reason) <= limits.MAX_TEXT


# ---- the memo --------------------------------------------------------------------------------------------------------


def test_known_bytes_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = RecordParser()
    raw = json.dumps(matmul()).encode()
    first = parser.record("first", raw)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("npgxd.toolchain.record.read_json", refuse)
    second = parser.record("second", raw)
    assert second.name == "second"
    assert (second.canonical, second.digest, second.trace) == (first.canonical, first.digest, first.trace)


def test_the_memo_is_bounded_in_number_and_bytes_and_keeps_what_was_used_last() -> None:
    many = [(str(size), described.encode(described.elementwise("Add", (size, 4)))) for size in range(1, 30)]
    parser = RecordParser(max_records=10)
    parser.parse(many[:10])
    parser.record("0", many[0][1])
    parser.parse(many[10:15])
    assert len(parser) == 10
    assert hashlib.sha256(many[0][1]).digest() in parser._seen
    assert hashlib.sha256(many[1][1]).digest() not in parser._seen
    small = RecordParser(max_bytes=10_000)
    small.parse(many)
    assert 0 < len(small) < 10


def test_a_record_larger_than_the_memo_is_parsed_all_the_same() -> None:
    parser = RecordParser(max_bytes=100)
    assert parser.record("r", json.dumps(matmul()).encode()).op_type == "MatMulV2"
    assert len(parser) == 0


def test_a_bad_record_is_refused_each_time() -> None:
    parser = RecordParser()
    for _ in range(2):
        with pytest.raises(NpgxError):
            parser.record("r", b"{")
