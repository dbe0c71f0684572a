"""What a graph relies on in a tensor: its class, dtype, device, layout, storage format, gradient flag, sizes and strides.

Sizes and strides are numbers where the trace fixed them and None where they may vary within the recorded ranges. The storage
offset counts only for graphs that name offsets themselves.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npgxd.client.codes import class_name
from npugraph_ex.inference.devices import relative

if TYPE_CHECKING:
    from collections.abc import Sequence

_PRIVATE_FORMATS = frozenset({"npu", "privateuseone"})


@dataclass(frozen=True, slots=True)
class TensorFact:
    """One tensor, as plain values; ``sizes`` and ``strides`` are empty for a layout that has no strides."""

    kind: str
    dtype: str
    device: str
    layout: str
    requires_grad: bool
    conjugated: bool
    format: int | None
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    offset: int | None

    def plain(self) -> list[Any]:
        """The fields in order."""
        return [
            *(self.kind, self.dtype, self.device, self.layout, self.requires_grad, self.conjugated, self.format),
            *(list(self.sizes), list(self.strides), self.offset),
        ]

    @classmethod
    def parse(cls, plain: Sequence[Any]) -> TensorFact:
        """The opposite of ``plain``."""
        kind, dtype, device, layout, requires_grad, conjugated, storage, sizes, strides, offset = plain
        return cls(kind, dtype, device, layout, requires_grad, conjugated, storage, tuple(sizes), tuple(strides), offset)


def tensor_fact(tensor: torch.Tensor) -> TensorFact:
    """Everything about ``tensor`` as it is now, every size fixed."""
    strided = tensor.layout == torch.strided
    return TensorFact(
        kind=class_name(type(tensor)),
        dtype=str(tensor.dtype),
        device=str(relative(tensor.device)),
        layout=str(tensor.layout),
        requires_grad=tensor.requires_grad,
        conjugated=tensor.dtype.is_complex and tensor.is_conj(),
        format=storage_format(tensor),
        sizes=tuple(map(int, tensor.shape)),
        strides=tuple(map(int, tensor.stride())) if strided else (),
        offset=int(tensor.storage_offset()) if strided else None,
    )


def storage_format(tensor: torch.Tensor) -> int | None:
    """An NPU tensor's private storage format, torch_npu's number (FRACTAL_NZ is 29); None on devices that have none."""
    if tensor.device.type not in _PRIVATE_FORMATS or (npu := sys.modules.get("torch_npu")) is None:
        return None
    return int(npu.get_npu_format(tensor))


def tensor_misfit(expected: TensorFact, value: object) -> str:
    """What differs, as the end of a sentence that begins with the tensor's name; "" if nothing does."""
    if not isinstance(value, torch.Tensor):
        return f"was a tensor, is {type(value).__name__}"
    now = tensor_fact(value)
    for name in ("kind", "dtype", "device", "layout", "requires_grad", "conjugated", "format"):
        was, has = getattr(expected, name), getattr(now, name)
        if was != has:
            return f"had {name} {was}, has {has}" if name != "kind" else f"was a {was}, is a {has}"
    for name, was, has in (("shape", expected.sizes, now.sizes), ("strides", expected.strides, now.strides)):
        if len(was) != len(has) or any(one not in (None, other) for one, other in zip(was, has, strict=True)):
            return f"had {name} {_sizes_told(was)}, has {_sizes_told(has)}"
    if expected.offset not in (None, now.offset):
        return f"had storage offset {expected.offset}, has {now.offset}"
    return ""


def _sizes_told(sizes: Sequence[int | None]) -> str:
    return "(" + ", ".join("*" if size is None else str(size) for size in sizes) + ")"


def aliases(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor, the place of the first one that shares its storage; -1 for what has no storage."""
    first: dict[int, int] = {}
    return [
        first.setdefault(identity, place) if (identity := storage_identity(tensor)) else -1
        for place, tensor in enumerate(tensors)
    ]


def storage_identity(tensor: torch.Tensor) -> int:
    """Equal for two live tensors exactly if they share a storage; 0 for a layout without one."""
    try:
        return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- an address alone is 0 for every empty storage
    except (NotImplementedError, RuntimeError):
        return 0
