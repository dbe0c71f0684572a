"""What the examples say about their static kernels: each graph's facts, and what a runtime would load from its views."""

from __future__ import annotations

import sys
from pathlib import Path


def graph_facts() -> list[dict[str, object]]:
    """The static kernels of every graph of this process so far, in the order of their first calls, as JSON can carry them."""
    if "npugraph_ex" not in sys.modules:  # another backend: nothing was asked for, and importing it would not change that
        return []
    import npugraph_ex  # noqa: PLC0415 -- only where the backend is in use

    return [
        {
            "graph": report.graph,
            "state": str(report.outcome.state),
            "reason": str(report.outcome.reason),
            "detail": report.outcome.detail,
            "records": report.outcome.records,
            "unique": report.outcome.unique,
            "hits": report.outcome.hits,
            "compiled": report.outcome.compiled,
            "gathered": report.outcome.gathered,
            "soc": report.outcome.toolchain.soc if report.outcome.toolchain else "",
            "view": str(report.outcome.view) if report.outcome.view else None,
            "outputs": str(report.outputs) if report.outputs else None,
            "undescribed": [list(operator) for operator in report.undescribed],
            "submitted": [[name, raw.decode()] for name, raw in report.submitted],
        }
        for report in npugraph_ex.static_kernel_report()
    ]


def reader_facts(graphs: list[dict[str, object]]) -> dict[str, object]:
    """Load the graphs' views, in their order, as the runtime of the simulated CANN does, and say what was not as it must be.

    ``selected`` is how many kernels the union of the views selects; no ``problems`` means that they are exactly those which this
    process submitted, and that nothing seen was torn.  The views are leased while this process lives, so it is the one to look.
    """
    from tools.cann_sim.reader import Reader  # noqa: PLC0415 -- a tool of the demo, not of a real service

    problems: list[str] = []
    readers: dict[str, Reader] = {}
    submitted: dict[str, list[bytes]] = {}
    for graph in graphs:
        soc, view, records = str(graph["soc"]), graph["view"], graph["submitted"]
        if not soc or not isinstance(records, list):
            problems.append(f"{graph['graph']}: no toolchain, so no reader")
            continue
        reader = readers.setdefault(soc, Reader(soc))
        submitted.setdefault(soc, []).extend(text.encode() for _, text in records)
        if view is not None:
            problems.extend(f"torn: {torn.path}: {torn.reason}" for torn in reader.load(Path(str(view))).torn)
    for soc, reader in readers.items():
        check = reader.check(submitted[soc])
        problems.extend(f"missing: {record}" for record in check.missing)
        problems.extend(f"made for another record: {record}" for record in check.mismatched)
        problems.extend(f"not asked for: {kernel.name}" for kernel in check.extra)
        problems.extend(f"torn: {torn.path}: {torn.reason}" for torn in check.torn)
    selected = {kernel.path for reader in readers.values() for kernel in reader.selected.values()}
    return {"selected": len(selected), "problems": problems}
