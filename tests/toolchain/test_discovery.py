from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import ToolchainError
from npgxd.toolchain.discovery import ToolchainSettings, discover
from npgxd.wire.messages import CoreCounts
from tools.cann_sim import SimulatedCann, create

if TYPE_CHECKING:
    from pathlib import Path


def test_a_sourced_environment_is_all_that_is_needed(cann: SimulatedCann) -> None:
    found = discover(ToolchainSettings(), cann.env())
    assert (found.home, found.opp, found.op_compiler) == (cann.home, cann.opp, cann.op_compiler)
    assert (found.soc, found.family, found.cann_version, found.cores) == ("Ascend910B3", "ascend910b", "9.1.0", None)
    assert [(root.kind, root.path) for root in found.roots] == [
        ("vendor", cann.opp / "vendors" / "acme"),
        ("built-in", cann.opp / "built-in"),
    ]
    assert found.versions["ops_nn"] == "9.1.0"
    assert found.simulated


def test_a_real_looking_home_is_not_called_simulated(cann: SimulatedCann) -> None:
    (cann.home / "SIMULATED").unlink()
    assert not discover(ToolchainSettings(), cann.env()).simulated


def test_settings_alone_are_enough_and_give_the_compiler_its_environment(cann: SimulatedCann) -> None:
    settings = ToolchainSettings(home=cann.home, soc="Ascend910B3", cores=CoreCounts(24, 12))
    found = discover(settings, {})
    assert found.cores == CoreCounts(24, 12)
    assert found.environment["ASCEND_HOME_PATH"] == str(cann.home)
    assert found.environment["ASCEND_OPP_PATH"] == str(cann.opp)
    assert found.environment["PATH"].split(":")[0] == str(cann.home / "bin")
    assert str(cann.home / "python/site-packages") in found.environment["PYTHONPATH"].split(":")


def test_settings_win_over_an_environment_sourced_for_another_cann(cann: SimulatedCann, tmp_path: Path) -> None:
    other = create(tmp_path / "other", version="8.5.0", soc="Ascend910_9382")
    environ = {**other.env(), "ASCEND_AICPU_PATH": str(other.home)}
    found = discover(ToolchainSettings(home=cann.home, soc="Ascend910B3"), environ)
    assert (found.opp, found.cann_version, found.op_compiler) == (cann.opp, "9.1.0", cann.op_compiler)
    assert found.environment["PATH"].split(":")[0] == str(cann.home / "bin")
    assert "ASCEND_AICPU_PATH" not in found.environment


def test_what_decides_no_kernel_does_not_reach_the_compiler(cann: SimulatedCann) -> None:
    noise = {
        "RANK": "3",
        "MASTER_PORT": "29500",
        "ASCEND_GLOBAL_LOG_LEVEL": "0",
        "LD_PRELOAD": "/x.so",
        "POD_IP": "10.0.0.1",
        "HOME": "/h",
    }
    assert not noise.keys() & discover(ToolchainSettings(), {**cann.env(), **noise}).environment.keys()


