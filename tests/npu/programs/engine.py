"""One rank of a serving engine: ``engine REPORT WIDTHS``. It compiles a model, then runs a step for every line on stdin.

Each answer is one line of JSON on stdout: what ran, and whether the numbers were right. At the end of stdin it exits.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401 -- registers the device and the backend

from reporting import arguments
from tools.cann_sim.native import counters, reset_counters


class Model(torch.nn.Module):
    """Layers of several widths; models with a width in common have kernels in common."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = torch.nn.ParameterList(torch.randn(width, width, generator=generator) for width in widths)

    def forward(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.nn.functional.silu(x @ weight).softmax(-1) for x, weight in zip(xs, self.weights, strict=True)]


def main() -> None:
    rank, widths = int(os.environ["RANK"]), json.loads(arguments()[0])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2)
    torch.npu.set_device(rank)
    host, device = Model(widths).eval(), Model(widths).eval().npu()
    step = torch.compile(device, backend="npugraph_ex", fullgraph=True, dynamic=False, options={"static_kernel_compile": True})
    xs = [torch.full((4, width), 0.25) for width in widths]
    for _ in sys.stdin:
        with torch.no_grad():
            step([x.npu() for x in xs])
            reset_counters()
            ours = step([x.npu() for x in xs])
            off = max(float((a.cpu() - b).abs().max()) for a, b in zip(ours, host(xs), strict=True))
        now = counters()
        sys.stdout.write(json.dumps({"static": now.static, "kernels": sorted(now.kernels), "gone": now.gone, "off": off}) + "\n")
        sys.stdout.flush()


main()
