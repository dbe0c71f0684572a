"""What Dynamo's bytecode calls of ``torch._dynamo.utils``, so that a process which only runs such bytecode need not import it.

Promise: each function here does what torch 2.13's of the same name does.  A name that is not here is looked up in Dynamo itself: that
costs its import, and stays right.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

dict_getitem = dict.__getitem__
list_getitem = list.__getitem__
object_new = object.__new__
dict_new = dict.__new__
tuple_new = tuple.__new__
iter_next = next


def record_pregraph_bytecode_enter() -> AbstractContextManager[Any]:
    """Begin the profiler's "Pregraph bytecode", if one runs."""
    profiled = torch.autograd.profiler._is_profiler_enabled  # noqa: SLF001 -- the flag that torch's own bytecode asks
    begun = torch._C._profiler._RecordFunctionFast("Pregraph bytecode") if profiled else contextlib.nullcontext()  # noqa: SLF001
    begun.__enter__()
    return begun


def record_pregraph_bytecode_exit(begun: AbstractContextManager[Any]) -> None:
    """End it."""
    begun.__exit__(None, None, None)


def call_size(tensor: torch.Tensor, axis: int) -> int:
    """One size of a tensor."""
    return tensor.size(axis)


def call_stride(tensor: torch.Tensor, axis: int) -> int:
    """One stride of a tensor."""
    return tensor.stride(axis)


def call_storage_offset(tensor: torch.Tensor) -> int:
    """Where a tensor begins in its storage."""
    return int(tensor.storage_offset())


def dict_keys_getitem(mapping: dict[Any, Any], position: int) -> Any:
    """The key at ``position``, in the dict's own order."""
    return next(itertools.islice(dict.keys(mapping), position, position + 1))


def set_getitem(items: set[Any], position: int) -> Any:
    """The item that comes at ``position``."""
    return list(items)[position]


def tuple_iterator_getitem(iterator: Any, index: int) -> Any:
    """What a tuple's iterator gives after ``index`` more steps."""
    _, (items,), start = iterator.__reduce__()
    return items[start + index]


def object_setattr_ignore_descriptor(target: Any, name: str, value: Any) -> None:
    """Set an attribute of the object itself, whatever its class says about it."""
    object.__getattribute__(target, "__dict__")[name] = value


def object_delattr_ignore_descriptor(target: Any, name: str) -> None:
    """Delete an attribute of the object itself."""
    object.__getattribute__(target, "__dict__").pop(name)


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("torch._dynamo.utils"), name)
