"""Objects that bytecode holds as constants, by name: what every process that has the same modules has as well.

Promise: ``name_of`` gives a name only if it leads back to the very object; ``found`` imports nothing but the module that is named.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from npugraph_ex.inference.container import EntryDamaged
from npugraph_ex.inference.devices import relative

_BY_TEXT = (torch.dtype, torch.layout, torch.memory_format)


def name_of(value: Any) -> str:
    """``module:path`` of a class, a function or a class's method, or of what torch calls by name; "" if there is none."""
    if isinstance(value, torch.device):
        return f"device:{relative(value)}"
    if isinstance(value, torch.Size):
        return f"size:{','.join(map(str, value))}"
    if isinstance(value, _BY_TEXT):
        return str(value).replace(".", ":", 1)
    owner = getattr(value, "__self__", None)
    holder = owner if isinstance(owner, type) else value  # a class method is found by its class
    module, path = getattr(holder, "__module__", None), getattr(holder, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        return ""
    if holder is not value:
        path = f"{path}.{getattr(value, '__name__', '')}"
    name = f"{module}:{path}"
    try:
        return name if module in sys.modules and found(name) == value else ""
    except EntryDamaged:
        return ""


def found(name: str) -> Any:
    """What ``name`` names here. EntryDamaged if there is no such thing."""
    module, _, path = name.partition(":")
    if module == "device":
        return torch.device(path)
    if module == "size":
        return torch.Size(int(size) for size in path.split(",") if size)
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise EntryDamaged(f"the entry needs {name}, which is not here: {error}") from error
    return value
