"""A simulated CANN for each test, and short ways to its parts."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest

from npgxd.toolchain.discovery import Toolchain, ToolchainSettings, discover
from npgxd.toolchain.fingerprint import Fingerprinter
from tools.cann_sim import SimulatedCann, create
from tools.cann_sim.ops import file_name

if TYPE_CHECKING:
    from pathlib import Path

KEPT = (
    *("MatMulV2", "BatchMatMulV2", "Add", "Mul", "Sub", "Less", "RmsNorm", "GeluV2", "ReduceSum", "ConcatD", "Muls", "OneHot"),
    *("Sigmoid", "Rsqrt", "Neg", "Exp"),
)
TBE = "op_impl/ai_core/tbe"


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCann:
    """A home with the implementations of a few ops only, so that copying it is quick."""
    made = create(tmp_path_factory.mktemp("pristine") / "cann", version="9.1.0", soc="Ascend910B3")
    keep = {file_name(op) for op in KEPT} | {"common"}
    for path in (made.opp / "built-in" / TBE / "impl" / "ascendc").iterdir():
        if path.name not in keep:
            shutil.rmtree(path)
            path.parent.parent.joinpath(f"{path.name}.py").unlink()
    return made


@pytest.fixture
def cann(pristine: SimulatedCann, tmp_path: Path) -> SimulatedCann:
    """A home of the test's own, to change at will."""
    shutil.copytree(pristine.home, tmp_path / "cann" / "latest", symlinks=True)
    return SimulatedCann(tmp_path / "cann" / "latest")


@pytest.fixture
def toolchain(cann: SimulatedCann) -> Toolchain:
    return discover(ToolchainSettings(), cann.env())


@pytest.fixture
def builtin(cann: SimulatedCann) -> Path:
    return cann.opp / "built-in" / TBE


@pytest.fixture
def vendor(cann: SimulatedCann) -> Path:
    return cann.opp / "vendors" / "acme" / TBE


def later() -> int:
    """The wall clock, at a time when every file of a test is old enough to be trusted."""
    return time.time_ns() + 3_600_000_000_000


@pytest.fixture(params=["young files", "old files"])
def fingerprints(request: pytest.FixtureRequest, toolchain: Toolchain, tmp_path: Path) -> Fingerprinter:
    """A fingerprinter whose memo trusts nothing yet, or everything: what it promises holds in both."""
    now = time.time_ns if request.param == "young files" else later
    return Fingerprinter(toolchain, tmp_path / "memo.json", now=now)
