"""Copies of device memory without an operator: CANN's dump would tell of one, and the daemon compile a kernel that no graph needs.

The bytes are copied by ``aclrtMemcpy`` of the libascendcl that torch_npu has loaded, with nothing in flight on the device.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import torch

_DEVICE_TO_DEVICE: Final = 3  # ACL_MEMCPY_DEVICE_TO_DEVICE


@dataclass(frozen=True, slots=True)
class Kept:
    """The contents of a tensor's memory at one moment, to be put back."""

    tensor: torch.Tensor
    copy: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Kept:
        """Copy what ``tensor`` lies in. RuntimeError where there is no memory for it, or CANN will not copy."""
        if tensor.device.type != "npu":
            return cls(tensor, tensor.clone())
        address, size = _span(tensor)
        copy = torch.empty(size, dtype=torch.uint8, device=tensor.device)
        _move(copy.data_ptr(), address, size)
        return cls(tensor, copy)

    def put_back(self) -> None:
        """Let the memory hold again what it held."""
        if self.tensor.device.type != "npu":
            self.tensor.copy_(self.copy)
            return
        address, size = _span(self.tensor)
        _move(address, self.copy.data_ptr(), size)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes from a tensor's first element to its last; all of its storage where it is no part of it (private formats pad)."""
    storage = tensor.untyped_storage()
    item = tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() * item * 2 > storage.nbytes():
        return storage.data_ptr(), storage.nbytes()
    return tensor.data_ptr(), (last + 1) * item


def _move(to: int, start: int, size: int) -> None:
    npu: Any = torch.npu  # type: ignore[attr-defined]  # torch_npu puts it there
    npu.synchronize()
    library = ctypes.CDLL("libascendcl.so")
    arguments = (ctypes.c_void_p(to), ctypes.c_size_t(size), ctypes.c_void_p(start), ctypes.c_size_t(size))
    status = library.aclrtMemcpy(*arguments, _DEVICE_TO_DEVICE) if size else 0
    if status:
        raise RuntimeError(f"aclrtMemcpy of {size} bytes failed with {status}")
