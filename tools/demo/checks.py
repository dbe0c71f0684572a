"""What the demo claims, each as a check of what was seen: an empty list means that it is all true."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.demo.reports import RankReport
    from tools.demo.serving import Start


def untrue(start: Start, known: frozenset[str]) -> list[str]:
    """Everything about ``start`` that is not as it must be, in sentences; ``known`` are the records served by earlier starts."""
    problems = [*ranks_untrue(start), *_compiles(start, known)]
    return [f"{start.name}: {problem}" for problem in problems]


def outputs_untrue(start: Start) -> list[str]:
    """What is wrong with the documented outputs of a first start, in sentences."""
    return [f"{start.name}: rank {report.rank}: {p}" for report in start.reports for p in _outputs(report)]


def ranks_untrue(start: Start) -> list[str]:
    """What is wrong with the ranks of ``start``: states, outputs, and what the reader saw."""
    return list(_ranks(start))


def _ranks(start: Start) -> Iterator[str]:
    if len(start.reports) != start.nproc:
        yield f"{len(start.reports)} of {start.nproc} ranks reported"
    for report in start.reports:
        prefix = f"rank {report.rank}:"
        if not report.graphs:
            yield f"{prefix} no graph asked for static kernels"
        for graph in report.graphs:
            if graph.state != "INSTALLED":
                yield f"{prefix} batch {graph.batch} is {graph.state}({graph.reason}), not INSTALLED: {graph.detail}"
            if graph.hits + graph.compiled != graph.unique:
                counts = f"{graph.hits} hits and {graph.compiled} compiled do not make {graph.unique} unique"
                yield f"{prefix} batch {graph.batch}: {counts}"
        if not report.equal:
            yield f"{prefix} outputs differ from eager's by up to {report.max_difference:.3g}"
        for problem in report.reader_problems:
            yield f"{prefix} the reader says: {problem}"
        if not report.reader_problems and report.reader_selected != len(report.digests):
            yield f"{prefix} its views select {report.reader_selected} kernels for {len(report.digests)} different records"


def _compiles(start: Start, known: frozenset[str]) -> Iterator[str]:
    new = len(start.digests - known)
    if start.compiled != new:
        yield f"the daemon compiled {start.compiled} kernels, {new} records were new"
    if len(start.compiles) != new:
        yield f"op_compiler's own log has {len(start.compiles)} kernels, {new} records were new"
    repeated = {kernel: count for kernel, count in start.compiles.items() if count > 1}
    if repeated:
        yield f"compiled more than once: {repeated}"
    graphs = max((len(report.graphs) for report in start.reports), default=0)
    if len(start.runs) > graphs:
        yield f"{len(start.runs)} runs of op_compiler for {graphs} graphs that all ranks have alike"
    if bool(start.runs) != bool(new):
        yield f"{len(start.runs)} runs of op_compiler for {new} new records"


def _outputs(report: RankReport) -> Iterator[str]:
    for number, graph in enumerate(report.graphs):
        if graph.outputs is None or not Path(graph.outputs).is_dir():
            yield f"batch {graph.batch} has no outputs directory ({graph.outputs})"
            continue
        tree = Path(graph.outputs)
        gathered, packages = list(tree.glob("*_opcompile_gathered")), list(tree.glob("static_kernel_*.run"))
        if tree.parent.name != "static_kernel_compile_outputs":
            yield f"{tree} is not in static_kernel_compile_outputs"
        if report.local_rank != 0 and (gathered or packages):
            yield f"{tree} has what belongs to local rank 0: {[path.name for path in (*gathered, *packages)]}"
        if report.local_rank == 0 and not (len(gathered) == 1 and any(gathered[0].glob("*.json"))):
            yield f"{tree} has no _opcompile_gathered with records"
        # A later graph may share kernels with earlier ones, and then has their packages too.
        if report.local_rank == 0 and (not packages or (number == 0 and len(packages) != 1)):
            yield f"{tree} has {len(packages)} run packages, not one"
