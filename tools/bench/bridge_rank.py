"""One rank of ``tools.bench.bridge``: what a round costs in a process, for graphs of several sizes. ``bridge_rank.py REPORT COUNTS``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401 -- registers the device and its packages

if TYPE_CHECKING:
    from collections.abc import Callable


def graph(count: int) -> Callable[[], None]:
    """A function that launches ``count`` operators of as many shapes, which no other graph here launches."""
    inputs = [torch.ones(count, width + 1, device="npu") for width in range(count)]

    def run() -> None:
        for x in inputs:
            x + 1

    return run


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]  # torch_npu puts it there


def _timed(run: Callable[[], None]) -> float:
    """The seconds of one run, to its end on the device."""
    started = time.perf_counter()
    run()
    _npu().synchronize()
    return time.perf_counter() - started


def main(report: Path, counts: list[int]) -> None:
    """Time one round for each size: all that happens around the graph's own run."""
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    _npu().set_device(int(os.environ["LOCAL_RANK"]))
    from npugraph_ex._acl_concrete_graph import static_kernel  # type: ignore[import-not-found]  # torch_npu's  # noqa: PLC0415

    told = {}
    for count in (1, *counts):  # the first round of a process pays for imports and connections: it has a line of its own
        run = graph(count)
        alone = min(_timed(run) for _ in range(3))
        if world > 1:
            dist.barrier()
        started = time.perf_counter()
        static_kernel.compile_static_kernel(run, config={"static_kernel_compile": True})
        told[count] = (time.perf_counter() - started - alone) * 1000
    report.write_text(json.dumps(told))
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(count) for count in sys.argv[2].split(",")])
