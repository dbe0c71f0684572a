"""The reader follows the runtime's rules, and tells what it should not have seen."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tools.cann_sim import Reader, default_root
from tools.cann_sim.records import attribute, elementwise, encode, matmul, reduce

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOC = "Ascend910B3"
ADD, EXP, MUL = elementwise("Add", (4, 8)), elementwise("Exp", (4, 8)), matmul(4, 8, 16)
INDEX = "static_kernel/ai_core/config/ascend910b/binary_info_config.json"


@pytest.fixture
def root_of(shared, tmp_path: Path) -> Callable[..., Path]:
    def make(*records: dict[str, Any], name: str = "root") -> Path:
        root = tmp_path / name
        shared.install(shared.compile(records).package, root)
        return root

    return make


def kernel_file(root: Path, op_type: str, suffix: str = ".o") -> Path:
    (found,) = root.glob(f"static_kernel/ai_core/*/ascend910b/{op_type}/*{suffix}")
    return found


def test_it_selects_the_kernels_of_the_records_and_no_others(root_of):
    reader = Reader(SOC)
    report = reader.load(root_of(ADD, EXP))
    assert (report.loaded, report.shadowed, report.torn) == (2, (), ())
    assert reader.selects(ADD)
    assert not reader.selects(MUL)
    assert not reader.selects(elementwise("Add", (8, 4)))
    selected = reader.select(ADD)
    assert selected is not None
    assert selected.op_type == "Add"
    assert selected.open().startswith(b"\x7fELF")


def test_check_is_exact_only_for_the_records_that_were_asked_for(root_of):
    reader = Reader(SOC)
    reader.load(root_of(ADD, EXP))
    assert reader.check([encode(ADD), EXP]).exact
    fewer = reader.check([encode(ADD)])
    assert ([kernel.op_type for kernel in fewer.extra], fewer.missing, fewer.exact) == (["Exp"], (), False)
    more = reader.check([ADD, EXP, MUL])
    assert more.missing[0].startswith("MatMulV2 ")
    assert (len(more.missing), more.exact) == (1, False)


def test_a_record_is_recognised_however_it_is_spelled(root_of):
    asked = matmul(4, 8, 16)
    asked["attrs"].append(attribute("alpha", "float", 0.1, 2))
    asked["attrs"].append(attribute("beta", "float", 1, 3))
    spelled = json.loads(encode(asked))
    spelled["attrs"][2]["value"] = 0.10000000149
    spelled["attrs"][3]["value"] = 1.0
    spelled["attrs"].reverse()
    spelled["bin_info"] = "/somewhere/x.o"
    for tensor in spelled["inputs"][:2]:
        del tensor["name"], tensor["is_view"]
    reader = Reader(SOC)
    reader.load(root_of(asked))
    assert reader.check([spelled]).exact


def test_the_first_loaded_kernel_wins_for_as_long_as_the_process_lives(root_of, tmp_path: Path):
    first, second = root_of(ADD), root_of(ADD, EXP, name="second")
    reader = Reader(SOC)
    reader.load(first)
    before = reader.select(ADD)
    report = reader.load(second)
    assert reader.select(ADD) == before
    assert [kernel.op_type for kernel in report.shadowed] == ["Add"]
    assert [kernel.op_type for kernel in report.selected.values()] == ["Exp"]


def test_loading_never_shrinks(root_of):
    root = root_of(ADD)
    reader = Reader(SOC)
    reader.load(root)
    (root / INDEX).write_text("{}")
    assert reader.load(root).loaded == 0
    assert reader.selects(ADD)


def test_loading_is_incremental_over_several_roots(root_of):
    reader = Reader(SOC)
    reader.load(root_of(ADD, name="one"))
    reader.load(root_of(EXP, name="two"))
    assert reader.check([ADD, EXP]).exact


@pytest.mark.parametrize("damage", ["cut", "empty", "not an index", "no list"])
def test_a_torn_index_means_no_static_kernels(root_of, damage: str):
    root = root_of(ADD, EXP)
    text = (root / INDEX).read_text()
    damaged = {"cut": text[: len(text) // 2], "empty": "", "not an index": "[1]", "no list": '{"Add": {}}'}
    (root / INDEX).write_text(damaged[damage])
    reader = Reader(SOC)
    report = reader.load(root)
    assert (report.loaded, len(report.torn)) == (0, 1)
    assert "the index is torn" in report.torn[0].reason
    assert not reader.selects(ADD)
    assert not reader.check([]).exact


def test_a_missing_index_means_no_static_kernels(tmp_path: Path):
    report = Reader(SOC).load(tmp_path)
    assert (report.loaded, report.torn[0].reason) == (0, "the index is missing")


def test_a_half_merged_but_valid_index_is_accepted(root_of):
    root = root_of(ADD, EXP)
    index = json.loads((root / INDEX).read_text())
    del index["Exp"]
    (root / INDEX).write_text(json.dumps(index))
    reader = Reader(SOC)
    assert reader.load(root).torn == ()
    assert reader.check([ADD]).exact


def test_a_missing_or_cut_kernel_json_is_torn_and_not_loaded(root_of):
    root = root_of(ADD, EXP)
    kernel_file(root, "Add", ".json").unlink()
    cut = kernel_file(root, "Exp", ".json")
    cut.write_text(cut.read_text()[:50])
    reader = Reader(SOC)
    report = reader.load(root)
    assert report.loaded == 0
    assert sorted(torn.path.parent.name for torn in report.torn) == ["Add", "Exp"]


def test_objects_are_opened_lazily_and_a_missing_one_is_torn(root_of):
    root = root_of(ADD, EXP)
    kernel_file(root, "Add").unlink()
    reader = Reader(SOC)
    assert reader.load(root).torn == ()
    kernel = reader.select(ADD)
    assert kernel is not None
    with pytest.raises(FileNotFoundError):
        kernel.open()
    (torn,) = reader.check([ADD, EXP]).torn
    assert torn.path.parent.name == "Add"


def test_an_object_with_other_bytes_than_its_json_says_is_torn(root_of):
    root = root_of(ADD)
    path = kernel_file(root, "Add")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    reader = Reader(SOC)
    reader.load(root)
    (torn,) = reader.verify()
    assert "its json says" in torn.reason


@pytest.mark.parametrize("parent", [".opt", "x.org", "a.o"])
def test_the_extension_is_found_at_the_first_dot_o_of_the_whole_path(root_of, tmp_path: Path, parent: str):
    root = root_of(ADD)
    trapped = tmp_path / parent / "root"
    shutil.copytree(root, trapped)
    reader = Reader(SOC)
    report = reader.load(trapped)
    assert report.loaded == 0
    assert "cuts this path at its first '.o'" in report.torn[0].reason


def test_the_trap_is_also_in_the_path_behind_a_link(root_of, tmp_path: Path):
    trapped = tmp_path / "x.org" / "root"
    shutil.copytree(root_of(ADD), trapped)
    (tmp_path / "link").symlink_to(trapped)
    assert Reader(SOC).load(tmp_path / "link").loaded == 0


def test_the_trap_is_also_in_the_path_of_a_link(root_of, tmp_path: Path):
    (tmp_path / "x.org").mkdir()
    (tmp_path / "x.org" / "link").symlink_to(root_of(ADD))
    assert Reader(SOC).load(tmp_path / "x.org" / "link").loaded == 0


def test_paths_have_a_limit(root_of, tmp_path: Path):
    root = root_of(ADD)
    index = json.loads((root / INDEX).read_text())
    index["Add"]["staticList"][0]["binPath"] = "x/" * 2100 + "k.o"
    (root / INDEX).write_text(json.dumps(index))
    assert "fewer than 4096" in Reader(SOC).load(root).torn[0].reason


def test_links_resolve(root_of, tmp_path: Path):
    root = root_of(ADD)
    assembled = tmp_path / "assembled"
    config = assembled / INDEX
    config.parent.mkdir(parents=True)
    shutil.copy(root / INDEX, config)
    package = kernel_file(root, "Add").parents[2]
    (assembled / "static_kernel/ai_core" / package.name).symlink_to(package)
    reader = Reader(SOC)
    reader.load(assembled)
    assert reader.check([ADD]).exact, "a root assembled by hand works without the vendor's installer"


def test_core_counts_must_be_equal(root_of):
    limited = elementwise("Add", (4, 8), cores=(8, 4))
    reader = Reader(SOC)
    reader.load(root_of(limited))
    assert reader.selects(limited)
    assert not reader.selects(ADD)
    assert Reader("Ascend910B1").select(limited) is None


def test_whole_chip_counts_may_be_spelled_out_or_not(root_of):
    reader = Reader(SOC)
    reader.load(root_of(ADD))
    assert reader.selects(elementwise("Add", (4, 8), cores=(40, 20)))
    other = Reader("Ascend910B1")
    other.load(root_of(ADD, name="again"))
    assert not other.selects(ADD)


def test_a_kernel_of_another_constant_is_selected_and_told(root_of):
    rows, columns = reduce("ReduceSum", (8, 8), [0], keep_dims=True), reduce("ReduceSum", (8, 8), [1], keep_dims=True)
    rows["outputs"] = columns["outputs"]
    reader = Reader(SOC)
    report = reader.load(root_of(rows))
    assert report.loaded == 1
    assert reader.selects(columns), "the key does not hold constants"
    check = reader.check([columns])
    assert (len(check.mismatched), check.missing, check.exact) == (1, (), False)
    assert reader.check([rows]).exact


def test_one_index_with_one_key_twice_serves_the_first(root_of):
    one = elementwise("Add", (4, 8), cores=(8, 4))
    reader = Reader(SOC)
    report = reader.load(root_of(ADD, one))
    assert (report.loaded, len(report.shadowed)) == (1, 1)
    assert reader.selects(ADD) != reader.selects(one)


def test_the_default_root_prefers_opp_latest(tmp_path: Path):
    home, opp = tmp_path / "home", tmp_path / "opp"
    (home / "opp_latest").mkdir(parents=True)
    opp.mkdir()
    assert default_root({"ASCEND_HOME_PATH": str(home), "ASCEND_OPP_PATH": str(opp)}) == home / "opp_latest"
    assert default_root({"ASCEND_HOME_PATH": str(opp), "ASCEND_OPP_PATH": str(opp)}) == opp
    assert default_root({"ASCEND_OPP_PATH": str(opp)}) == opp


def test_a_default_root_without_static_kernels_is_no_tear(bench):
    reader = Reader(SOC)
    assert reader.load_default(bench.cann.env()).torn == ()
    assert reader.check([]).exact
    assert bench.run(bench.compile([ADD]).package, "-q").returncode == 0
    assert reader.load_default(bench.cann.env()).loaded == 1
