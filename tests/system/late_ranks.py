"""Jobs of ranks on this node, which train in lock step and do not wait for their kernels; forked, so that torch is imported once for all.

Each line on stdin is one job, in JSON: ``ask`` (see ``rank`` for what is in it), ``reports``, a directory for ``<rank>.json`` and, while
a rank runs, ``<rank>.calls`` with how many calls it has begun, the job's ``environment``, and ``errors``, the file for what it prints.
It is answered with the pid of the job, which is the parent of its ranks and writes ``codes.json`` when the last of them has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.uncollected import uncollected

with uncollected():
    import torch
    import torch.distributed as dist
    from torch._inductor.utils import fresh_cache  # noqa: F401 -- what Dynamo imports at its first use, once for all ranks

    import npugraph_ex
    from npgxd.client import Client, Patience, client
    from npgxd.wire.states import ClientState
    from npugraph_ex import backend  # noqa: F401 -- as above
    from npugraph_ex.engines._eager import EagerEngine, EagerRunner

ENOUGH_S = 90.0
PR_SET_PDEATHSIG = 1


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x @ w)
    dist.all_reduce(y)
    return y + 1


def lonely(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) + 1


def shared_store(number: int, reports: Path) -> dist.Store:
    """Rank 0 serves it, as under ``init_method="env://"``, at a port that is free; its server's thread must not be forked."""
    where, patience = reports / "port", timedelta(seconds=60)
    if number == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
        write(where, store.port)
        return store
    end = time.monotonic() + ENOUGH_S
    while not where.exists() and time.monotonic() < end:
        time.sleep(0.005)
    return dist.TCPStore("127.0.0.1", json.loads(where.read_text()), is_master=False, timeout=patience)


def rank(number: int, ask: dict[str, Any], reports: Path) -> None:
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
    dist.init_process_group(
        "gloo",
        store=shared_store(number, reports),
        rank=number,
        world_size=ask["ranks"],
        timeout=timedelta(seconds=60),
    )
    client._clients[os.getpid()] = Client(patience=Patience(reconnect_s=ask["reconnect_s"]))
    renewed: list[int] = []
    loaded: list[str] = []
    EagerEngine.reselect = lambda _self, view: loaded.append(str(view)) or "loaded"
    EagerRunner.renew = lambda _self: renewed.append(calls + 1)
    function = model if ask["collective"] else lonely
    options = {"static_kernel_compile": True, "static_kernel_wait": "background"}
    compiled = torch.compile(function, backend="npugraph_ex", options=options, fullgraph=True, dynamic=False)
    torch.manual_seed(0)
    w = torch.rand(ask["size"], 8)
    calls, right, end = 0, True, time.monotonic() + ENOUGH_S
    mine = reports / f"{number}.calls"
    while True:
        x = torch.full((4, ask["size"]), float(number + calls))
        y = compiled(x, w)
        calls += 1
        right = right and torch.equal(y, function(x, w))
        mine.write_text(str(calls))
        if number == ask.get("stops") and calls == ask["calls"]:
            break
        done = state() not in (ClientState.QUEUED, None) or time.monotonic() > end
        if ask["collective"]:
            everybody = torch.tensor([float(done)])
            dist.all_reduce(everybody, dist.ReduceOp.MIN)
            done = bool(everybody.item())
        if done:
            break
        time.sleep(0.05)  # a step's other work
    (report,) = npugraph_ex.static_kernel_report()
    told = {
        "state": str(report.outcome.state),
        "reason": str(report.outcome.reason),
        "detail": report.outcome.detail,
        "changed_at": report.changed_at,
        "renewed": renewed,
        "loaded": len(loaded),
        "calls": calls,
        "right": right,
        "last": y.sum().item(),
    }
    write(reports / f"{number}.json", told)
    if ask["collective"]:
        dist.barrier()
        dist.destroy_process_group()


def state() -> ClientState | None:
    reports = npugraph_ex.static_kernel_report()
    return reports[0].outcome.state if reports else None


def write(path: Path, told: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.rename(path)


def job(ask: dict[str, Any], reports: Path) -> None:
    os.environ |= {"WORLD_SIZE": str(ask["ranks"]), "LOCAL_WORLD_SIZE": str(ask["ranks"])}
    torch.set_num_threads(1)
    pids = []
    for number in range(ask["ranks"]):
        pid = os.fork()
        if pid == 0:
            end_with_the_parent()
            try:
                rank(number, ask, reports)
            except BaseException:  # noqa: BLE001 -- a test reads it
                (reports / f"{number}.err").write_text(traceback.format_exc())
                sys.stderr.flush()
                os._exit(1)
            if not ask.get("ordinary_end"):
                os._exit(0)  # torch takes seconds to take itself down
            sys.exit(0)  # with threads that follow rounds: nothing may hold it up
        pids.append(pid)
    write(reports / "pids", pids)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    write(reports / "codes.json", codes)


def end_with_the_parent() -> None:
    """A test that fails ends the job alone, and the end of all tests the process that forks jobs."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def begin(order: dict[str, Any]) -> int:
    """The pid of a new job."""
    pid = os.fork()
    if pid:
        return pid
    end_with_the_parent()
    errors = os.open(order["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, errors), (2, errors)):
        os.dup2(descriptor, stream)
    os.environ.clear()
    os.environ |= order["environment"]
    job(order["ask"], Path(order["reports"]))
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        print(begin(json.loads(line)), flush=True)  # noqa: T201 -- what the test reads


if __name__ == "__main__":
    main()
