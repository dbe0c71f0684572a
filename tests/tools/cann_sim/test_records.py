from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tools.cann_sim.compiler.record import BadRecord, Record
from tools.cann_sim.ops import op_types
from tools.cann_sim.records import concat, elementwise, encode, many, matmul, reduce, write_records

if TYPE_CHECKING:
    from pathlib import Path


def test_a_matmul_has_the_schema_of_the_dump():
    described = matmul(4, 8, 16, "bfloat16", cores=(40, 20))
    assert described["op_type"] == "MatMulV2"
    assert [tensor and tensor["shape"] for tensor in described["inputs"]] == [[4, 8], [8, 16], None]
    assert described["outputs"][0]["shape"] == [4, 16]
    assert described["inputs"][0]["dtype"] == "bfloat16"
    assert described["deterministic"] == "false"
    assert described["platform_info"] == {"vector_core_cnt": 40, "cube_core_cnt": 20}
    assert [attr["name"] for attr in described["attrs"]] == ["transpose_x1", "transpose_x2"]
    assert matmul(4, 8, 16, bias=True)["inputs"][2]["param_type"] == "optional"


def test_elementwise_knows_how_many_inputs_the_usual_ops_have():
    assert len(elementwise("Add", (4,))["inputs"]) == 2
    assert len(elementwise("Exp", (4,))["inputs"]) == 1
    assert len(elementwise("Select", (4,), inputs=3)["inputs"]) == 3


def test_a_reduction_has_its_axes_as_a_constant():
    described = reduce("ReduceSum", (4, 8), [-1], keep_dims=False)
    assert described["inputs"][1]["const_data"] == [-1]
    assert described["inputs"][1]["value_depend"] is True
    assert described["outputs"][0]["shape"] == [4]
    assert reduce("ReduceSum", (4, 8), [1])["outputs"][0]["shape"] == [4, 1]


def test_a_concat_has_a_dynamic_input():
    described = concat([(2, 3), (2, 5)], 1)
    assert [tensor["param_type"] for tensor in described["inputs"][0]] == ["dynamic", "dynamic"]
    assert described["outputs"][0]["shape"] == [2, 8]


def test_many_gives_different_records_of_known_ops_and_the_same_ones_again():
    made = many(400)
    assert len({encode(item) for item in made}) == 400
    assert {item["op_type"] for item in made} <= set(op_types())
    assert many(400) == made
    assert many(100) == made[:100]
    assert len({Record(item).simplified_key(deterministic=False) for item in made}) == 400


def test_records_are_written_as_a_dump_writes_them(tmp_path: Path):
    paths = write_records(tmp_path / "7_opcompile", [matmul(4, 8, 16), elementwise("Add", (2,), "float")], first=3)
    assert [path.name for path in paths] == ["MatMulV2_float16_ND_4_8_3.json", "Add_float_ND_2_4.json"]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert paths[0].parent.stat().st_mode & 0o777 == 0o700
    text = paths[0].read_text()
    assert text == json.dumps(matmul(4, 8, 16), indent=2, sort_keys=True)


def test_a_kernels_name_is_its_records_own():
    names = {Record(item).kernel_name(deterministic=False) for item in many(200)}
    assert len(names) == 200
    assert all(re.fullmatch(r"static_kernel_[A-Za-z0-9]+_\w+_d0", name) for name in names)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"op_type": 3}',
        b'{"op_type": "Add"}',
        b'{"op_type": "a/b", "inputs": [], "outputs": [], "attrs": []}',
        b'{"op_type": "Add", "inputs": [{}], "outputs": [], "attrs": []}',
        b'{"op_type": "Add", "inputs": [], "outputs": [], "attrs": [{}]}',
        b'{"op_type": "Add", "inputs": [{"dtype": "float", "format": "ND", "shape": ["x"]}], "outputs": [], "attrs": []}',
    ],
)
def test_what_is_no_record_is_refused(raw: bytes):
    with pytest.raises(BadRecord):
        Record.parse(raw)
