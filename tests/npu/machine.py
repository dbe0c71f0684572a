"""Programs on simulated NPUs: each is a process of its own with the unmodified torch_npu on a simulated libascendcl.

They need torch_npu, which changes what `import torch` does, so `make npu` runs them in an environment of their own; elsewhere they
are skipped, and say so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools.cann_sim import SimulatedCann, create
from tools.cann_sim.native import Wheel, build, find_wheel

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).parent / "programs"
REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 300.0  # far longer than any program takes, on a machine that has more to do


@dataclass
class Npu:
    """A machine with simulated NPUs: programs run there, each in a process of its own, and report in JSON."""

    cann: SimulatedCann
    directory: Path

    def environment(self, **more: str) -> dict[str, str]:
        """A program's environment; ``before`` is a path that is searched for modules before all others."""
        dropped = ("ASCEND_", "NPGXD_", "CANN_SIM_", "RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        kept |= self.cann.env()
        before = [more.pop("before")] if "before" in more else []
        kept["PYTHONPATH"] = os.pathsep.join([*before, str(REPOSITORY), str(REPOSITORY / "examples"), kept["PYTHONPATH"]])
        return {**kept, "OMP_NUM_THREADS": "1", **more}

    def start(self, program: str, *arguments: str | Path, report: Path, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", str(PROGRAMS / f"{program}.py"), str(report), *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment(**environment),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, program: str, *arguments: str | Path, patience_s: float = PATIENCE_S, **environment: str) -> dict[str, Any]:
        """Run ``programs/<program>.py`` to its end; what it reported."""
        report = self.directory / f"{program}.json"
        process = self.start(program, *arguments, report=report, **environment)
        said = ended(process, patience_s)
        assert process.returncode == 0, said[-6000:]
        return json.loads(report.read_text())

    def ranks(self, program: str, count: int, *arguments: str | Path, **environment: str) -> list[dict[str, Any]]:
        """Run ``count`` ranks of one job, each with a device of its own."""
        reports = [self.directory / f"{program}.{rank}.json" for rank in range(count)]
        rendezvous = self.directory / "rendezvous"
        started = [
            self.start(
                program,
                *arguments,
                report=report,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(count),
                LOCAL_WORLD_SIZE=str(count),
                TORCHELASTIC_RUN_ID="one",
                RENDEZVOUS=str(rendezvous),
                **environment,
            )
            for rank, report in enumerate(reports)
        ]
        said = [ended(process) for process in started]
        rendezvous.unlink(missing_ok=True)
        assert [process.returncode for process in started] == [0] * count, "\n----\n".join(text[-4000:] for text in said)
        return [json.loads(report.read_text()) for report in reports]


def ended(process: subprocess.Popen[str], patience_s: float = PATIENCE_S) -> str:
    """What a program said until it ended; one that hangs is ended with what it forked, which its exit status tells."""
    try:
        return process.communicate(timeout=patience_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
        return process.communicate()[0]


@pytest.fixture(scope="session")
def wheel() -> Wheel:
    """The installed torch_npu, or a skip that says why."""
    try:
        return find_wheel()
    except LookupError as error:
        pytest.skip(f"NOT TESTED HERE: {error} (make npu does both)")


@pytest.fixture(scope="session")
def older(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A search path before all others, with this torch_npu as it would be without npugraph_ex and torchair in it."""
    package = tmp_path_factory.mktemp("older") / "torch_npu"
    for part, leave in (
        ("", {"dynamo", "utils"}),
        ("dynamo", {"npugraph_ex", "torchair", "__init__.py", "__pycache__"}),
        ("utils", {"_dynamo.py", "__pycache__"}),
    ):
        (package / part).mkdir(parents=True)
        for path in (wheel.root / part).iterdir():
            if path.name not in leave:
                (package / part / path.name).symlink_to(path)
    for file, lines in (
        ("dynamo/__init__.py", ("sys.modules[NPUGRAPH_EX_BACKEND] = ", "_register_npu_backend(npugraph_ex_backend, ")),
        ("utils/_dynamo.py", ('sys.modules["npugraph_ex"] = ',)),
    ):
        text = (wheel.root / file).read_text()
        for line in lines:  # where the name is taken for the bundled package
            text, count = re.subn(rf"(?m)^( *){re.escape(line)}.*$", r"\1pass", text)
            assert count == 1
        (package / file).write_text(text)
    return str(package.parent)


@pytest.fixture(scope="session")
def homes(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimulatedCann]:
    """Simulated CANN homes by version, with libraries; tests share them and do not change them."""

    @cache
    def home(version: str) -> SimulatedCann:
        cann = create(tmp_path_factory.mktemp("cann") / version, version=version)
        build(cann, wheel)
        return cann

    return home


@pytest.fixture
def make_npu(homes: Callable[[str], SimulatedCann], tmp_path: Path) -> Callable[..., Npu]:
    """Make machines; ``version`` is that of their CANN, which is shared unless ``cann`` gives one."""

    def make(version: str = "9.1.0", *, cann: SimulatedCann | None = None) -> Npu:
        directory = tmp_path / f"npu-{version}"
        directory.mkdir()
        if cann is not None:
            build(cann)
        return Npu(cann or homes(version), directory)

    return make


@pytest.fixture
def npu(make_npu: Callable[..., Npu]) -> Npu:
    """A machine with CANN 9.1.0."""
    return make_npu()
