from __future__ import annotations

import pytest
from machine import Npu

from tools.cann_sim import create
from tools.cann_sim.native import BuildFailed, build


@pytest.fixture(scope="module")
def told(homes, tmp_path_factory):
    return Npu(homes("9.1.0"), tmp_path_factory.mktemp("basics")).run("basics", CANN_SIM_DEVICES="4")


def test_the_unmodified_wheel_runs_on_the_simulated_libraries(told):
    assert (told["devices"], told["name"], told["version"]) == (4, "Ascend910B3", "9.1.0")
    assert all(told["moved"].values()), told["moved"]
    assert all(told["views"])


def test_an_operator_that_is_not_simulated_is_refused_by_name(told):
    assert "SIMULATED CANN: aclnnCumsum is not computed by the simulation" in told["refused"]


def test_a_captured_graph_runs_at_replay_and_not_at_capture(told):
    assert told["during_capture"] == [0.0] * 4
    assert told["replayed"] == [[3.0] * 4, [6.0] * 4]


@pytest.mark.parametrize(("version", "with_path"), [("8.5.0", False), ("9.0.0", False), ("9.1.0-beta.1", False), ("9.1.0", True)])
def test_each_cann_version_has_its_functions(make_npu, version, with_path):
    told = make_npu(version).run("basics")
    assert told["version"] == version
    assert told["without_path"]
    assert told["with_path"] is with_path


def test_operators_give_the_numbers_of_the_cpu(npu):
    told = npu.run("operators")
    assert told["wrong"] == {}
    assert told["cases"] > 150
    assert told["decoder"]["torch.float32"] < 1e-5
    assert told["decoder"]["torch.float16"] < 2e-2
    assert told["decoder"]["torch.bfloat16"] < 1e-1


def test_a_missing_compiler_is_named_with_what_to_install(wheel, tmp_path, monkeypatch):
    cann = create(tmp_path / "cann")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match="install g"):
        build(cann, wheel)
