from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.errors import RecordError
from npgxd.toolchain.record import Record, coarse_trace, parse_record, trace_of_support_info
from tools.cann_sim import records as described

if TYPE_CHECKING:
    from pathlib import Path

    from tools.cann_sim import SimulatedCann

CORES = (40, 20)


def view(fields: dict[str, Any]) -> dict[str, Any]:
    first = {**fields["inputs"][0], "is_view": True, "stride": [1, 16], "offset": 4}
    return {**fields, "inputs": [first, *fields["inputs"][1:]]}


RECORDS = [
    described.matmul(16, 64, 128, cores=CORES),
    described.matmul(16, 64, 128, bias=True, cores=CORES),
    described.matmul(16, 64, 128, deterministic=True, cores=CORES),
    described.matmul(16, 64, 128, impl_mode="high_precision", cores=CORES),
    view(described.matmul(16, 64, 128, cores=CORES)),
    described.matmul(16, 64, 128, "bfloat16", cores=CORES),
    described.elementwise("Add", (4, 64), cores=CORES),
    described.elementwise("Add", (), cores=CORES),
    described.reduce("ReduceSum", (4, 8), [0], cores=CORES),
    described.concat([(2, 4), (3, 4)], 0, cores=CORES),
    described.record("Muls", [described.tensor((4,))], [described.tensor((4,))], [described.attribute("value", "float", 0.1)]),
    described.record("OneHot", [described.tensor((4,)), None, []], [described.tensor((4,))]),
]


def parse(fields: dict[str, Any]) -> Record:
    return parse_record("r", described.encode(fields))


def kernel_json(fields: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a kernel compiled from ``fields`` says of itself."""
    info = {
        "implMode": fields["impl_mode"],
        "deterministic": fields["deterministic"],
        "inputs": fields["inputs"],
        "outputs": fields["outputs"],
        "attrs": fields["attrs"],
    }
    return {"kernelName": "k", "supportInfo": {**info, **changes}}


def test_every_kernel_of_a_real_run_is_led_back_to_its_record(cann: SimulatedCann, tmp_path: Path) -> None:
    records = {record.trace: record for record in map(parse, RECORDS)}
    assert len(records) == len(RECORDS)
    source, work = tmp_path / "records", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    for at, record in enumerate(records.values()):
        (source / f"{at}.json").write_bytes(record.canonical)
    environ = {**os.environ, **cann.env()}
    command = [
        str(cann.op_compiler),
        "-p",
        str(source),
        "-v",
        "Ascend910B3",
        "-o",
        str(tmp_path / "out"),
        "-f",
        "true",
        "-j",
        "2",
    ]
    (tmp_path / "out").mkdir()
    subprocess.run(command, cwd=work, env=environ, check=True, capture_output=True, timeout=60)
    (package,) = (tmp_path / "out").glob("*.run")
    root = tmp_path / "root"
    subprocess.run(
        ["/bin/sh", str(package), "-q", f"--install-path={root}"], env=environ, check=True, capture_output=True, timeout=60
    )
    found = set()
    for path in root.glob("static_kernel/ai_core/static_kernel_*/ascend910b/*/*.json"):
        trace = trace_of_support_info(path.parent.name, json.loads(path.read_bytes()))
        assert records[trace].op_type == path.parent.name
        found.add(trace)
    assert found == set(records)


@pytest.mark.parametrize("fields", RECORDS, ids=lambda fields: fields["op_type"])
def test_a_kernel_has_its_records_trace(fields: dict[str, Any]) -> None:
    assert trace_of_support_info(fields["op_type"], kernel_json(fields)) == parse(fields).trace


def test_what_a_kernel_cannot_tell_is_not_in_a_trace() -> None:
    fields = described.reduce("ReduceSum", (4, 8), [0], cores=CORES)
    base = parse(fields)
    other = parse({**fields, "inputs": [fields["inputs"][0], {**fields["inputs"][1], "const_data": [1]}]})
    assert base.trace == other.trace
    assert base.digest != other.digest
    assert base.trace == parse(described.reduce("ReduceSum", (4, 8), [0], cores=(24, 12))).trace
    assert base.trace == parse({**described.reduce("ReduceSum", (4, 8), [0]), "extra_params": {"a": 1}, "tune_mode": "all"}).trace


@pytest.mark.parametrize(
    "changes",
    [
        {"opMode": "static", "coreNum": 20},
        {"deterministic": "True"},
        {"deterministic": True},
        {"deterministic": 1},
        {"implMode": "high_performance"},
        {
            "attrs": [
                {"name": "transpose_x2", "dtype": "bool", "value": 0},
                {"name": "transpose_x1", "dtype": "bool", "value": False},
            ]
        },
        {"inputs": [*described.matmul(16, 64, 128)["inputs"], None, None]},
    ],
)
def test_other_spellings_of_the_same_kernel_are_understood(changes: dict[str, Any]) -> None:
    fields = described.matmul(16, 64, 128, deterministic=True)
    assert trace_of_support_info("MatMulV2", kernel_json(fields, **changes)) == parse(fields).trace


def test_the_deterministic_flag_may_stand_beside_the_support_info() -> None:
    fields = described.matmul(16, 64, 128, deterministic=True)
    document = kernel_json(fields)
    del document["supportInfo"]["deterministic"]
    assert trace_of_support_info("MatMulV2", {**document, "deterministic": "true"}) == parse(fields).trace
    assert trace_of_support_info("MatMulV2", {**document, "deterministic": "false"}) != parse(fields).trace


def test_a_float_is_the_same_in_32_bits() -> None:
    def muls(value: float) -> dict[str, Any]:
        return described.record("Muls", [described.tensor((4,))], [], [described.attribute("value", "float", value)])

    assert trace_of_support_info("Muls", kernel_json(muls(0.10000000149011612))) == parse(muls(0.1)).trace
    assert parse(muls(0.1)).trace != parse(muls(0.1001)).trace
    assert parse(muls(1e300)).trace != parse(muls(1e301)).trace


def test_a_kernel_that_tells_less_is_found_by_the_coarse_trace() -> None:
    fields = described.matmul(16, 64, 128)
    told = [{name: tensor[name] for name in ("dtype", "format", "shape")} for tensor in fields["inputs"][:2]]
    outputs = [{name: tensor[name] for name in ("dtype", "format", "shape")} for tensor in fields["outputs"]]
    trace = trace_of_support_info("MatMulV2", kernel_json(fields, inputs=told, outputs=outputs))
    assert trace != parse(fields).trace
    assert coarse_trace(trace) == coarse_trace(parse(fields).trace) == trace
    assert coarse_trace(parse(view(fields)).trace) == trace
    assert coarse_trace(parse(described.matmul(16, 64, 256)).trace) != trace


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"supportInfo": None},
        {"supportInfo": []},
        {"supportInfo": {"inputs": [7]}},
        {"supportInfo": {"inputs": [{"dtype": "float"}]}},
        {"supportInfo": {"inputs": 7}},
        {"supportInfo": {"attrs": [7]}},
        {"supportInfo": {"attrs": [{"name": "a", "dtype": "int", "value": "x"}]}},
    ],
)
def test_a_kernel_that_does_not_say_what_it_is_for_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="kernel of Add"):
        trace_of_support_info("Add", document)
