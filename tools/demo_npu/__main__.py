"""``python -m tools.demo_npu``: what ``make demo-npu`` runs."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from npgxd.errors import NpgxError
from tools.cann_sim.native import BuildFailed, build
from tools.demo.children import Children
from tools.demo.node import Node
from tools.demo_npu.starts import Start, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

TRUE, UNTRUE, FAILED = 0, 1, 70
_JOBS = (("cold start", "1"), ("warm start", "1"), ("one more batch size", "1,2"))
_COLUMNS = ("start", "bridge", "kernels", "runs", "static launches", "first calls", "wall", "left", "right")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if everything that was said of the bridge is true, 1 if something is not, 70 if the demo could not be shown."""
    commands = argparse.ArgumentParser(prog="python -m tools.demo_npu", description=(__doc__ or "").partition(":")[0])
    commands.add_argument("--nproc", type=int, default=4, help="ranks")
    commands.add_argument("--keep", action="store_true", help="keep the directory with logs and reports")
    options = commands.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="npgxd-demo-npu-"))
    code = FAILED
    try:
        code = _show(directory, options.nproc)
    except (NpgxError, BuildFailed, LookupError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
    finally:
        if options.keep or code != TRUE:
            print(f"logs and reports are in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return code


def _show(directory: Path, ranks: int) -> int:
    console = Console(width=None if sys.stdout.isatty() else 120)
    starts: list[Start] = []
    with Children(uuid.uuid4().hex) as children, Node(directory / "node", children) as node:
        console.print("building a simulated libascendcl for the installed torch_npu ...")
        build(node.cann)
        node.start_daemon()
        for bridge in (True, False):
            for name, batches in _JOBS:
                console.print(f"{name}, {ranks} ranks, {'with the bridge' if bridge else 'NPGXD_BRIDGE=off'} ...")
                starts.append(serve(node, children, name, batches=batches, ranks=ranks, bridge=bridge))
    console.print(_table(starts))
    problems = list(_problems(starts))
    for problem in problems:
        print(f"UNTRUE: {problem}", file=sys.stderr)
    if not problems:
        console.print(
            "What is said of the bridge was checked: every kernel compiled once, in use, and none installed by a process."
        )
    return UNTRUE if problems else TRUE


def _table(starts: Sequence[Start]) -> Table:
    meaning = "kernels, runs: compiled, by how many runs of the simulated op_compiler; left: folders of rounds / run packages / installations"
    table = Table(title="torch_npu's own npugraph_ex on simulated NPUs", caption=meaning, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right")  # noqa: PLR2004 -- the two that are not numbers
    for start in starts:
        table.add_row(
            start.name,
            "on" if start.bridge else "off",
            str(len(start.compiled)),
            str(start.compiler_runs),
            f"{start.static} of {start.launches}",
            f"{start.first_calls_s:.1f} s",
            f"{start.wall_s:.1f} s",
            start.left,
            "yes" if start.right else f"off by {start.off:.2g}",
        )
    return table


def _problems(starts: Sequence[Start]) -> list[str]:
    """What of the bridge is not as promised; of the flow without it nothing is claimed but its numbers."""
    cold, warm, more = (start for start in starts if start.bridge)
    told = [(not start.right, f"{start.name}: steps differ from the CPU's by {start.off:.2g}") for start in starts]
    told += [(not start.static, f"{start.name}: no launch was a static kernel") for start in (cold, warm, more)]
    compiled = [record for start in (cold, warm, more) for record in start.compiled]
    told += [
        (len(compiled) != len(set(compiled)), "a kernel was compiled twice"),
        (bool(warm.compiled), f"the warm start compiled {len(warm.compiled)} kernels"),
        (warm.static != cold.static, "the warm start ran other kernels than the cold one"),
        (more.static <= warm.static, "the new batch size has no static kernels"),
    ]
    told += [(not start.left.endswith(" 0"), f"{start.name}: a process installed kernels itself") for start in (cold, warm, more)]
    return [problem for untrue, problem in told if untrue]


if __name__ == "__main__":
    sys.exit(main())
