"""A user's program, with nothing of ours in it: a model compiled by torch_npu's own npugraph_ex with static kernels.

``serving REPORT WISHES``, where WISHES is JSON: ``options`` (more of the backend's), ``calls``, ``then`` ("exit" or "wait"),
``blacklist``, ``package`` (the name under which npugraph_ex is imported before).
"""

import hashlib
import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401 -- registers the device and the backend

from reporting import arguments, report
from tools.cann_sim.native import counters, reset_counters

WISHES = json.loads(arguments()[0])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Counting(torch.nn.Module):
    """A layer that counts its calls in place, and sums up what it saw."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(8, 8, generator=generator))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen[row] += x[row]
        return torch.nn.functional.silu(x @ self.weight + WORLD).softmax(-1) * self.calls


def main() -> None:
    if WORLD > 1:
        dist.init_process_group("gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=RANK, world_size=WORLD)
        torch.npu.set_device(RANK)
    before = signal.getsignal(signal.SIGTERM)
    if "package" in WISHES:
        importlib.import_module(WISHES["package"])
    if "blacklist" in WISHES:
        from npugraph_ex._acl_concrete_graph.static_kernel import _set_static_kernel_blacklist

        _set_static_kernel_blacklist(WISHES["blacklist"])
    host, device = Counting().eval(), Counting().eval().npu()
    options = {"static_kernel_compile": True, **WISHES.get("options", {})}
    compiled = torch.compile(device, backend="npugraph_ex", fullgraph=True, dynamic=False, options=options)
    off, launches = 0.0, []
    random = [torch.get_rng_state(), torch.npu.get_rng_state()]
    for call in range(WISHES.get("calls", 2)):
        reset_counters()
        x, row = torch.full((4, 8), 0.1 * call + 0.1), torch.tensor([call % 4])
        with torch.no_grad():
            off = max(off, float((compiled(x.npu(), row.npu()).cpu() - host(x, row)).abs().max()))
        launches.append({"static": counters().static, "dynamic": counters().dynamic, "loads": counters().loads})
        kernels = sorted(counters().kernels)
    report(
        off=off,
        calls=[float(device.calls.cpu()), float(host.calls)],
        seen=float((device.seen.cpu() - host.seen).abs().max()),
        random=[torch.equal(random[0], torch.get_rng_state()), torch.equal(random[1], torch.npu.get_rng_state())],
        launches=launches,
        kernels=kernels,
        objects={Path(path).parent.name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in kernels},
        handler_kept=signal.getsignal(signal.SIGTERM) is before,
        modules=sorted(name for name in sys.modules if name.startswith("npgxd.bridge")),
        left=sorted(map(str, Path().glob("static_kernel_*/**"))),
        pid=os.getpid(),
    )
    if WISHES.get("then") == "wait":
        threading.Event().wait()
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


main()
