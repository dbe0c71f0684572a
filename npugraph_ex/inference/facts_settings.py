"""Which settings of the process decide a graph, and which versions it is bound to.

Settings may change between calls and are compared on each; versions cannot, and are compared at load.  Some settings count always, some
only where the traced code asks for them by name, because Dynamo takes their answers for constants and guards them with nothing:
the rank, which devices there are, environment variables. Grad mode is no setting: cached graphs are traced and run for
inference. Thread counts, log levels, ranks and paths that nobody asks for decide nothing.
"""

from __future__ import annotations

import os
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
_AUTOCAST: Final = "autocast on "
_VARIABLE: Final = "environment variable "


OTHER_MODE: Final = "other"
"""A torch function mode of the user's: it may change what any function does."""


def _modes() -> str:
    """The torch function modes that are on: a default device is one, told by its name."""
    count = torch._C._len_torch_function_stack()  # noqa: SLF001 -- there is no public name; get_default_device() makes a tensor to answer
    return " ".join(_mode(torch._C._get_function_stack_at(place)) for place in range(count)) if count else ""  # noqa: SLF001 -- same


def _mode(mode: object) -> str:
    return str(mode.device) if isinstance(mode, _device.DeviceContext) else OTHER_MODE


def _sdp() -> int:
    cuda = _BACKENDS.cuda
    return sum(
        bit << place
        for place, bit in enumerate((cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()))
    )


MODES: Final = "default device and torch function modes"
TRANSFORMS: Final = "functorch transforms"
_ALWAYS: Final[Mapping[str, Callable[[], Any]]] = {
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic algorithms only warn": torch.is_deterministic_algorithms_warn_only_enabled,
    "deterministic fill of new memory": lambda: _DETERMINISTIC.fill_uninitialized_memory,
    "default dtype": lambda: str(torch.get_default_dtype()),
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "attention back ends": _sdp,
    "attention fast path": _BACKENDS.mha.get_fastpath_enabled,
    "mkldnn": torch._C._get_mkldnn_enabled,  # noqa: SLF001 -- the public property is slow
    MODES: _modes,
    TRANSFORMS: lambda: torch._C._functorch.peek_interpreter_stack() is not None,  # noqa: SLF001 -- no public name
}


def _joined() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _accelerators() -> str:
    found = torch.accelerator.current_accelerator()
    if found is None or not torch.accelerator.is_available():
        return ""
    of = getattr(torch, found.type, None)
    name = of.get_device_name() if of is not None and hasattr(of, "get_device_name") else ""
    return f"{torch.accelerator.device_count()} {found.type}:{torch.accelerator.current_device_index()} {name}"


_IF_NAMED: Final[Mapping[str, tuple[Callable[[], Any], frozenset[str]]]] = {
    "rank": (
        lambda: torch.distributed.get_rank() if _joined() else -1,
        frozenset({"get_rank", "get_group_rank", "get_global_rank", "get_node_local_rank", "get_process_group_ranks"}),
    ),
    "world size": (
        lambda: torch.distributed.get_world_size() if _joined() else 0,
        frozenset({"get_world_size", "is_initialized", "get_process_group_ranks"}),
    ),
    "accelerators": (
        _accelerators,
        frozenset({"is_available", "device_count", "current_device", "current_device_index", "current_accelerator"})
        | {"get_device_name", "get_device_properties", "get_device_capability", "is_bf16_supported"},
    ),
    "threads": (torch.get_num_threads, frozenset({"get_num_threads"})),
    "inference mode": (torch.is_inference_mode_enabled, frozenset({"is_inference_mode_enabled", "is_inference"})),
}
_ENVIRONMENT: Final = frozenset({"environ", "getenv", "environb"})


def settings_wanted(devices: Iterable[str], names: frozenset[str], texts: Iterable[str]) -> list[str]:
    """The settings that decide a graph on these device types whose code uses ``names``, and the string constants ``texts``."""
    wanted = [*_ALWAYS, *(_AUTOCAST + device for device in sorted({"cpu", *devices} - {"meta"}))]
    wanted += [setting for setting, (_ask, named) in _IF_NAMED.items() if named & names]
    return wanted + ([_VARIABLE + text for text in sorted(set(texts)) if _may_name(text)] if names & _ENVIRONMENT else [])


def _may_name(text: str) -> bool:
    """Whether an environment variable could be called so."""
    return bool(text) and text.isprintable() and "=" not in text and " " not in text


def settings_now(wanted: Iterable[str]) -> dict[str, Any]:
    """Those settings' present values, plain."""
    return {name: asker(name)() for name in wanted}


def asker(name: str) -> Callable[[], Any]:
    """How one setting is asked for. One that is not known is never as it was."""
    if name in _ALWAYS:
        return _ALWAYS[name]
    if name in _IF_NAMED:
        return _IF_NAMED[name][0]
    if name.startswith(_AUTOCAST):
        return _autocast(name.removeprefix(_AUTOCAST))
    if name.startswith(_VARIABLE):
        variable = name.removeprefix(_VARIABLE)
        return lambda: os.environ.get(variable)
    return object


def _autocast(device: str) -> Callable[[], str]:
    def now() -> str:
        return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""

    return now


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
