"""The scheduler through a real daemon, on the simulated compiler's cost model: a cold group, and a small job behind a large one.

Costs are about a tenth of what real kernels take (start-up 1 s, an op 0.2 to 0.5 s), and [compile] batch_s with them; the compiler
only waits, so that four processes fit on two processors.  What a kernel costs us (verifying, staging, publishing) is not scaled, so
``group_full`` has the costs, and batch_s, of a real node.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.client import Client
from tools.cann_sim import Costs, records
from tools.cann_sim.compiler.record import Record
from tools.demo.node import SOC, Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.cann_sim.records import Record as Described
    from tools.cann_sim.runs import Run
    from tools.demo.children import Children

REPOSITORY = Path(__file__).parents[2]
COSTS = Costs(startup_s=1.0, per_op_s=0.2)
BATCH_S = 3.0
FULL_COSTS = Costs(startup_s=10.0, per_op_s=2.0)
FULL_BATCH_S = 30.0
SLOTS = 4
RANKS, KERNELS, OVERLAP = 8, 431, 0.7
SMALL, LARGE = 20, 2000


def group(directory: Path, children: Children) -> dict[str, str]:
    """8 ranks of one job with 431 records each, 70 % of them the same in all; nothing is known, not even what kernels cost."""
    lists = _overlapping()
    with Node(directory, children, costs=COSTS) as node:
        alone = _one_run(node, _union(lists))
        told = _cold_group(node, lists, COSTS, BATCH_S)
    told.figures["  one op_compiler run on the union, nothing verified or published"] = f"{alone:.2f} s"
    told.figures["  wall / one run, from the first run's start on / one run"] = (
        f"{told.wall / alone:.3f}, {(told.wall - told.waited) / alone:.3f}"
    )
    return told.figures


def group_full(directory: Path, children: Children) -> dict[str, str]:
    """The same with what kernels cost on a real node: a quarter of an hour."""
    with Node(directory, children, costs=FULL_COSTS) as node:
        return _cold_group(node, _overlapping(), FULL_COSTS, FULL_BATCH_S).figures


@dataclass(frozen=True, slots=True)
class _Told:
    """Seconds from the start of the ranks until the last is served, and until op_compiler ran first; and the table."""

    wall: float
    waited: float
    figures: dict[str, str]


def _cold_group(node: Node, lists: list[list[Described]], costs: Costs, batch_s: float) -> _Told:
    union = _union(lists)
    ideal = costs.ideal([Record.parse(json.dumps(item).encode()) for item in union], SLOTS)
    before = len(node.cann.runs())
    _configure(node, batch_s)
    node.start_daemon()
    begun = time.time()
    ends = _wait([_rank(node, f"rank{at}", one, **_environment("group", at, RANKS)) for at, one in enumerate(lists)])
    wall = max(ends) - begun
    runs = node.cann.runs()[before:]
    compiled = [op.record for run in runs for op in run.ops]
    first = min(run.started for run in runs)
    waited = first - begun
    figures = {
        f"cold group, {RANKS} ranks x {KERNELS} records, {len(union)} different: wall": f"{wall:.2f} s in {len(runs)} runs of op_compiler",
        "  until the first op_compiler run (start of 8 Pythons, records, the group)": f"{waited:.2f} s",
        "  kernels, compiles of them": f"{len(set(compiled))}, {len(compiled)}",
        f"  ideal (one start-up + cost / {SLOTS} slots)": f"{ideal:.2f} s",
        "  wall / ideal, from the first run's start on / ideal": f"{wall / ideal:.3f}, {(wall - waited) / ideal:.3f}",
        "  what is more than ideal": _split(runs, costs.startup(), ideal, max(ends)),
    }
    return _Told(wall, waited, figures)


def _split(runs: Sequence[Run], start_up_s: float, ideal: float, end: float) -> str:
    """Where the seconds go from the first run's start on, in seconds of all slots."""
    first, last = min(run.started for run in runs), max(run.started + (run.seconds or 0.0) for run in runs)
    held = [(int(run.argv[run.argv.index("-j") + 1]), run.seconds or 0.0) for run in runs]
    busy = sum(processes * seconds for processes, seconds in held) / SLOTS
    starting = sum(processes for processes, _ in held) * start_up_s / SLOTS
    parts = {
        "start-ups but one": starting - start_up_s,
        "idle within runs, packages": busy - starting - (ideal - start_up_s),
        "slots without a run": last - first - busy,
        "after the last run": end - last,
    }
    return ", ".join(f"{what} {seconds:.2f} s" for what, seconds in parts.items())


