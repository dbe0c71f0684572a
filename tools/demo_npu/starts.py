"""One start of the demo's job: its ranks run to their end, and what came of them is gathered."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo.failure import DemoError

if TYPE_CHECKING:
    from tools.demo.children import Children
    from tools.demo.node import Node

_REPOSITORY = Path(__file__).parents[2]
_PATIENCE_S = 300.0
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of the job did: ``static`` of ``launches`` in one step of each rank and batch size were static kernels."""

    name: str
    bridge: bool
    ranks: int
    compiled: tuple[str, ...]
    """The records that kernels were compiled for, as often as they were."""
    compiler_runs: int
    static: int
    launches: int
    first_calls_s: float
    wall_s: float
    off: float
    left: str

    @property
    def right(self) -> bool:
        """Whether every step gave the CPU's numbers."""
        return self.off <= TOLERANCE


def serve(node: Node, children: Children, name: str, *, batches: str, ranks: int, bridge: bool) -> Start:
    """Start the job once and wait for it; DemoError with the end of its log if it fails."""
    directory = node.directory / ("with-bridge" if bridge else "without-bridge")
    reports = directory / f"{name}.reports"
    reports.mkdir(parents=True)
    environment = node.environment()
    environment["PYTHONPATH"] = f"{_REPOSITORY}:{_REPOSITORY / 'examples'}:{environment['PYTHONPATH']}"
    environment |= {"NPGXD_BRIDGE": "on" if bridge else "off", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    program = str(Path(__file__).with_name("rank.py"))
    before, started = len(node.cann.runs()), time.monotonic()
    child = children.start(
        [sys.executable, *torchrun, program, str(reports), batches],
        log=directory / f"{name}.log",
        environment=environment,
        cwd=directory,
    )
    if child.wait(_PATIENCE_S) != 0:
        raise DemoError(f"{name} did not end well; its log ends with:\n{child.tail()}")
    wall = time.monotonic() - started
    runs = node.cann.runs()[before:]
    told = [json.loads(path.read_bytes()) for path in sorted(reports.iterdir())]
    return Start(
        name=name,
        bridge=bridge,
        ranks=ranks,
        compiled=tuple(op.record for run in runs for op in run.ops),
        compiler_runs=len(runs),
        static=sum(int(rank["static"]) for rank in told),
        launches=sum(int(rank["launches"]) for rank in told),
        first_calls_s=max(rank["first_calls_s"] for rank in told),
        wall_s=wall,
        off=max(rank["off"] for rank in told),
        left=_left(directory),
    )


def _left(directory: Path) -> str:
    """What lies about in the job's working directory: folders of rounds, run packages, installations."""
    rounds = len(list(directory.glob("static_kernel_compile_outputs/ts*")))
    packages = len(list(directory.glob("static_kernel_compile_outputs/ts*/*.run")))
    installed = len(list(directory.glob("static_kernel_install/*")))
    return f"{rounds} / {packages} / {installed}"
