"""One start of the decoder: its ranks, what they reported, and what the daemon and the compiler did meanwhile."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo.failure import DemoError
from tools.demo.reports import RankReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.cann_sim import Run
    from tools.demo.children import Child
    from tools.demo.node import Counters, Node

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 150.0
"""A start that takes longer hangs."""

Watch = Callable[[float], None]
"""Called several times a second while the ranks run, with the seconds since their start."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the decoder, complete."""

    name: str
    nproc: int
    batch_sizes: tuple[int, ...]
    exit_codes: tuple[int, ...]
    reports: tuple[RankReport, ...]
    wall_s: float
    before: Counters
    after: Counters
    runs: tuple[Run, ...]
    """op_compiler runs, from the simulated compiler's own log."""

    @property
    def compiled(self) -> int:
        """Kernels that the daemon says it compiled."""
        return self.after.compiled - self.before.compiled

    @property
    def compiles(self) -> Counter[str]:
        """How often op_compiler compiled each kernel, from its own log."""
        return Counter(kernel for run in self.runs for kernel in run.compiled)

    @property
    def records(self) -> int:
        """Records of all ranks."""
        return sum(report.records for report in self.reports)

    @property
    def hits(self) -> int:
        """Keys that some rank found present, over all ranks."""
        return sum(graph.hits for report in self.reports for graph in report.graphs)

    @property
    def digests(self) -> frozenset[str]:
        """The distinct records of all ranks."""
        return frozenset[str]().union(*(report.digests for report in self.reports))


def install_application(directory: Path) -> Path:
    """Put the example where the demo runs it, so that the outputs beside the script stay in the demo's directory."""
    directory.mkdir(parents=True)
    for name in ("decoder.py", "reporting.py", "serve_decoder.py"):
        shutil.copyfile(REPOSITORY / "examples" / name, directory / name)
    return directory / "serve_decoder.py"


def serve(
    node: Node, script: Path, directory: Path, *, name: str, batch_sizes: Sequence[int], nproc: int,
    options: Sequence[str] = (), watch: Watch | None = None,
) -> Start:  # fmt: skip
    """Start the decoder through torchrun on ``node`` and wait for its end; reports and logs go to ``directory``."""
    ranks = Ranks.by_torchrun(node, script, directory, batch_sizes=batch_sizes, nproc=nproc, options=options)
    return ranks.finish(name, watch=watch)


class Ranks:
    """The running ranks of one start."""

    def __init__(self, node: Node, directory: Path, batch_sizes: Sequence[int], nproc: int) -> None:
        self.node = node
        self.directory = directory
        self.batch_sizes = tuple(batch_sizes)
        self.nproc = nproc
        self.children: list[Child] = []
        self.before = node.counters()
        self.runs_before = len(node.cann.runs())
        self.started = time.monotonic()
        directory.mkdir(parents=True)

    @classmethod
    def by_torchrun(
        cls, node: Node, script: Path, directory: Path, *, batch_sizes: Sequence[int], nproc: int, options: Sequence[str] = ()
    ) -> Ranks:
        """The documented way: torchrun sets LOCAL_WORLD_SIZE and supervises the ranks."""
        ranks = cls(node, directory, batch_sizes, nproc)
        torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(nproc)]
        address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        ranks._start([*torchrun, *address, *ranks._script(script, options)], {}, "torchrun.log")
        return ranks

    @classmethod
    def one_by_one(
        cls, node: Node, script: Path, directory: Path, *, batch_sizes: Sequence[int], nproc: int, options: Sequence[str] = ()
    ) -> Ranks:
        """Without a supervisor that ends all ranks when one dies; the ranks do not know each other."""
        ranks = cls(node, directory, batch_sizes, nproc)
        port = str(free_port())
        for rank in range(nproc):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(nproc),
                "LOCAL_WORLD_SIZE": str(nproc),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, *ranks._script(script, ["--independent", *options])]
            ranks._start(command, place, f"rank{rank}.log")
        return ranks

    def _script(self, script: Path, options: Sequence[str]) -> list[str]:
        sizes = ",".join(map(str, self.batch_sizes))
        report = str(self.directory / "rank{rank}.json")
        return [str(script), "--batch-sizes", sizes, "--report", report, "--check-reader", *options]

    def _start(self, command: list[str], place: dict[str, str], log: str) -> None:
        environment = {**self.node.environment(), **place}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), environment["PYTHONPATH"]])  # for the reader
        self.children.append(
            self.node.children.start(command, log=self.directory / log, environment=environment, cwd=self.directory)
        )

    def running(self) -> bool:
        """Whether any of them still runs."""
        return not all(child.ended() for child in self.children)

    def wait(self, watch: Watch | None = None) -> None:
        """Until all have ended; DemoError if they hang."""
        while self.running():
            elapsed = time.monotonic() - self.started
            if elapsed > START_S:
                raise DemoError(f"the ranks did not end within {START_S:.0f} s:\n{self.tail()}")
            if watch:
                watch(elapsed)
            time.sleep(0.1)

    def finish(self, name: str, *, watch: Watch | None = None, expect_reports: bool = True) -> Start:
        """Wait for the end and gather what is known; DemoError if a rank failed or wrote no report."""
        self.wait(watch)
        wall = time.monotonic() - self.started
        codes = tuple(child.process.returncode for child in self.children)
        paths = sorted(self.directory.glob("rank*.json"))
        if expect_reports and (any(codes) or len(paths) != self.nproc):
            raise DemoError(f"{name}: exit codes {codes}, {len(paths)} of {self.nproc} ranks reported:\n{self.tail()}")
        runs = self.node.cann.runs()[self.runs_before :]
        return Start(
            name=name,
            nproc=self.nproc,
            batch_sizes=self.batch_sizes,
            exit_codes=codes,
            reports=tuple(sorted((RankReport.read(path) for path in paths), key=lambda report: report.rank)),
            wall_s=wall,
            before=self.before,
            after=self.node.counters(),
            runs=runs,
        )

    def tail(self) -> str:
        """The end of every log, for an error message."""
        return "\n".join(f"--- {child.log}\n{child.tail()}" for child in self.children)


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
