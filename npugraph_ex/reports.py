"""What became of each graph of this process that asked for static kernels."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from npgxd.client import Outcome


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One graph, or one concrete shape of it: its outcome, what was submitted, and where its documented output tree is.

    ``submitted`` holds the record files by value. ``undescribed`` names the operators that ran and are in no record: (operator,
    how often, why).  ``changed_at`` is the call at which a graph that did not wait changed to its kernels (the first is 1).
    """

    graph: str
    outcome: Outcome
    submitted: tuple[tuple[str, bytes], ...]
    outputs: Path | None
    undescribed: tuple[tuple[str, int, str], ...] = ()
    changed_at: int | None = None


_reports: list[GraphReport] = []
_lock = threading.Lock()
_numbers = itertools.count()


def static_kernel_report() -> tuple[GraphReport, ...]:
    """Every graph of this process that asked for static kernels, in the order in which they were settled."""
    with _lock:
        return tuple(_reports)


def add(report: GraphReport) -> None:
    """Remember ``report``; a graph and shape that is settled again replaces its earlier report."""
    with _lock:
        _reports[:] = [known for known in _reports if known.graph != report.graph]
        _reports.append(report)


def next_number() -> int:
    """The number of the next graph of this process: ranks that compile the same graphs in the same order agree on it."""
    return next(_numbers)


def forget() -> None:
    """Start again at graph 0 with no reports; for tests."""
    global _numbers  # noqa: PLW0603 -- the process's counter
    with _lock:
        _reports.clear()
        _numbers = itertools.count()
