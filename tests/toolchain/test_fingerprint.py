from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import ToolchainError
from npgxd.toolchain.discovery import Toolchain, ToolchainSettings, discover
from npgxd.toolchain.fingerprint import SUMMARY_LIFE_S, Fingerprinter
from npgxd.wire.identity import compare, identity
from npgxd.wire.messages import CoreCounts
from tools.cann_sim import SimulatedCann
from tools.cann_sim.ops import BUILT_IN, VENDOR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPS = ("MatMulV2", "BatchMatMulV2", "Add", "Less", "RmsNorm", "GeluV2", "AcmeFusedQkv")
"""Two ops that share everything but their own files, ops that share a header only, one that a vendor took over, one of the vendor's."""
TBE = "op_impl/ai_core/tbe"
CUBE = frozenset({"MatMulV2", "BatchMatMulV2"})
ACME = frozenset({"GeluV2", "AcmeFusedQkv"})
LIBRARIES = {group.library: group for group in (*BUILT_IN, *VENDOR)}


def later() -> int:
    return time.time_ns() + 3_600_000_000_000


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def changed(fingerprints: Fingerprinter, act: Callable[[], object]) -> set[str]:
    """Which of OPS have another fingerprint after ``act``; what ``refresh`` says must be the same."""
    before = {op: fingerprints.op(op) for op in OPS}
    act()
    told = fingerprints.refresh()
    found = {op for op in OPS if fingerprints.op(op) != before[op]}
    assert told == found
    return found


# ---- FC-01: exactly what resolves to a changed file ------------------------------------------------------------------


def test_fc01_an_implementation_script_counts_for_its_op_alone(fingerprints: Fingerprinter, builtin: Path) -> None:
    assert changed(fingerprints, lambda: change_a_byte(builtin / "impl/mat_mul_v2.py")) == {"MatMulV2"}


def test_fc01_a_kernel_source_counts_for_its_op_alone(fingerprints: Fingerprinter, builtin: Path) -> None:
    assert changed(fingerprints, lambda: change_a_byte(builtin / "impl/ascendc/add/add.cpp")) == {"Add"}


def test_fc01_a_header_counts_for_every_op_that_includes_it(fingerprints: Fingerprinter, builtin: Path) -> None:
    assert changed(fingerprints, lambda: change_a_byte(builtin / "impl/ascendc/common/cube_tiling.h")) == CUBE


def test_fc01_a_header_included_by_a_header_counts_too(fingerprints: Fingerprinter, builtin: Path) -> None:
    assert changed(fingerprints, lambda: change_a_byte(builtin / "impl/ascendc/common/simulated_pipe.h")) == set(OPS) - ACME


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_fc01_a_tiling_library_counts_for_the_ops_that_name_it(
    fingerprints: Fingerprinter, cann: SimulatedCann, library: str
) -> None:
    (path,) = cann.opp.rglob(library)
    expected = {op for op in OPS if op in LIBRARIES[library].ops and (op not in ACME or "acme" in str(path))}
    assert changed(fingerprints, lambda: change_a_byte(path)) == expected


@pytest.mark.parametrize("suffix", ["o", "json"])
def test_fc01_a_vendors_kernel_object_counts_for_its_op_alone(fingerprints: Fingerprinter, vendor: Path, suffix: str) -> None:
    assert changed(fingerprints, lambda: change_a_byte(vendor / f"kernel/ascend910b/gelu_v2/GeluV2.{suffix}")) == {"GeluV2"}


def test_fc01_a_change_that_keeps_size_and_time_is_seen(fingerprints: Fingerprinter, builtin: Path) -> None:
    path = builtin / "impl/add.py"

    def act() -> None:
        before = path.stat()
        change_a_byte(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert changed(fingerprints, act) == {"Add"}


def test_fc01_a_file_replaced_by_rename_is_seen(fingerprints: Fingerprinter, builtin: Path) -> None:
    path = builtin / "impl/add.py"

    def act() -> None:
        copy = path.with_name("new")
        copy.write_bytes(path.read_bytes() + b"#")
        copy.rename(path)

    assert changed(fingerprints, act) == {"Add"}


def test_what_is_put_back_has_its_old_fingerprint(fingerprints: Fingerprinter, builtin: Path) -> None:
    before = fingerprints.op("Add")
    path = builtin / "impl/add.py"
    change_a_byte(path)
    fingerprints.refresh()
    change_a_byte(path)
    assert fingerprints.refresh() == {"Add"}
    assert fingerprints.op("Add") == before


# ---- what does not count ---------------------------------------------------------------------------------------------


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "where",
    [
        "opp/built-in/op_impl/ai_core/tbe/impl/of_nobody.py",
        "opp/built-in/op_impl/ai_core/tbe/impl/ascendc/common/of_nobody.h",
        "opp/built-in/op_impl/ai_core/tbe/impl/__pycache__/add.cpython-311.pyc",
        "opp/built-in/op_impl/ai_core/tbe/op_tiling/lib/linux/x86_64/libof_nobody.so",
        "opp/built-in/op_impl/ai_core/tbe/kernel/ascend910_93/add/Add.o",
        "opp/built-in/README",
        "opp/vendors/acme/op_proto/lib.so",
        "opp/vendors/not_in_config/op_impl/ai_core/tbe/impl/add.py",
        "opp/static_kernel/ai_core/version.info",
        "python/site-packages/opc_tool/other.py",
        "sim-runs.jsonl",
        "lib64/x.so",
    ],
)
def test_fc01_a_file_that_nothing_resolves_to_changes_nothing(
    fingerprints: Fingerprinter, cann: SimulatedCann, where: str
) -> None:
    assert changed(fingerprints, lambda: put(cann.home / where)) == set()


