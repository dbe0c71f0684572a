"""From a graph's tensors to the engine of their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugraph_ex.engines._eager import EagerEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.fx import GraphModule

    from npugraph_ex.engines._base import Engine


def engine_for(module: GraphModule) -> Engine:
    """The engine of the device that ``module`` computes on; where a graph touches several, the accelerator's."""
    return engine_on(devices_of(module))


def engine_on(named: Iterable[str]) -> Engine:
    """The engine for a graph whose values are on the devices ``named`` (``cpu``, ``npu``, ...)."""
    devices = set(named)
    if "npu" in devices:
        from npugraph_ex.engines._npu import NpuEngine  # noqa: PLC0415 -- imports torch_npu's functions

        return NpuEngine()
    if "cuda" in devices:
        from npugraph_ex.engines._cuda import CudaEngine  # noqa: PLC0415 -- only where there is a GPU

        return CudaEngine()
    return EagerEngine(min(devices - {"cpu", "meta"}, default="cpu"))


def devices_of(module: GraphModule) -> Iterable[str]:
    """The device type of every tensor in ``module``, with repetitions."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                yield item.device.type