def small_behind_large(directory: Path, children: Children) -> dict[str, str]:
    """A job of 20 kernels that comes while one of 2000 compiles, and the same 20 on a node without it."""
    small = [records.elementwise("Gelu", (16, 8 * (at + 1))) for at in range(SMALL)]
    with Node(directory / "busy", children, costs=COSTS) as node:
        _configure(node)
        node.start_daemon()
        _wait(
            [
                _rank(
                    node,
                    "warm",
                    [records.elementwise("Exp", (16, 8 * (at + 1))) for at in range(SMALL)],
                    **_environment("w", 0, 1),
                )
            ]
        )
        large = _rank(node, "large", records.many(LARGE), **_environment("large", 0, 1))
        while len(node.cann.runs()) < 2:  # noqa: PLR2004 -- the warm-up's, and the large job's first
            time.sleep(0.05)
        time.sleep(1.5)
        begun = time.time()
        beside = max(_wait([_rank(node, "small", small, **_environment("small", 0, 1))])) - begun
        large[0].kill()
        large[0].wait()
        lengths = [run.seconds for run in node.cann.runs() if run.seconds]
    with Node(directory / "idle", children, costs=COSTS) as node:
        _configure(node)
        node.start_daemon()
        begun = time.time()
        alone = max(_wait([_rank(node, "small", small, **_environment("small", 0, 1))])) - begun
    return {
        f"{SMALL} kernels, {LARGE} of another job ahead: until INSTALLED": f"{beside:.2f} s",
        "  the same on an idle node": f"{alone:.2f} s",
        "  the longest op_compiler run meanwhile": f"{max(lengths):.2f} s",
    }


def _overlapping() -> list[list[Described]]:
    """The same records for every rank, and its own."""
    shared = round(KERNELS * OVERLAP)
    every = records.many(shared + RANKS * (KERNELS - shared))
    random.Random(0).shuffle(every)  # noqa: S311 -- always the same order
    own = KERNELS - shared
    return [every[:shared] + every[shared + rank * own : shared + (rank + 1) * own] for rank in range(RANKS)]


def _union(lists: list[list[Described]]) -> list[Described]:
    return list({json.dumps(item, sort_keys=True): item for one in lists for item in one}.values())


def _one_run(node: Node, items: list[Described]) -> float:
    """Seconds that op_compiler takes for all of them at once, started by hand."""
    with tempfile.TemporaryDirectory(dir=node.directory) as scratch:
        records.write_records(Path(scratch, "records"), items)
        Path(scratch, "work").mkdir()
        command = [node.cann.op_compiler, "-p", Path(scratch, "records"), "-v", SOC, "-j", str(SLOTS), "-f", "true"]
        begun = time.perf_counter()
        subprocess.run(
            [*map(str, command), "-o", str(Path(scratch, "out"))],
            env=node.environment(),
            cwd=Path(scratch, "work"),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - begun


def _configure(node: Node, batch_s: float = BATCH_S) -> None:
    text = node.config.read_text(encoding="utf-8")
    head, _, _ = text.partition("[compile]")
    node.config.write_text(f"{head}[compile]\njobs = {SLOTS}\nbatch_s = {batch_s}\n", encoding="utf-8")


def _environment(job: str, rank: int, ranks: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": job,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }


def _rank(node: Node, name: str, items: list[Described], **environment: str) -> tuple[subprocess.Popen[str], Path]:
    """A process that submits these records; when they are installed it writes down the time."""
    ask, told = node.directory / f"{name}.ask.json", node.directory / f"{name}.json"
    ask.write_text(json.dumps([(f"{at}.json", json.dumps(item)) for at, item in enumerate(items)]))
    command = [sys.executable, "-m", "tools.bench.schedule", str(ask), str(told)]
    return subprocess.Popen(command, env={**node.environment(), **environment}, cwd=REPOSITORY, text=True), told


def _wait(ranks: list[tuple[subprocess.Popen[str], Path]]) -> list[float]:
    """When each had its kernels (seconds since the epoch)."""
    for process, _ in ranks:
        if process.wait():
            raise SystemExit("a bench rank failed")
    return [float(json.loads(told.read_text())) for _, told in ranks]


def main(ask: Path, told: Path) -> None:
    """One rank."""
    items = [(name, text.encode()) for name, text in json.loads(ask.read_text())]
    client = Client()
    outcome = client.static_kernels(items, graph="0")
    if str(outcome.state) != "INSTALLED":
        raise SystemExit(f"not INSTALLED: {outcome}")
    temporary = told.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(time.time()))
    temporary.replace(told)
    client.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