def test_the_other_entries_of_an_op_table_change_nothing(fingerprints: Fingerprinter, builtin: Path) -> None:
    path = builtin / "config/ascend910b/aic-ascend910b-ops-info.json"

    def act() -> None:
        table = json.loads(path.read_bytes())
        table["Add"]["dynamicShapeSupport"] = {"flag": "false"}
        path.write_text(json.dumps(table))

    assert changed(fingerprints, act) == {"Add"}


def test_times_modes_and_places_change_nothing(
    fingerprints: Fingerprinter, toolchain: Toolchain, cann: SimulatedCann, tmp_path: Path
) -> None:
    def act() -> None:
        for path in cann.opp.rglob("*"):
            os.utime(path, (1, 1))

    assert changed(fingerprints, act) == set()
    moved = tmp_path / "elsewhere" / "cann"
    shutil.copytree(cann.home, moved, symlinks=True)
    there = Fingerprinter(discover(ToolchainSettings(), SimulatedCann(moved).env()), None)
    assert {op: there.op(op) for op in OPS} == {op: fingerprints.op(op) for op in OPS}
    assert there.summary() == fingerprints.summary()


# ---- what counts for all ---------------------------------------------------------------------------------------------


def test_fc04_the_compiler_counts_for_every_op(fingerprints: Fingerprinter, cann: SimulatedCann) -> None:
    assert changed(fingerprints, lambda: change_a_byte(cann.op_compiler)) == set(OPS)


@pytest.mark.parametrize("package", ["runtime", "compiler", "ops_math", "ops_nn", "ops_transformer", "ops_legacy"])
def test_fc04_every_packages_version_counts_for_every_op(fingerprints: Fingerprinter, cann: SimulatedCann, package: str) -> None:
    assert changed(fingerprints, lambda: change_a_byte(cann.home / "share/info" / package / "version.info")) == set(OPS)


def test_fc04_a_package_that_comes_counts_for_every_op(fingerprints: Fingerprinter, cann: SimulatedCann) -> None:
    assert changed(fingerprints, lambda: put(cann.home / "share/info/ops_new/version.info", "Version=9.1.0\n")) == set(OPS)


def test_a_vendors_version_counts_for_its_ops(fingerprints: Fingerprinter, cann: SimulatedCann) -> None:
    assert changed(fingerprints, lambda: change_a_byte(cann.opp / "vendors/acme/version.info")) == ACME


def test_fc04_soc_and_core_counts_count(toolchain: Toolchain) -> None:
    variants = [
        toolchain,
        replace(toolchain, soc="Ascend910B1"),
        replace(toolchain, cores=CoreCounts(40, 20)),
        replace(toolchain, cores=CoreCounts(24, 20)),
        replace(toolchain, cores=CoreCounts(40, 12)),
    ]
    made = [Fingerprinter(variant, None) for variant in variants]
    assert len({item.op("Add") for item in made}) == len({item.summary() for item in made}) == len(variants)


# ---- the search order ------------------------------------------------------------------------------------------------


def add_root(root: Path, *ops: str) -> None:
    """An op root that implements ``ops``."""
    table = {op: {"opFile": {"value": f"own_{op.lower()}"}} for op in ops}
    put(root / "op_impl/ai_core/tbe/config/ascend910b/aic-ascend910b-ops-info.json", json.dumps(table))
    for op in ops:
        put(root / f"op_impl/ai_core/tbe/impl/own_{op.lower()}.py", op)


