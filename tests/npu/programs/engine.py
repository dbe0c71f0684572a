"""One rank of a serving engine: ``engine REPORT WISHES``. It compiles a model, then runs a step for every line on stdin, a batch size.

WISHES is JSON: ``widths`` of the model's layers, ``way`` ("torch.compile" or "vLLM-Ascend"), and ``batches`` that have static kernels in the
latter way.
Each answer is one line of JSON on stdout: what ran, and whether the numbers were right. At the end of stdin it exits.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401 -- registers the device and the backend
import vllm_ascend

from reporting import arguments
from tools.cann_sim.native import counters, reset_counters


class Model(torch.nn.Module):
    """Layers of several widths, each ending in a composite operator; models with a width in common have kernels in common."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = torch.nn.ParameterList(torch.randn(width, width, generator=generator) for width in widths)

    def forward(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.addmm(x, torch.nn.functional.silu(x @ weight).softmax(-1), weight, beta=0.5)
            for x, weight in zip(xs, self.weights, strict=True)
        ]


def compiled(model: Model, wishes: dict[str, object]):
    if wishes["way"] == "vLLM-Ascend":
        return vllm_ascend.Captured(vllm_ascend.compiled(model, wishes["batches"]))
    options = {"static_kernel_compile": True}
    return torch.compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False, options=options)


def main() -> None:
    rank, world, wishes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), json.loads(arguments()[0])
    if wishes["way"] == "vLLM-Ascend":
        vllm_ascend.end_on_sigterm()
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=world)
    torch.npu.set_device(rank)
    widths = wishes["widths"]
    host, device = Model(widths).eval(), Model(widths).eval().npu()
    step = compiled(device, wishes)
    for line in sys.stdin:
        xs = [torch.full((int(line), width), 0.25) for width in widths]
        on_device = [x.npu() for x in xs]
        with torch.no_grad():
            step(on_device)
            reset_counters()
            ours = step(on_device)
            now = counters()
            off = max(float((a.cpu() - b).abs().max()) for a, b in zip(ours, host(xs), strict=True))
        told = {"static": now.static, "dynamic": now.dynamic, "kernels": sorted(now.kernels), "gone": now.gone, "off": off}
        sys.stdout.write(json.dumps({**told, "codes": len(vllm_ascend.CODES)}) + "\n")
        sys.stdout.flush()


main()
