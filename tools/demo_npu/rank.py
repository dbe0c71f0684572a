"""One rank of the demo: a user's program, but for its report. ``rank.py REPORTS BATCHES``, under torchrun."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401 -- registers the device and its backend

from decoder import Decoder, DecoderConfig, LayerCache
from tools.cann_sim.native import counters, reset_counters

STEPS = 3


def main(reports: Path, batches: list[int]) -> None:
    """Serve some steps of each batch size, compare them with the CPU, and write down which launches were static kernels."""
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    torch.npu.set_device(rank)  # type: ignore[attr-defined]  # torch_npu puts it there
    torch.manual_seed(0)
    host, device = Decoder(DecoderConfig()).eval(), Decoder(DecoderConfig()).eval().npu()  # type: ignore[operator]  # same
    told: dict[str, float] = {"first_calls_s": 0.0, "off": 0.0, "launches": 0, "static": 0}
    for batch in batches:
        step = torch.compile(
            device.decode_step, backend="npugraph_ex", fullgraph=True, dynamic=False, options={"static_kernel_compile": True}
        )
        caches = host.new_cache(batch)
        on_device = [LayerCache(keys.npu(), values.npu()) for keys, values in caches]  # type: ignore[attr-defined]  # same
        dist.barrier()
        for position in range(STEPS):
            tokens, positions = torch.arange(batch) + position, torch.full((batch,), position)
            started = time.monotonic()
            reset_counters()
            with torch.no_grad():
                ours = step(tokens.to("npu"), positions.to("npu"), on_device).cpu()  # type: ignore[no-untyped-call]  # the compiled method
                told["first_calls_s"] += (time.monotonic() - started) * (position == 0)
                told["off"] = max(told["off"], float((ours - host.decode_step(tokens, positions, caches)).abs().max()))
        told["launches"] += counters().launches  # of each batch size's last step
        told["static"] += counters().static_launches
        torch.compiler.reset()
    (reports / f"{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(batch) for batch in sys.argv[2].split(",")])
