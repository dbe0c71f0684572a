"""What capturing asks of a device: the same of ``torch.npu`` and of ``torch.cuda``.

Both have ``graph`` with ``pool``, ``stream`` and ``capture_error_mode``, ``graph_pool_handle`` and streams with ``wait_stream``; their graph
classes differ in name, and an NPU's memory can be in private formats.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

CAPTURING: Final = threading.RLock()
"""Held while this process captures, and while it loads kernels: either would break the other."""

Pool = tuple[int, int]
_BASE_FORMATS: Final = frozenset({-1, 0, 1, 2, 27, 30, 47})
"""UNDEFINED, NCHW, NHWC, ND, NDHWC, NCDHW, NCL: as aclFormat numbers them (CANN's acl_base.h). Others are private."""


class CaptureDevice:
    """One kind of device; ``module`` is ``torch.cuda`` or what has its interface."""

    def __init__(self, word: str, module: Any, graph_class: str) -> None:
        self.word = word
        self._module = module
        self._graph_class = graph_class
        self._streams: dict[int, Any] = {}

    def new_graph(self) -> Any:
        """An empty graph."""
        return getattr(self._module, self._graph_class)()

    def new_pool(self) -> Pool:
        """A memory pool of its own for captured graphs."""
        pool: Pool = self._module.graph_pool_handle()
        return pool

    def capturing(self, graph: Any, *, index: int, pool: Pool, error_mode: str) -> AbstractContextManager[None]:
        """What is launched inside is captured into ``graph``. Waits first until device ``index``, the current one, is idle."""
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = self._module.Stream(device=index)
        context: AbstractContextManager[None] = self._module.graph(graph, pool=pool, stream=stream, capture_error_mode=error_mode)
        return context

    def on(self, index: int) -> AbstractContextManager[None]:
        """Inside, device ``index`` is the current one."""
        context: AbstractContextManager[None] = self._module.device(index)
        return context

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured: then somebody else captures what this process runs."""
        return bool(self._module.is_current_stream_capturing())

    def current_stream(self, index: int) -> Any:
        """The current stream of device ``index``."""
        return self._module.current_stream(index)

    def set_stream(self, stream: Any) -> None:
        """Make ``stream`` the current one of its device."""
        self._module.set_stream(stream)

    def private_format(self, tensor: torch.Tensor) -> int | None:
        """The format of ``tensor``'s memory where strides do not describe it; None for the usual ones."""
        del tensor
        return None

    def empty(self, tensor: torch.Tensor) -> torch.Tensor:
        """New memory for what ``tensor`` holds, in the same layout."""
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


class NpuCaptureDevice(CaptureDevice):
    """``torch.npu``, by the torch_npu that made the graph's tensors."""

    def __init__(self) -> None:
        self._torch_npu: Any = sys.modules["torch_npu"]
        super().__init__("npu", self._torch_npu.npu, "NPUGraph")

    def private_format(self, tensor: torch.Tensor) -> int | None:
        """See ``CaptureDevice``: FRACTAL_NZ and its like."""
        number = int(self._torch_npu.get_npu_format(tensor))
        return None if number in _BASE_FORMATS else number

    def empty(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``CaptureDevice``."""
        number = self.private_format(tensor)
        if number is None:
            return super().empty(tensor)
        made: torch.Tensor = self._torch_npu.empty_with_format(
            tensor.shape, dtype=tensor.dtype, device=tensor.device, acl_format=number
        )
        return made


def cuda() -> CaptureDevice:
    """``torch.cuda``."""
    return CaptureDevice("cuda", torch.cuda, "CUDAGraph")
