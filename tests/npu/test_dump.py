from __future__ import annotations

import json
from collections import Counter

import pytest

from npgxd.client import read_dump
from npgxd.toolchain.record import parse_records
from tools.cann_sim.compiler.record import Record

VERSIONS = ("8.5.0", "9.0.0", "9.1.0")


@pytest.fixture(scope="module", params=VERSIONS)
def dumped(request, homes, tmp_path_factory):
    """A dump of one CANN version: what the program told, and the directory."""
    from machine import Npu

    npu = Npu(homes(request.param), tmp_path_factory.mktemp("dump"))
    directory = npu.directory / "out"
    return request.param, npu.run("dumping", directory), directory


def folders(told, directory):
    return [directory / f"{told['pid']}{suffix}" for suffix in ("", "_debug", "_opcompile")]


def records(folder):
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def test_a_dump_is_written_when_it_stops_into_three_folders_for_its_user_alone(dumped):
    _, told, directory = dumped
    assert told["before"] == []
    assert sorted(directory.iterdir()) == sorted(folders(told, directory))
    assert {mode for name, mode in told["modes"].items() if name.endswith(".json")} == {"0o600"}
    assert {mode for name, mode in told["modes"].items() if "/" not in name} == {"0o700"}


def test_a_second_start_and_a_second_stop_fail(dumped):
    _, told, _ = dumped
    assert told["second_start"] != 0
    assert told["second_stop"] != 0


def test_every_dumped_record_is_one_to_npgxd_and_to_the_simulated_compiler(dumped):
    _, told, directory = dumped
    for folder in folders(told, directory):
        read, skipped = read_dump(folder)
        parsed, rejected = parse_records(read)
        assert (skipped, rejected) == ([], [])
        assert len(parsed) == len(read) > 0
        for _, raw in read:
            Record.parse(raw)


def test_the_folders_hold_what_their_version_puts_there(dumped):
    version, told, directory = dumped
    target, debug, compilable = (Counter(record["op_type"] for record in records(folder)) for folder in folders(told, directory))
    assert set(target) == {"MatMulV2", "MatMulV3", "BatchMatMulV2", "SoftmaxV2"}
    assert {"GatherV2", "Range", "ReduceSum", "Index", "IndexPutV2", "ConcatD", "Cast"} - set(debug) <= {"Cast"}
    left_out = {"GatherV2", "ReduceSum"} | ({"Range"} if version != "8.5.0" else set())
    assert debug - compilable == Counter({op_type: debug[op_type] for op_type in left_out})
    assert told["counters"]["dumps"][0]["records"] == sum(debug.values())


def test_records_have_the_schema_of_their_version(dumped):
    version, told, directory = dumped
    _, debug, compilable = folders(told, directory)
    for record in records(compilable):
        assert ("platform_info" in record) is (version != "8.5.0")
        assert not {"bin_type", "bin_info"} & set(record)
    assert all({"bin_type", "bin_info"} <= set(record) for record in records(debug))
    turned = next(
        record for record in records(compilable) if record["op_type"] == "Adds" and record["inputs"][0]["shape"] == [4, 3]
    )
    view = {key: value for key, value in turned["inputs"][0].items() if key in {"is_view", "stride", "offset"}}
    assert view == ({"is_view": True, "stride": [1, 4], "offset": 0} if version == "9.1.0" else {})


def test_names_tell_the_first_tensor_and_are_counted(dumped):
    _, told, directory = dumped
    names = {path.name for path in folders(told, directory)[2].iterdir()}
    assert {"Adds_float_ND_4_3_0.json", "MatMulV2_float_ND_4_4_0.json", "Mul_float16_ND_2_1_64_1.json"} <= names
