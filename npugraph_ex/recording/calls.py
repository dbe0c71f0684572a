"""One aten call with its arguments by name, and whether it launches a kernel at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npugraph_ex.recording.optypes import NO_KERNEL

if TYPE_CHECKING:
    from torch._ops import OpOverload


@dataclass(frozen=True, slots=True)
class Call:
    """What ran: the operator, its concrete arguments by schema name (defaults filled in), and its result."""

    target: OpOverload
    name: str
    arguments: dict[str, Any]
    result: object

    def tensor(self, name: str) -> torch.Tensor:
        """The argument ``name``, which is a tensor."""
        value = self.arguments[name]
        if not isinstance(value, torch.Tensor):
            raise TypeError(name)
        return value

    def results(self) -> list[torch.Tensor | None]:
        """The result as a list of tensors; what is no tensor does not come from a kernel."""
        items = self.result if isinstance(self.result, (list, tuple)) else [self.result]
        return [item if isinstance(item, torch.Tensor) else None for item in items]


def read_call(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> Call:
    """``args`` and ``kwargs`` under the names of the operator's schema."""
    arguments: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):  # noqa: SLF001 -- torch's only way to a schema
        if position < len(args) and not argument.kwarg_only:
            arguments[argument.name] = args[position]
        elif argument.name in kwargs:
            arguments[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            arguments[argument.name] = argument.default_value
    name: str = target.overloadpacket.__name__
    if name.endswith("_") and not name.endswith("__"):
        name = name.removesuffix("_")  # the in-place form of an operator is told as the operator
    return Call(target, name, arguments, result)


def launches_kernel(call: Call) -> bool:
    """False for views, allocations and questions about sizes, and where every result is empty."""
    if call.name in NO_KERNEL or _is_view(call.target):
        return False
    tensors = [item for item in call.results() if item is not None]
    return bool(tensors) and any(item.numel() for item in tensors)


def _is_view(target: OpOverload) -> bool:
    returns = target._schema.returns  # noqa: SLF001 -- see above
    return bool(returns) and all(item.alias_info is not None and not item.alias_info.is_write for item in returns)
