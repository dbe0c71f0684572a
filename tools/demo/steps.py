"""The demo's story: three starts of the decoder on one node, each checked and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.cann_sim.compiler.record import Record
from tools.demo import checks
from tools.demo.failure import DemoError
from tools.demo.node import JOBS, SOC, VERSION, Node
from tools.demo.serving import install_application, serve
from tools.demo.table import ProgressLine, show

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from tools.demo.children import Children
    from tools.demo.serving import Start


def tell_the_story(
    directory: Path, children: Children, console: Console, *, nproc: int, batch_sizes: Sequence[int], extra: int
) -> list[str]:
    """Run the three starts and show them; gives what is untrue, in sentences."""
    console.print(f"[bold]Simulated CANN {VERSION} for {SOC}[/bold]: no NPU and no real compiler is involved.", highlight=False)
    with Node(directory / "node", children) as node:
        ready_s = node.start_daemon()
        console.print(f"npgxd answers on {node.socket} after {ready_s:.2f} s", highlight=False)
        script = install_application(directory / "app")
        plan = [("first start", batch_sizes), ("second start", batch_sizes), ("third start", [*batch_sizes, extra])]
        starts: list[Start] = []
        problems: list[str] = []
        for name, sizes in plan:
            known = frozenset[str]().union(*(start.digests for start in starts))
            start = watched_start(node, script, directory / name.replace(" ", "-"), name=name, batch_sizes=sizes, nproc=nproc)
            problems += checks.untrue(start, known)
            problems += checks.outputs_untrue(start) if not starts else []
            starts.append(start)
        show(starts, console)
        console.print(compile_figures(node, starts[0]), highlight=False)
        console.print("\n[bold]npgxctl status[/bold]")
        page = node.npgxctl("status")
        console.print(page.stdout, end="", markup=False, highlight=False, soft_wrap=not console.is_terminal)
        if page.returncode != 0:
            problems.append(f"npgxctl status ended with exit code {page.returncode}: {page.stderr.strip()}")
        code = node.stop_daemon()
        if code != 0:
            problems.append(f"the daemon ended with exit code {code} after SIGTERM, not 0")
    return problems


def watched_start(node: Node, script: Path, directory: Path, *, name: str, batch_sizes: Sequence[int], nproc: int) -> Start:
    """One start through torchrun, with a progress line."""
    line = ProgressLine(node, name)
    try:
        start = serve(node, script, directory, name=name, batch_sizes=batch_sizes, nproc=nproc, watch=line.watch())
    except DemoError:
        line.close("failed")
        raise
    line.close(f"{start.compiled} kernels compiled, {start.wall_s:.1f} s")
    return start


def compile_figures(node: Node, start: Start) -> str:
    """What a cold start's compiles took, against the least that the simulated compiler's cost model allows."""
    known: set[str] = set()
    ideal = 0.0
    for graphs in zip(*(report.graphs for report in start.reports), strict=True):
        new = {digest: raw for graph in graphs for digest, raw in graph.submitted.items() if digest not in known}
        ideal += node.cann.costs.ideal([Record.parse(raw) for raw in new.values()], JOBS)
        known.update(new)
    took = sum(run.seconds or 0.0 for run in start.runs)
    return f"op_compiler (simulated) ran for {took:.1f} s in the {start.name}; the least its cost model allows is {ideal:.1f} s"
