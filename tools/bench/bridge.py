"""``python -m tools.bench.bridge``: what a round of static kernels costs a rank beside op_compiler, bundled and bridged, in one run.

Ranks of the real torch_npu on simulated NPUs, in ``.venv-npu``. The kernels are compiled before (by a free compiler), so that what is timed
is the rest: dump, records, coordination, cache look-up, installing or leasing, reselect. Milliseconds, the slowest rank's.
Before that, what the ``.pth`` line costs at an interpreter's start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from tools.cann_sim.compiler.costs import FREE
from tools.cann_sim.native import build
from tools.demo.children import Children
from tools.demo.failure import DemoError
from tools.demo.node import Node

_REPOSITORY = Path(__file__).parents[2]
_PTH = _REPOSITORY / "npgxd" / "bridge" / "npgxd-bridge.pth"
_PATIENCE_S = 400.0


def measure(node: Node, children: Children, *, bridge: bool, ranks: int, counts: str) -> dict[int, float]:
    """The milliseconds of each size's round in processes that find every kernel compiled: sizes to the slowest rank's."""
    directory = node.directory / f"{'bridged' if bridge else 'bundled'}-{ranks}"
    environment = node.environment()
    environment["PYTHONPATH"] = f"{_REPOSITORY}:{environment['PYTHONPATH']}"
    environment |= {"NPGXD_BRIDGE": "on" if bridge else "off", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    told: list[dict[str, float]] = []
    for turn in ("warm", "measure"):
        reports = directory / turn
        reports.mkdir(parents=True)
        started = [
            children.start(
                [sys.executable, str(Path(__file__).with_name("bridge_rank.py")), str(reports / f"{rank}.json"), counts],
                log=directory / f"{turn}.{rank}.log",
                environment=environment | _rank(rank, ranks, port=_free_port(reports)),
                cwd=directory,
            )
            for rank in range(ranks)
        ]
        if any(child.wait(_PATIENCE_S) != 0 for child in started):
            raise DemoError("a rank did not end well:\n" + "\n".join(child.tail() for child in started))
        told = [json.loads(path.read_bytes()) for path in reports.iterdir()]
    return {int(count): max(rank[count] for rank in told) for count in told[0]}


def _rank(rank: int, ranks: int, *, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }


def _free_port(directory: Path) -> int:
    """One port for all ranks that report into ``directory``."""
    import socket  # noqa: PLC0415 -- for this one question

    noted = directory.with_suffix(".port")
    if not noted.exists():
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            noted.write_text(str(probe.getsockname()[1]))
    return int(noted.read_text())


def hook_costs(starts: int) -> list[float]:
    """The milliseconds that the ``.pth`` line takes in so many fresh interpreters, which find compiled bytecode as in an installed one."""
    program = (
        f"import os, sys, time; sys.path.insert(0, {str(_REPOSITORY)!r}); line = open({str(_PTH)!r}).read()\n"
        "begun = time.perf_counter(); exec(line); print((time.perf_counter() - begun) * 1000)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-S", "-c", program]
    told = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(starts + 1)
    ]
    return [float(word) for word in told[1:]]  # the first one writes the bytecode


def main() -> int:
    """Print one table; 1 if a rank failed."""
    commands = argparse.ArgumentParser(prog="python -m tools.bench.bridge", description=(__doc__ or "").partition("\n")[0])
    commands.add_argument("--ranks", default="1,2,4,8", help="numbers of ranks")
    commands.add_argument("--operators", default="4,40,200,431", help="numbers of operators")
    options = commands.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="npgxd-bench-bridge-"))
    try:
        with Children(uuid.uuid4().hex) as children, Node(directory / "node", children, costs=FREE) as node:
            build(node.cann)
            node.start_daemon()
            costs = hook_costs(50)
            print(f"simulated CANN; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
            print(f"the hook at an interpreter's start: median {statistics.median(costs):.2f} ms, least {min(costs):.2f} ms\n")
            print("| ranks | operators | bundled ms | bridged ms |\n|---|---|---|---|")
            for ranks in map(int, options.ranks.split(",")):
                bundled, bridged = (
                    measure(node, children, bridge=bridge, ranks=ranks, counts=options.operators) for bridge in (False, True)
                )
                for count in bundled:
                    first = " (first round)" if count == 1 else ""
                    print(f"| {ranks} | {count}{first} | {bundled[count]:.0f} | {bridged[count]:.0f} |", flush=True)
    except DemoError as error:
        print(f"bench failed: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
