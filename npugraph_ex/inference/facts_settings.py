"""Which settings of the process decide a graph, and which versions it is bound to.

Settings may change between calls and are compared on each; versions cannot, and are compared at load. Grad mode is neither:
cached graphs are traced and run for inference. Thread counts, log levels, ranks and paths decide nothing.
"""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils import _device, deterministic

import npgxd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SCHEMA: Final = 1
"""Of what the facts mean; a change of it makes every older entry a miss."""

_BACKENDS: Final[Any] = torch.backends
_DETERMINISTIC: Final[Any] = deterministic


def _autocast(device: str) -> Callable[[], str]:
    def now() -> str:
        return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""

    return now


def _default_device() -> str:
    """Asked of torch's own variable: ``torch.get_default_device()`` makes a tensor to answer."""
    device = _device.CURRENT_DEVICE
    return "" if device is None else str(device)


def _sdp() -> int:
    cuda = _BACKENDS.cuda
    return sum(
        bit << place
        for place, bit in enumerate((cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()))
    )


_ALWAYS: Final[Mapping[str, Callable[[], Any]]] = {
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic algorithms only warn": torch.is_deterministic_algorithms_warn_only_enabled,
    "deterministic fill of new memory": lambda: _DETERMINISTIC.fill_uninitialized_memory,
    "default dtype": lambda: str(torch.get_default_dtype()),
    "default device": _default_device,
    "autocast on cpu": _autocast("cpu"),
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "attention back ends": _sdp,
    "attention fast path": _BACKENDS.mha.get_fastpath_enabled,
    "mkldnn": torch._C._get_mkldnn_enabled,  # noqa: SLF001 -- the public property is slow
    "torch function modes": torch._C._len_torch_function_stack,  # noqa: SLF001 -- has no public name
    "functorch transforms": lambda: torch._C._functorch.peek_interpreter_stack() is not None,  # noqa: SLF001 -- same
}


def settings_of(devices: Iterable[str]) -> Mapping[str, Callable[[], Any]]:
    """Each setting's name and how to ask for it, for graphs on these device types."""
    asked = {f"autocast on {device}": _autocast(device) for device in sorted(set(devices) - {"cpu", "meta"})}
    return dict(_ALWAYS) | asked


def settings_now(devices: Iterable[str]) -> dict[str, Any]:
    """Every setting's present value, plain."""
    return {name: ask() for name, ask in settings_of(devices).items()}


def versions_now(devices: Iterable[str]) -> dict[str, str]:
    """Everything installed that decides a graph on these device types, and their devices' names."""
    found = {
        "facts": str(SCHEMA),
        "npgxd": npgxd.__version__,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "torch": f"{torch.__version__} {torch.version.git_version}",
    }
    npu = sys.modules.get("torch_npu")
    if npu is not None:
        found["torch_npu"] = str(getattr(npu, "__version__", ""))
        found["CANN"] = _cann_version()
    for device in sorted(set(devices) - {"cpu", "meta"}):
        of = getattr(torch, device, None)
        if of is not None and hasattr(of, "get_device_name"):
            found[f"{device} device"] = str(of.get_device_name())
    if torch.version.cuda:
        found["CUDA"] = torch.version.cuda
    return found


def _cann_version() -> str:
    """As torch_npu tells it; "" where this torch_npu does not."""
    utils = sys.modules.get("torch_npu.npu.utils")
    ask = getattr(utils, "get_cann_version", None) or getattr(utils, "_get_cann_version", None)
    return str(ask()) if ask is not None else str(getattr(torch.version, "cann", ""))