def test_a_vendor_that_takes_an_op_over_counts_for_that_op(fingerprints: Fingerprinter, cann: SimulatedCann) -> None:
    add_root(cann.opp / "vendors/other", "Add", "MatMulV2")
    assert changed(fingerprints, lambda: put(cann.opp / "vendors/config.ini", "load_priority=other,acme\n")) == {
        "Add",
        "MatMulV2",
    }
    assert fingerprints.resolution("Add").root == replace(
        fingerprints.resolution("Add").root, kind="vendor", name="other", path=cann.opp / "vendors/other"
    )


def test_what_an_earlier_root_shadows_does_not_count(fingerprints: Fingerprinter, builtin: Path) -> None:
    assert changed(fingerprints, lambda: change_a_byte(builtin / "impl/gelu_v2.py")) == set()


def test_a_vendor_that_goes_gives_its_op_back(fingerprints: Fingerprinter, cann: SimulatedCann) -> None:
    assert changed(fingerprints, lambda: shutil.rmtree(cann.opp / "vendors/acme")) == ACME
    assert fingerprints.resolution("GeluV2").root is not None
    assert fingerprints.resolution("AcmeFusedQkv").root is None


def test_a_custom_root_counts_from_when_it_appears(cann: SimulatedCann, tmp_path: Path) -> None:
    custom = tmp_path / "custom"
    environ = {**cann.env(), "ASCEND_CUSTOM_OPP_PATH": str(custom)}
    fingerprints = Fingerprinter(discover(ToolchainSettings(), environ), None)
    assert changed(fingerprints, custom.mkdir) == set()
    assert changed(fingerprints, lambda: add_root(custom, "Less")) == {"Less"}
    assert changed(fingerprints, lambda: change_a_byte(custom / "op_impl/ai_core/tbe/impl/own_less.py")) == {"Less"}
    assert changed(fingerprints, lambda: shutil.rmtree(custom)) == {"Less"}


def test_an_include_path_that_gains_a_file_counts(fingerprints: Fingerprinter, builtin: Path) -> None:
    source = builtin / "impl/ascendc/add/add.cpp"
    source.write_text('#include "late.h"\n#include <kernel_operator.h>\n')
    (builtin / "impl/ascendc/common/late.h").write_text("// the one in common\n")
    fingerprints.refresh()
    assert changed(fingerprints, lambda: put(builtin / "impl/ascendc/late.h", "// found before")) == {"Add"}
    assert changed(fingerprints, lambda: change_a_byte(builtin / "impl/ascendc/common/late.h")) == set()


@pytest.mark.parametrize("where", ["impl/dynamic/add.py", "impl/dynamic/add/add.cpp", "kernel/ascend910b/add/Add.o"])
def test_a_place_that_is_searched_for_an_op_counts_from_when_it_appears(
    fingerprints: Fingerprinter, builtin: Path, where: str
) -> None:
    assert changed(fingerprints, lambda: put(builtin / where)) == {"Add"}


def test_a_missing_library_counts_when_it_comes(fingerprints: Fingerprinter, cann: SimulatedCann) -> None:
    (library,) = cann.opp.rglob("liboptiling_cube.so")
    content = library.read_bytes()
    before = fingerprints.op("MatMulV2")
    assert changed(fingerprints, library.unlink) == CUBE
    assert fingerprints.resolution("MatMulV2").missing == ("liboptiling_cube.so",)
    assert changed(fingerprints, lambda: library.write_bytes(content)) == CUBE
    assert fingerprints.op("MatMulV2") == before


# ---- layouts that are not the simulation's ---------------------------------------------------------------------------


def custom_fingerprints(cann: SimulatedCann, root: Path) -> Fingerprinter:
    environ = {**cann.env(), "ASCEND_CUSTOM_OPP_PATH": str(root)}
    return Fingerprinter(discover(ToolchainSettings(), environ), None)


def moves(fingerprints: Fingerprinter, path: Path, op: str = "Own") -> bool:
    before = fingerprints.op(op)
    put(path, f"changed {path.name}")
    fingerprints.refresh()
    return fingerprints.op(op) != before


def write_table(tbe: Path, entry: object, name: str = "aic-ascend910b-ops-info.json") -> None:
    put(tbe / "config/ascend910b" / name, json.dumps({"Own": entry}))


def test_where_no_library_is_named_all_of_the_root_count(cann: SimulatedCann, tmp_path: Path) -> None:
    tbe = tmp_path / "custom" / TBE
    write_table(tbe, {"opFile": {"value": "own"}})
    put(tbe / "impl/own.py")
    put(tbe / "op_tiling/liboptiling.so")
    fingerprints = custom_fingerprints(cann, tmp_path / "custom")
    assert moves(fingerprints, tbe / "op_tiling/liboptiling.so")
    assert moves(fingerprints, tbe / "op_tiling/lib/linux/aarch64/libnew.so")


