"""The ranks of one job on this node, which train in lock step and do not wait for their kernels; forked, so that torch is imported once.

``python late_ranks.py ASK REPORTS``: ASK is a JSON file (see ``rank`` for what is in it), REPORTS a directory for
``<rank>.json`` and, while a rank runs, ``<rank>.calls`` with how many calls it has begun.
"""

from __future__ import annotations

import contextlib
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


def end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and was waited for
            os.kill(pid, signal.SIGKILL)


def write(path: Path, told: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.rename(path)


def main(ask_path: str, reports_path: str) -> None:
    ask, reports = json.loads(Path(ask_path).read_text()), Path(reports_path)
    os.environ |= {"WORLD_SIZE": str(ask["ranks"]), "LOCAL_WORLD_SIZE": str(ask["ranks"])}
    torch.set_num_threads(1)
    pids = []
    for number in range(ask["ranks"]):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a test that fails ends this process's parent alone
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
    (reports / "pids").write_text(json.dumps(pids))
    signal.signal(signal.SIGTERM, lambda *_: end(pids))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    write(reports / "codes.json", {"codes": codes})


if __name__ == "__main__":
    main(*sys.argv[1:])
