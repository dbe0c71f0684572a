"""A kernel's bytes are decided by the record, the flags, the SoC, the versions and the op's files, and by nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tools.cann_sim import Costs
from tools.cann_sim.records import attribute, elementwise, matmul, record, reduce, tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.cann_sim import SimulatedCann

TBE = "op_impl/ai_core/tbe"
RECORDS = [
    matmul(4, 8, 16),
    matmul(4, 8, 16, op_type="MatMulV3"),
    elementwise("Add", (4, 8)),
    elementwise("Cast", (4, 8)),
    elementwise("Equal", (4, 8)),
    elementwise("Transpose", (4, 8)),
    elementwise("AcmeRotaryEmbedding", (4, 8)),
    elementwise("GeluV2", (4, 8)),
]
ALL = {item["op_type"] for item in RECORDS}


def changed_ops(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert set(before) == set(after)
    return {name.split("/")[0] for name in before if before[name] != after[name]}


@pytest.fixture(scope="module")
def before(shared_home: SimulatedCann, tmp_path_factory: pytest.TempPathFactory, bench_type: type) -> dict[str, str]:
    """The kernels of a home as it was made."""
    made: dict[str, str] = bench_type(shared_home, tmp_path_factory.mktemp("before")).kernels(RECORDS)
    return made


def test_the_same_bytes_come_out_twice(shared, before: dict[str, str]):
    assert shared.kernels(RECORDS) == before


def test_the_same_bytes_come_out_of_another_home_order_directory_and_job_count(bench_for, shared):
    bench = bench_for()
    assert bench.kernels(list(reversed(RECORDS)), "-f", "true", "-j", "3", "-l", "info") == shared.kernels(RECORDS)


def test_the_debug_folders_keys_and_the_file_name_do_not_matter(shared):
    debug = [{**item, "bin_type": 1, "bin_info": f"/opt/{at}.o"} for at, item in enumerate(RECORDS)]
    assert shared.kernels([elementwise("Sub", (1,)), *debug]).items() >= shared.kernels(RECORDS).items()


def test_what_does_not_decide_a_kernel_does_not_change_it(shared, before: dict[str, str]):
    shared.environ = {"LOCAL_RANK": "3", "MASTER_PORT": "29501", "HOSTNAME": "other", "ASCEND_GLOBAL_LOG_LEVEL": "0"}
    assert shared.kernels(RECORDS) == before


@pytest.mark.parametrize(
    ("path", "ops"),
    [
        ("built-in/{tbe}/impl/add.py", {"Add"}),
        ("built-in/{tbe}/impl/ascendc/mat_mul_v2/mat_mul_v2.cpp", {"MatMulV2"}),
        ("built-in/{tbe}/impl/ascendc/common/cube_tiling.h", {"MatMulV2", "MatMulV3"}),
        ("built-in/{tbe}/impl/ascendc/common/elementwise.h", {"Add", "Cast", "Equal"}),
        ("built-in/{tbe}/op_tiling/lib/linux/x86_64/liboptiling_elementwise.so", {"Add", "Cast"}),
        ("built-in/{tbe}/op_tiling/lib/linux/x86_64/liboptiling_move.so", {"Transpose"}),
        ("vendors/acme/{tbe}/op_tiling/lib/linux/x86_64/libcust_opmaster_rt2.0.so", {"AcmeRotaryEmbedding", "GeluV2"}),
        ("vendors/acme/{tbe}/kernel/ascend910b/gelu_v2/GeluV2.o", {"GeluV2"}),
        ("built-in/{tbe}/impl/ascendc/common/simulated_pipe.h", ALL - {"AcmeRotaryEmbedding", "GeluV2"}),
        ("vendors/acme/version.info", {"AcmeRotaryEmbedding", "GeluV2"}),
        ("built-in/{tbe}/impl/gelu_v2.py", set()),
        ("built-in/{tbe}/impl/mul.py", set()),
        ("vendors/acme/{tbe}/kernel/ascend910_93/gelu_v2/GeluV2.o", set()),
    ],
)
def test_one_changed_byte_changes_exactly_the_ops_that_resolve_to_it(bench, before: dict[str, str], path: str, ops: set[str]):
    target: Path = bench.cann.opp / path.format(tbe=TBE)
    content = bytearray(target.read_bytes())
    content[-2] ^= 1
    target.write_bytes(content)
    assert changed_ops(before, bench.kernels(RECORDS)) == ops


def test_an_ops_table_entry_is_part_of_it(bench, before: dict[str, str]):
    table: Path = bench.cann.opp / "built-in" / TBE / "config/ascend910b/aic-ascend910b-ops-info.json"
    entries = json.loads(table.read_text())
    entries["Add"]["dynamicShapeSupport"] = {"flag": "false"}
    table.write_text(json.dumps(entries))
    assert changed_ops(before, bench.kernels(RECORDS)) == {"Add"}


def test_custom_roots_come_before_vendors_and_vendors_before_built_in(bench, before: dict[str, str], tmp_path: Path):
    config = bench.cann.opp / "vendors/config.ini"
    config.write_text("load_priority=\n")
    without_vendor = bench.compile(RECORDS)
    assert "AcmeRotaryEmbedding" in without_vendor.stdout
    config.write_text("load_priority=acme\n")
    custom = tmp_path / "custom"
    bench.run("cp", "-a", bench.cann.opp / "vendors/acme", custom)
    (custom / TBE / "impl/gelu_v2.py").write_text("# other\n")
    bench.environ = {"ASCEND_CUSTOM_OPP_PATH": str(custom)}
    assert changed_ops(before, bench.kernels(RECORDS)) == {"GeluV2"}


def test_upgrading_one_op_package_or_the_compiler_changes_kernels(bench, before: dict[str, str]):
    (bench.cann.home / "share/info/ops_nn/version.info").write_text("Version=9.1.1\n")
    upgraded = bench.kernels(RECORDS)
    assert changed_ops(before, upgraded) == ALL
    compiler = bench.cann.op_compiler
    compiler.write_text(compiler.read_text().replace("build ", "build 0"))
    assert changed_ops(upgraded, bench.kernels(RECORDS)) == ALL


def test_another_soc_gives_other_kernels(shared):
    names = {"b1": shared.kernels(RECORDS, soc="Ascend910B1"), "b3": shared.kernels(RECORDS)}
    assert changed_ops(names["b1"], names["b3"]) == ALL


def test_flags_that_decide_kernels_do(shared, before: dict[str, str]):
    with_super = shared.kernels(RECORDS, "-f", "true", "--enable_super_kernel")
    options = ("-f", "true", "--enable_super_kernel", "--super_kernel_options", "a=1:b=2")
    assert changed_ops(before, with_super) == ALL
    assert changed_ops(with_super, shared.kernels(RECORDS, *options)) == ALL
    assert shared.kernels(RECORDS, *options) == shared.kernels(RECORDS, *options[:-1], "b=2:a=1")


def test_both_determinisms_of_an_op_have_their_own_bytes(shared):
    both = shared.kernels(RECORDS[:1], "-j", "2")
    assert len(set(both.values())) == 2
    assert shared.kernels(RECORDS[:1]).items() <= both.items()


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item.update(impl_mode="high_precision"),
        lambda item: item.update(platform_info={"vector_core_cnt": 8, "cube_core_cnt": 4}),
        lambda item: item.update(deterministic_level=2),
        lambda item: item["inputs"][1].update(const_data=[0]),
        lambda item: item["inputs"][0].update(shape=[8, 4]),
        lambda item: item["inputs"][0].update(dtype="float16"),
        lambda item: item["attrs"].append(attribute("noop", "bool", value=True)),
    ],
)
def test_another_record_is_another_kernel(shared, change: Callable[[dict[str, Any]], None]):
    plain, other = reduce("ReduceSum", (4, 8), [1]), reduce("ReduceSum", (4, 8), [1])
    change(other)
    assert len(set(shared.kernels([plain, other]).values())) == 2


def test_equal_records_in_two_files_are_one_kernel(shared):
    assert len(shared.kernels([RECORDS[0], dict(RECORDS[0])])) == 1


def test_objects_have_the_size_that_was_asked_for(bench):
    bench.cann.set_costs(Costs(object_bytes=1 << 20))
    (content,) = bench.kernels(RECORDS[:1]).values()
    size = len(content) // 2
    assert 1 << 20 <= size <= (1 << 20) * 9 // 8


def test_a_kernels_json_says_what_it_was_compiled_for(shared, tmp_path: Path):
    asked = record(
        "ConcatD",
        [[tensor((2, 3), name="a"), tensor((2, 5), name="b")], None],
        [tensor((2, 8))],
        [attribute("concat_dim", "int", 1)],
        impl_mode="high_precision",
        deterministic=True,
        cores=(40, 20),
    )
    compiled = shared.compile([asked])
    assert shared.run(compiled.package, "-q", "--noexec", "--target", tmp_path / "x").returncode == 0
    (path,) = (tmp_path / "x").glob("*/ascend910b/ConcatD/*.json")
    facts = json.loads(path.read_text())
    assert facts["supportInfo"] == {
        "implMode": "high_precision",
        "opMode": "static",
        "deterministic": "true",
        "inputs": asked["inputs"],
        "outputs": asked["outputs"],
        "attrs": asked["attrs"],
    }
    assert facts["platformInfo"] == {"vector_core_cnt": 40, "cube_core_cnt": 20}
    assert facts["deterministic"] == "true"
    assert shared.run("sha256sum", path.with_suffix(".o")).stdout.split()[0] == facts["sha256"]
    (index_path,) = (tmp_path / "x").glob("*/config/ascend910b/binary_info_config.json")
    (entry,) = json.loads(index_path.read_text())["ConcatD"]["staticList"]
    assert entry["binDesc"] == {name: facts[name] for name in ("blockDim", "kernelName", "workspace")}
    assert entry["binPath"] == f"{compiled.package.stem}/ascend910b/ConcatD/{path.stem}.o"
    assert entry["simplifiedKey"] == "ConcatD/d=1,p=high_precision/[float16,ND,2_3;float16,ND,2_5]|-/float16,ND,2_8/concat_dim=1"
    assert 0 <= entry["coreType"] <= 4


def test_keys_are_strings_or_arrays_and_leave_values_and_cores_out(shared, tmp_path: Path):
    records = [
        reduce("ReduceSum", (4, 8), [0]),
        reduce("ReduceSum", (4, 8), [1], keep_dims=True),
        elementwise("Cast", (16,)),
        elementwise("Cast", (16,), cores=(8, 4)),
    ]
    records[1]["outputs"] = records[0]["outputs"]
    compiled = shared.compile(records)
    shared.run(compiled.package, "-q", "--noexec", "--target", tmp_path / "x")
    (index_path,) = (tmp_path / "x").glob("*/config/ascend910b/binary_info_config.json")
    index = json.loads(index_path.read_text())
    sums, casts = (index[op]["staticList"] for op in ("ReduceSum", "Cast"))
    assert sums[0]["simplifiedKey"] == sums[1]["simplifiedKey"]
    assert sums[0]["binPath"] != sums[1]["binPath"]
    assert casts[0]["simplifiedKey"] == casts[1]["simplifiedKey"] == ["Cast/d=0,p=/float16,ND,10/float16,ND,10/"]
