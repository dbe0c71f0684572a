"""Many compiles, of which some fail: scratch, logs and the whole state stay under their limits. The long profile: ``NPGXD_CRASH_LONG=1``."""

# ruff: noqa: T201 -- the long profile reports its numbers (pytest -rP shows them)
from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.conftest_node import Node, eventually, matmuls, named
from tools.cann_sim import records

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = bool(os.environ.get("NPGXD_CRASH_LONG"))
ROUNDS, GOOD, BAD = (50, 16, 4) if LONG else (5, 10, 2)
KEPT, WORKERS = 3, 2
STORE_BYTES = 400_000
OTHER_BYTES = 6_000_000
"""All that is neither kernel nor package: most of it is the catalog's log, which SQLite folds in at a thousand pages (4 MiB)."""


def size_of(*places: Path) -> int:
    total = 0
    for place in places:
        for directory, _, files in os.walk(place):  # which passes over what goes while it looks
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    total += Path(directory, name).lstat().st_size
    return total


@pytest.mark.timeout(1800)
def test_fc25_after_many_mixed_compiles_scratch_logs_and_size_are_within_their_limits(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["store"] = {"max_gb": STORE_BYTES / 1e9, "gc_interval_s": 1, "recent_s": 0, "quarantine_mb": 1}
    node.settings["compile"] |= {"keep_jobs": KEPT, "attempts": 1, "workers": WORKERS}
    node.start()
    for op_type, kind in (("Add", "fail"), ("Mul", "leave_out"), ("Sub", "crash")):
        node.cann.order(op_type, kind)
    bad = ("Add", "Mul", "Sub")
    rounds = []
    for number in range(ROUNDS):
        start = 16 + number * GOOD
        failing = [records.elementwise(bad[number % 3], [16 * (number + 1), 8 * (at + 1)], "float16") for at in range(BAD)]
        rounds.append([*matmuls(*range(start, start + GOOD)), *named(*failing)])
    # One after the other, each from a process of its own, so that what came before may go.
    most_jobs = most_bytes = 0
    jobs = node.state / "jobs"

    def settled() -> bool:
        nonlocal most_jobs, most_bytes
        most_jobs = max(most_jobs, len(list(jobs.iterdir())))
        most_bytes = max(most_bytes, size_of(jobs, node.state / "staging"))
        return rank.report.exists()

    for items in rounds:
        rank = node.rank(items)
        eventually(settled, "the round is settled")
        rank.end()
    compiles = sum(len(run.ops) for run in node.cann.runs())
    assert compiles >= ROUNDS * (GOOD + BAD)
    assert most_jobs <= KEPT + WORKERS
    assert len(list(jobs.iterdir())) <= KEPT
    eventually(lambda: not list((node.state / "staging").iterdir()), "staging is empty")
    assert node.stop() == 0
    node.start()  # what was told to a process a short while ago is kept for it, by the daemon that told it
    store = eventually(
        lambda: (size := size_of(node.state / "kernels", node.state / "packages")) <= STORE_BYTES and size,
        "removal has met the limit",
    )
    whole = size_of(node.state)
    assert whole <= STORE_BYTES + OTHER_BYTES
    document = node.status()
    assert document is not None
    assert node.stop() == 0
    logs = size_of(jobs)
    print(
        f"{compiles} compiles in {len(node.cann.runs())} runs of op_compiler: at most {most_jobs} job directories and {most_bytes} "
        f"bytes of scratch at any time; then {logs} bytes of logs, {store} of kernels and packages, {whole - logs - store} of catalog "
        f"and fingerprints; {document['kernels']['count']} kernels kept, {len(document['failures'])} failures remembered"
    )
