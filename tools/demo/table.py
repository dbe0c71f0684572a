"""What the demo shows on the terminal: one line of progress, and the table at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from tools.demo.node import Node
    from tools.demo.serving import Start, Watch

COLUMNS = (
    "start",
    "batches",
    "records",
    "unique",
    "compiled",
    "hits",
    "runs",
    "INSTALLED",
    "wall",
    "as eager",
)


def row(start: Start) -> tuple[str, ...]:
    """One start as the table shows it."""
    installed = sum(report.installed for report in start.reports)
    equal = all(report.equal for report in start.reports)
    difference = max((report.max_difference for report in start.reports), default=0.0)
    return (
        start.name.removesuffix(" start"),
        ",".join(map(str, start.batch_sizes)),
        f"{start.records} from {len(start.reports)} ranks",
        str(len(start.digests)),
        str(start.compiled),
        str(start.hits),
        str(len(start.runs)),
        f"{installed} of {start.nproc}",
        f"{start.wall_s:.1f} s",
        f"{'yes' if equal else 'NO'}, \N{PLUS-MINUS SIGN}{difference:.2g}",
    )


def show(starts: Sequence[Start], console: Console) -> None:
    """Print the table."""
    meaning = "unique: different kernels that the records ask for; runs: of op_compiler; INSTALLED: ranks"
    table = Table(title="npgxd demo, on a simulated CANN", caption=meaning, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")  # noqa: PLR2004 -- the two that are not numbers
    for start in starts:
        table.add_row(*row(start))
    console.print(table)


class ProgressLine:
    """One line that is rewritten while ranks run; a plain line at the end where the output is not a terminal."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        self._asked = 0.0
        self._shown = ""

    def watch(self) -> Watch:
        """In the form that ``serve`` calls."""
        return self._update

    def _update(self, elapsed_s: float) -> None:
        if elapsed_s - self._asked < 1.0 and self._asked:
            return
        self._asked = elapsed_s
        self._shown = f"{self._name}: {elapsed_s:4.0f} s, {describe(self._node.status())}"
        if sys.stdout.isatty():
            print(f"\r\033[K{self._shown}", end="", flush=True)

    def close(self, last: str) -> None:
        """End the line with ``last``."""
        print(f"\r\033[K{self._name}: {last}" if sys.stdout.isatty() else f"{self._name}: {last}", flush=True)


def describe(status: Mapping[str, Any] | None) -> str:
    """What the node is doing, in a few words, from its status document."""
    if status is None:
        return "the daemon does not answer"
    states = [rank["state"] for job in status["jobs"] for rank in job["ranks"]]
    compiling = "".join(f", compiling {job['done']} of {job['keys']}" for job in status["workers"]["jobs"])
    return f"{len(states)} ranks {'/'.join(sorted(set(states))) or 'starting'}{compiling}"
