"""Why a graph cannot be captured: what can be read from its nodes, and from its inputs.  What only a run shows is in ``watching``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx import GraphModule

from npugraph_ex.random_numbers import draws_random_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPERATORS: Final[Any] = torch._ops  # noqa: SLF001 -- torch has no public names for the classes of operators
_NUMBERS: Final = (bool, int, float, str, type(None), torch.dtype, torch.device)


def in_graph(module: GraphModule) -> str:
    """The reason in ``module``'s nodes, "" for none."""
    for part in module.modules():
        if not isinstance(part, GraphModule):
            continue
        for node in part.graph.nodes:
            if node.op != "call_function":
                continue
            if isinstance(node.target, _OPERATORS.HigherOrderOperator):
                return f"it has control flow or a nested graph ({node.target})"
            if draws_random_numbers(node):
                return f"operator {node.target} draws random numbers"
    return ""


def in_inputs(inputs: Sequence[Any], word: str) -> str:
    """The reason among the inputs of a call on a device called ``word``, "" for none."""
    devices = set()
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            if value.device.type != word:
                return f"input {position} is on {value.device.type}, where the host reads it"
            if value.layout is not torch.strided or value.is_conj() or value.is_neg():
                return f"input {position} is no plain strided tensor"
            devices.add(value.device.index)
        elif not isinstance(value, _NUMBERS):
            return f"input {position} is a {type(value).__name__}, neither tensor nor number"
    if len(devices) > 1:
        return "its inputs are on several devices"
    return "" if devices else "it has no input on the device"