def test_a_vendors_own_folder_of_dynamic_implementations(cann: SimulatedCann, tmp_path: Path) -> None:
    tbe = tmp_path / "custom" / TBE
    write_table(tbe, {"opFile": {"value": "own"}, "tilingLib": {"value": "none.so"}})
    put(tbe / "acme_impl/dynamic/own.py", "from .util import x\n")
    put(tbe / "acme_impl/dynamic/own.cpp", '#include "own_tiling.h"\n')
    put(tbe / "acme_impl/dynamic/util.py")
    put(tbe / "acme_impl/dynamic/own_tiling.h")
    put(tbe / "acme_impl/dynamic/foreign.h")
    fingerprints = custom_fingerprints(cann, tmp_path / "custom")
    assert moves(fingerprints, tbe / "acme_impl/dynamic/util.py")
    assert moves(fingerprints, tbe / "acme_impl/dynamic/own_tiling.h")
    assert not moves(fingerprints, tbe / "acme_impl/dynamic/foreign.h")


def test_python_modules_of_the_root_count_with_their_packages(cann: SimulatedCann, tmp_path: Path) -> None:
    tbe = tmp_path / "custom" / TBE
    write_table(tbe, {"opFile": {"value": "own"}, "tilingLib": {"value": "none.so"}})
    put(
        tbe / "impl/own.py",
        "import json, impl.first\nfrom impl.util import (second,  # a comment\n    third as t)\nfrom . import fourth\n",
    )
    names = ("first.py", "util/__init__.py", "util/second.py", "util/third.py", "fourth.py")
    for name in (*names, "util/fifth.py"):
        put(tbe / "impl" / name)
    fingerprints = custom_fingerprints(cann, tmp_path / "custom")
    for name in names:
        assert moves(fingerprints, tbe / "impl" / name), name
    assert not moves(fingerprints, tbe / "impl/util/fifth.py")
    assert moves(fingerprints, tbe / "impl/json.py")  # a sibling is found before the standard library


def test_sources_that_include_each_other_end(cann: SimulatedCann, tmp_path: Path) -> None:
    tbe = tmp_path / "custom" / TBE
    write_table(tbe, {"opFile": {"value": "own"}})
    put(tbe / "impl/ascendc/own/own.cpp", '#include "a.h"\n')
    put(tbe / "impl/ascendc/own/a.h", '#include "b.h"\n#include "../own/a.h"\n')
    put(tbe / "impl/ascendc/own/b.h", '#include "a.h"\n')
    (tbe / "impl/ascendc/own/up").symlink_to("..")
    assert len(custom_fingerprints(cann, tmp_path / "custom").op("Own")) == 64


def test_a_vendor_that_ships_kernels_without_sources(cann: SimulatedCann, tmp_path: Path) -> None:
    tbe = tmp_path / "custom" / TBE
    write_table(tbe, {})
    put(tbe / "kernel/ascend910b/own/x.o")
    put(tbe / "kernel/ascend910b/other/x.o")
    fingerprints = custom_fingerprints(cann, tmp_path / "custom")
    assert moves(fingerprints, tbe / "kernel/ascend910b/own/x.o")
    assert not moves(fingerprints, tbe / "kernel/ascend910b/other/x.o")


def test_an_op_whose_implementation_lies_nowhere_known_counts_all_of_its_root(cann: SimulatedCann, tmp_path: Path) -> None:
    tbe = tmp_path / "custom" / TBE
    write_table(tbe, {"opFile": {"value": "../../own"}})
    put(tbe / "unheard/of/place.bin")
    fingerprints = custom_fingerprints(cann, tmp_path / "custom")
    assert moves(fingerprints, tbe / "unheard/of/place.bin")
    assert not moves(fingerprints, cann.opp / "built-in" / TBE / "impl/add.py")


def test_an_op_that_no_root_names_counts_everything(fingerprints: Fingerprinter, builtin: Path, vendor: Path) -> None:
    assert fingerprints.resolution("Unheard").root is None
    assert moves(fingerprints, builtin / "impl/add.py", "Unheard")
    assert moves(fingerprints, vendor / "impl/gelu_v2.py", "Unheard")


