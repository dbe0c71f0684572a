"""The name under which a node's processes share an entry: what decides a graph as far as it is known before any trace.

Promise: processes that would trace the same graph ask for the same key, whatever their rank, their paths and their ports; what the key
does not know (a global, an attribute) is found by the entry's facts, and then ``next_after`` leads everybody with the same
misfit to the same next key.  The key is no proof of anything: an entry that it leads to is checked as one from a file is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

import torch

from npgxd.client.codes import source_digests
from npugraph_ex.inference.container import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FunctionType

    from torch import nn

SCHEMA: Final = 1
_DEPTH: Final = 6


def key_of(
    function: FunctionType,
    instance: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    info: str,
    dynamic: bool,
    versions: Mapping[str, str],
) -> str:
    """The first key to ask for: 64 hexadecimal digits. ``info`` is the model info of the entry's path."""
    told = {
        "schema": [SCHEMA, FORMAT],
        "function": f"{function.__module__}.{function.__qualname__}",
        "info": info,
        "sources": source_digests(map(type, instance.modules()), function.__module__),
        "versions": dict(versions),
        "arguments": [_told(item, dynamic=dynamic) for item in args],
        "named": {name: _told(item, dynamic=dynamic) for name, item in kwargs.items()},
        "tensors": [
            f"{name} {_tensor(tensor, dynamic=False)}"
            for named in (instance.named_parameters(remove_duplicate=False), instance.named_buffers(remove_duplicate=False))
            for name, tensor in named
        ],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _told(value: Any, *, dynamic: bool, depth: int = _DEPTH) -> Any:
    """What a trace takes from an argument for certain: its structure, and of numbers only what cannot stay symbolic."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.Tensor):
        return _tensor(value, dynamic=dynamic) + (" grad" if value.requires_grad and torch.is_grad_enabled() else "")
    if value is None or isinstance(value, (bool, str, bytes)):
        return [kind, repr(value)]
    if isinstance(value, (int, float)):
        return [kind, "" if dynamic and value not in {0, 1} else repr(value)]
    if depth == 0:
        return kind
    return [kind, [[repr(name), _told(item, dynamic=dynamic, depth=depth - 1)] for name, item in _parts(value)]]


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """The parts of a container or a dataclass, by name or place; of anything else the facts alone know what the trace read."""
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(item.name, getattr(value, item.name, None)) for item in dataclasses.fields(value)]
    return []


def _tensor(tensor: torch.Tensor, *, dynamic: bool) -> str:
    """Sizes of 0 and 1 are never symbolic; strides follow from them in what is contiguous, and are left to the facts elsewhere."""
    sizes = [size if not dynamic or size in {0, 1} else "s" for size in tensor.shape]
    strided = "" if tensor.layout is not torch.strided or tensor.is_contiguous() else " strided"
    return f"{type(tensor).__name__} {tensor.dtype} {tensor.device.type} {sizes}{strided}"