def test_custom_paths_come_first_in_their_order(cann: SimulatedCann, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    for settings, environ in (
        (ToolchainSettings(custom_opp=(first, second)), cann.env()),
        (ToolchainSettings(), {**cann.env(), "ASCEND_CUSTOM_OPP_PATH": f"{first}:{tmp_path / 'absent'}:{second}"}),
    ):
        assert [root.path for root in discover(settings, environ).roots][:3] == [first, second, cann.opp / "vendors" / "acme"]


@pytest.mark.parametrize("place", ["compiler/bin", "tools/op_compiler/bin"])
def test_the_compiler_is_found_where_other_layouts_have_it(cann: SimulatedCann, place: str) -> None:
    moved = cann.home / place / "op_compiler"
    moved.parent.mkdir(parents=True)
    cann.op_compiler.rename(moved)
    assert discover(ToolchainSettings(), cann.env()).op_compiler == moved


def test_the_compiler_is_found_on_the_path_at_last(cann: SimulatedCann, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "op_compiler"
    moved.parent.mkdir()
    cann.op_compiler.rename(moved)
    assert discover(ToolchainSettings(), {**cann.env(), "PATH": f"/usr/bin:{moved.parent}"}).op_compiler == moved


def test_an_older_layout_has_its_versions_beside_its_packages(cann: SimulatedCann) -> None:
    (cann.home / "share" / "info").rename(cann.home / "unused")
    for name in ("runtime", "compiler"):
        (cann.home / name).mkdir(exist_ok=True)
        (cann.home / name / "version.info").write_text("# made by\nversion = 8.1.RC1 \n")
    found = discover(ToolchainSettings(), cann.env())
    assert (found.cann_version, found.versions) == ("8.1.RC1", {"runtime": "8.1.RC1", "compiler": "8.1.RC1"})


@pytest.mark.parametrize(("version", "supported"), [("8.5.0", False), ("9.0.0", False), ("9.1.0-beta.1", False), ("9.1.0", True)])
def test_install_path_exists_from_the_release_of_9_1(tmp_path: Path, version: str, supported: bool) -> None:
    cann = create(tmp_path / "cann", version=version)
    assert discover(ToolchainSettings(), cann.env()).supports_install_path is supported


# ---- what is missing is said, with a remedy --------------------------------------------------------------------------


def refusal(settings: ToolchainSettings, environ: dict[str, str]) -> ToolchainError:
    with pytest.raises(ToolchainError) as caught:
        discover(settings, environ)
    assert caught.value.hint
    return caught.value


def test_no_home() -> None:
    error = refusal(ToolchainSettings(soc="Ascend910B3"), {})
    assert "ASCEND_HOME_PATH" in error.message
    assert "set_env.sh" in error.hint


def test_a_home_that_is_not_there_or_no_directory(tmp_path: Path) -> None:
    assert "does not exist" in refusal(ToolchainSettings(home=tmp_path / "gone"), {}).message
    (tmp_path / "file").touch()
    assert "is not a directory" in refusal(ToolchainSettings(home=tmp_path / "file"), {}).message
    assert "cannot be looked at" in refusal(ToolchainSettings(home=tmp_path / ("long" * 100)), {}).message


def test_no_operator_packages(cann: SimulatedCann, tmp_path: Path) -> None:
    assert "does not exist" in refusal(ToolchainSettings(opp=tmp_path / "gone"), cann.env()).message
    (tmp_path / "empty").mkdir()
    assert "no operator packages" in refusal(ToolchainSettings(opp=tmp_path / "empty"), cann.env()).message


def test_no_soc_says_where_to_find_and_where_to_put_it(cann: SimulatedCann) -> None:
    environ = {name: value for name, value in cann.env().items() if name != "NPGXD_SOC"}
    error = refusal(ToolchainSettings(), environ)
    assert "npu-smi info" in error.hint
    assert "NPGXD_SOC" in error.hint


def test_an_unknown_soc(cann: SimulatedCann) -> None:
    assert "Ascend910Z9" in refusal(ToolchainSettings(soc="Ascend910Z9"), cann.env()).message


def test_no_compiler(cann: SimulatedCann) -> None:
    cann.op_compiler.unlink()
    assert "no op_compiler" in refusal(ToolchainSettings(), {**cann.env(), "PATH": "/nowhere"}).message


def test_a_compiler_that_may_not_be_executed(cann: SimulatedCann) -> None:
    cann.op_compiler.chmod(0o644)
    error = refusal(ToolchainSettings(), {**cann.env(), "PATH": ""})
    assert str(cann.op_compiler) in error.message
    assert not os.access(cann.op_compiler, os.X_OK)


def test_no_version(cann: SimulatedCann) -> None:
    (cann.home / "share" / "info" / "runtime" / "version.info").write_text("nothing of use\n")
    assert "version" in refusal(ToolchainSettings(), cann.env()).message
