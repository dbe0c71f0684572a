"""Load op-library roots and see what runs: ``selecting REPORT PLAN``, a JSON list of steps.

A step is ``{"load": root}``, ``{"load": null}`` (the default root), ``{"remove": directory}``, ``{"cores": number}`` or ``{"run": what}``.
"""

import ctypes
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
import torch_npu
import work

from reporting import arguments, report
from tools.cann_sim.native import counters, reset_counters

GRAPHS: list[torch_npu.npu.NPUGraph] = []


def capture() -> None:
    x = torch.ones(3, 4).npu()
    GRAPHS.append(torch_npu.npu.NPUGraph())
    with torch_npu.npu.graph(GRAPHS[-1]):
        x + 1


def replay() -> None:
    GRAPHS[-1].replay()


RUNS = {
    "step": work.step,
    "composite": work.composite,
    "add": lambda: torch.ones(3, 4).npu() + 1,
    "capture": capture,
    "replay": replay,
}


def run(what: str) -> dict[str, object]:
    reset_counters()
    error = ""
    try:
        RUNS[what]()
        torch.npu.synchronize()
    except RuntimeError as failed:
        error = str(failed)
    return {"run": what, "error": error, **asdict(counters())}


def load(root: str | None) -> dict[str, object]:
    reset_counters()
    if root is None:
        torch_npu.npu._aclnn_reselect_static_kernel()
    else:
        torch_npu.npu._aclnn_reselect_static_kernel_with_path(root)
    return {"load": root, "loads": counters().loads}


done = []
for step in json.loads(Path(arguments()[0]).read_text()):
    (act, what), *_ = step.items()
    if act == "load":
        done.append(load(what))
    elif act == "run":
        done.append(run(what))
    elif act == "remove":
        shutil.rmtree(what)
    elif act == "cores":
        ctypes.CDLL("libascendcl.so").aclrtSetDeviceResLimit(0, 1, what)
report(done=done)
