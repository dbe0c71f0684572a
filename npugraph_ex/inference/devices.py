"""Devices as seen from a process: "the current one" rather than a number, so that ranks on different devices share an entry.

Promise: ``relative`` changes nothing but the number of the device that this process works on; another device keeps its number, and
so the graphs and calls that name it fit only where it is another one as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx.node import map_aggregate

if TYPE_CHECKING:
    from torch.fx import GraphModule

_ONE_OF_A_KIND: Final = frozenset({"cpu", "meta"})


def relative(device: torch.device) -> torch.device:
    """``device`` without its number if that is the current one's, which is what torch takes a device without a number for."""
    if device.index is None:
        return device
    if device.type in _ONE_OF_A_KIND or device.index == _current(device.type):
        return torch.device(device.type)
    return device


def make_relative(graph: GraphModule) -> None:
    """Do that to every device which the operators of ``graph`` are given, in place."""
    for node in graph.graph.nodes:
        node.args = map_aggregate(node.args, _relative_argument)
        node.kwargs = map_aggregate(node.kwargs, _relative_argument)


def _relative_argument(value: Any) -> Any:
    return relative(value) if isinstance(value, torch.device) else value


def _current(kind: str) -> int | None:
    ask = getattr(getattr(torch, kind, None), "current_device", None)
    return None if ask is None else int(ask())