def test_a_root_with_several_tables_or_a_broken_one(cann: SimulatedCann, tmp_path: Path) -> None:
    tbe = tmp_path / "custom" / TBE
    put(tbe / "config/ascend910b/aic-ascend910b-ops-info.json", "{ half")
    write_table(tbe, {"opFile": {"value": "own"}}, "aic-ascend910b-ops-info-nn.json")
    put(tbe / "impl/own.py")
    put(tbe / "impl/other.py")
    fingerprints = custom_fingerprints(cann, tmp_path / "custom")
    assert fingerprints.resolution("Own").root is not None
    assert moves(fingerprints, tbe / "impl/own.py")
    assert not moves(fingerprints, tbe / "impl/other.py")


# ---- the memo, the summary, and trouble ------------------------------------------------------------------------------


def test_a_new_process_reads_no_file_that_it_knows(toolchain: Toolchain, tmp_path: Path) -> None:
    memo = tmp_path / "memo.json"
    first = Fingerprinter(toolchain, memo, now=later)
    expected = {op: first.op(op) for op in OPS}
    whole = first.summary()
    second = Fingerprinter(toolchain, memo, now=later)
    assert {op: second.op(op) for op in OPS} == expected
    assert second.summary() == whole
    assert second._memo.hashed == 0


def test_a_refresh_without_a_change_reads_no_old_file(toolchain: Toolchain) -> None:
    fingerprints = Fingerprinter(toolchain, None, now=later)
    for op in OPS:
        fingerprints.op(op)
    read = fingerprints._memo.hashed
    assert fingerprints.refresh() == frozenset()
    assert fingerprints._memo.hashed == read


def test_the_summary_changes_with_an_op_at_once_and_with_any_file_soon(toolchain: Toolchain, builtin: Path) -> None:
    now = [0.0]
    fingerprints = Fingerprinter(toolchain, None, clock=lambda: now[0])
    fingerprints.op("Add")
    before = fingerprints.summary()
    change_a_byte(builtin / "impl/add.py")
    fingerprints.refresh()
    second = fingerprints.summary(look=False)
    assert second != before
    change_a_byte(builtin / "impl/less.py")  # nobody asked for Less
    now[0] += SUMMARY_LIFE_S
    assert fingerprints.summary(look=False) == second
    assert fingerprints.summary() not in {before, second}


def test_a_rank_with_the_same_cann_says_the_same(
    toolchain: Toolchain, cann: SimulatedCann, builtin: Path, tmp_path: Path
) -> None:
    now = [0.0]
    fingerprints = Fingerprinter(toolchain, None, clock=lambda: now[0])
    rank = identity(cann.env(), memo=tmp_path / "rank.json")
    assert rank == fingerprints.identity()
    change_a_byte(builtin / "impl/add.py")
    now[0] += SUMMARY_LIFE_S
    assert [difference.what for difference in compare(rank, fingerprints.identity())] == ["operator implementations"]


def test_the_number_of_remembered_ops_is_bounded(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.toolchain.fingerprint.MAX_OPS", 5)
    fingerprints = Fingerprinter(toolchain, None, now=later)
    made = {f"Unheard{at}": fingerprints.op(f"Unheard{at}") for at in range(20)}
    assert len(set(made.values())) == 20
    assert len(fingerprints._known) == 5
    assert fingerprints.op("Unheard0") == made["Unheard0"]


def test_a_file_that_cannot_be_read_is_named_and_recovers(
    toolchain: Toolchain, builtin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprints = Fingerprinter(toolchain, None)
    before = fingerprints.op("Add"), fingerprints.op("Less")
    real = os.open

    def refuse(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith("/add.py"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)  # root may read everything, and tests may run as root
        (builtin / "impl/add.py").touch()
        assert fingerprints.refresh() == {"Add"}
        with pytest.raises(ToolchainError, match=r"impl/add\.py: Permission denied"):
            fingerprints.op("Add")
        assert fingerprints.op("Less") == before[1]
    assert fingerprints.op("Add") == before[0]


def test_a_compiler_that_cannot_be_read_stops_every_op_until_it_can(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprints = Fingerprinter(toolchain, None)
    before = fingerprints.op("Add")
    real = os.open

    def refuse(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith("/op_compiler"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        toolchain.op_compiler.touch()
        assert fingerprints.refresh() == {"Add"}
        with pytest.raises(ToolchainError, match="op_compiler"):
            fingerprints.op("Add")
        with pytest.raises(ToolchainError):
            Fingerprinter(toolchain, None)
    fingerprints.refresh()
    assert fingerprints.op("Add") == before


def test_sources_that_never_hold_still_are_an_error_and_not_a_hang(toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = Fingerprinter(toolchain, None)
    monkeypatch.setattr("npgxd.toolchain._glance.hashlib.sha256", lambda _: type("Never", (), {"hexdigest": lambda _: "other"})())
    with pytest.raises(ToolchainError, match="does not hold still"):
        fingerprints.op("Add")
