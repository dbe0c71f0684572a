from __future__ import annotations

import json
import subprocess

import pytest
from machine import Npu

from tools.cann_sim import create


class Library:
    """Records of the work, and packages that the simulated op_compiler made of them."""

    def __init__(self, npu):
        self.npu = npu
        told = npu.run("dumping", npu.directory / "dump")
        self.records = npu.directory / "dump" / f"{told['pid']}_opcompile"

    def package(self, name, keep=lambda _: True):
        """A run package with the kernels of the records whose file name is to be kept."""
        chosen, out = (self.npu.directory / f"{name}.{part}" for part in ("records", "out"))
        for directory in (chosen, out):
            directory.mkdir()
        for path in self.records.iterdir():
            if keep(path.name):
                (chosen / path.name).write_bytes(path.read_bytes())
        command = [self.npu.cann.op_compiler, "-p", chosen, "-v", "Ascend910B3", "-f", "true", "-o", out]
        subprocess.run(list(map(str, command)), check=True, capture_output=True, env=self.npu.environment(), cwd=out)
        (package,) = out.glob("*.run")
        return package

    def root(self, name, keep=lambda _: True):
        """A root of its own into which such a package was installed."""
        root = self.npu.directory / name
        root.mkdir()
        self.install(self.package(f"{name}-package", keep), f"--install-path={root}")
        return root

    def install(self, package, *options):
        subprocess.run([str(package), "-q", *options], check=True, capture_output=True, env=self.npu.environment())

    def select(self, *steps):
        plan = self.npu.directory / "plan.json"
        plan.write_text(json.dumps([dict([step]) for step in steps], default=str))
        return self.npu.run("selecting", plan)["done"]


@pytest.fixture(scope="module")
def library(homes, tmp_path_factory):
    return Library(Npu(homes("9.1.0"), tmp_path_factory.mktemp("library")))


@pytest.fixture(scope="module")
def everything(library):
    """A root with a kernel for every record that can have one."""
    return library.root("everything")


def test_what_was_dumped_and_compiled_runs_as_static_kernels(library, everything):
    before, load, after = library.select(("run", "step"), ("load", everything), ("run", "step"))
    assert before["static_launches"] == 0
    assert load["loads"][0]["torn"] == load["loads"][0]["shadowed"] == 0
    assert after["launches"] == before["launches"]
    assert set(after["dynamic"]) == {"GatherV2", "Range", "ReduceSum"}  # what CANN keeps out of static compilation
    assert len(after["kernels"]) == load["loads"][0]["loaded"]


def test_the_first_loaded_kernel_wins_and_loading_never_shrinks(library, everything):
    again = library.root("again", lambda name: name.startswith(("Adds", "Mul")))
    some = library.root("some", lambda name: name.startswith("Adds"))
    _, first, second, third, after = library.select(
        ("run", "add"), ("load", some), ("load", everything), ("load", again), ("run", "step")
    )
    assert first["loads"][0]["shadowed"] == 0
    assert second["loads"][0]["shadowed"] == first["loads"][0]["loaded"]
    assert third["loads"][0]["loaded"] == 0
    assert {path.split("/static_kernel/")[0] for path in after["kernels"]} == {str(some), str(everything)}


def test_a_missing_or_torn_index_means_no_static_kernels_and_no_error(library):
    root = library.root("torn")
    index = root / "static_kernel/ai_core/config/ascend910b/binary_info_config.json"
    index.write_bytes(index.read_bytes()[:-20])
    empty = library.npu.directory / "empty"
    empty.mkdir()
    _, torn, missing, after = library.select(("run", "add"), ("load", root), ("load", empty), ("run", "add"))
    assert (torn["loads"][0]["loaded"], torn["loads"][0]["torn"]) == (0, 1)
    assert (missing["loads"][0]["loaded"], missing["loads"][0]["torn"]) == (0, 1)
    assert (after["error"], after["static_launches"]) == ("", 0)


def test_when_files_vanish_single_operators_fall_back_and_composite_ones_fail(library):
    root = library.root("gone")
    _, _, add, composite = library.select(("run", "add"), ("load", root), ("remove", root), ("run", "add"), ("run", "composite"))
    assert (add["error"], add["static_launches"], len(add["gone"])) == ("", 0, 1)
    assert "aclnnAddmm: the files of a selected static kernel have vanished" in composite["error"]


def test_a_kernel_for_other_core_counts_is_not_taken(library, everything):
    _, _, limited, whole = library.select(
        ("run", "add"), ("load", everything), ("cores", 8), ("run", "add"), ("cores", 0), ("run", "add")
    )
    assert (limited["static"].get("Adds"), whole["static"].get("Adds")) == (None, 1)


def test_a_captured_graph_keeps_the_kernels_it_was_captured_with(library, everything):
    steps = library.select(("run", "capture"), ("load", everything), ("run", "replay"), ("run", "capture"), ("run", "replay"))
    assert [steps[2]["static"], steps[4]["static"]] == [{}, {"Adds": 1}]


def test_reselecting_before_the_first_operator_selects_nothing(library, everything):
    early, add = library.select(("load", everything), ("run", "add"))
    assert (early["loads"][0]["loaded"], add["static_launches"]) == (0, 0)


def test_below_cann_9_1_every_process_loads_the_default_root_by_itself(make_npu, tmp_path):
    npu = make_npu("9.0.0", cann=create(tmp_path / "own", version="9.0.0"))
    library = Library(npu)
    library.install(library.package("default"))
    (add,) = library.select(("run", "add"))
    assert add["static"] == {"Adds": 1}
    assert add["loads"][0]["root"] == str(npu.cann.home / "opp_latest")
