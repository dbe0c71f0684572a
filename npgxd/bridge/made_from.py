"""What an entry of the bundled compile cache was made from, beside its source: the model, the call, settings and versions.

Promise: plain data, the same in every process for the same model and call, and nothing in it that decides no graph (paths, ports, host,
names that the traced code does not use). The bundled code names its device in what it stores, so the device's number and the rank count.
Values of a closed set of kinds are compared; objects of other kinds are looked into under the names that the traced code uses.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import platform
import sys
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from npgxd.bridge.sources import digest_of_plain
from npgxd.client.codes import class_described, class_name, described
from npgxd.client.versioned import is_versioned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_TORCH_PLAIN: Final = frozenset({"dtype", "device", "layout", "memory_format", "Size"})
_DEPTH: Final = 4
_MANY: Final = 1024
_LONG: Final = 120


def told(value: Any, names: frozenset[str], depth: int = _DEPTH) -> str | None:
    """A value in words, equal where no traced code that uses ``names`` could tell a difference; None where nothing can be said."""
    kind = type(value)
    if kind in _PLAIN:
        text = f"{kind.__name__} {value!r}"
        return text if len(text) < _LONG else f"{kind.__name__} {hashlib.sha256(text.encode()).hexdigest()}"
    if isinstance(value, enum.Enum):
        return f"{class_name(kind)} {value.name} {told(value.value, names, 0)}"
    if kind.__module__ == "torch" and kind.__name__ in _TORCH_PLAIN:
        return f"{kind.__name__} {value}"
    if isinstance(value, (FunctionType, MethodType)):
        return f"code {digest_of_plain(described(value))}"
    if isinstance(value, type):
        return f"class {class_name(value)} {_class(value, names)}"
    return _inside(value, names, depth) if depth else None


def _inside(value: Any, names: frozenset[str], depth: int) -> str | None:
    if hasattr(value, "untyped_storage"):  # a tensor: inputs, parameters and constants of a graph have their own facts
        return None
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return _container(value, names, depth)
    return _object(value, names, depth)


def _container(value: Any, names: frozenset[str], depth: int) -> str | None:
    items = value.items() if isinstance(value, dict) else value
    if len(value) > _MANY:
        return f"{type(value).__name__} of {len(value)}"
    texts = [told(item, names, depth - 1) for item in items]
    if isinstance(value, (set, frozenset)):
        texts.sort(key=str)
    whole = f"{type(value).__name__} {texts}"
    return whole if len(whole) < _LONG else f"{type(value).__name__} {digest_of_plain([whole])}"


def _object(value: Any, names: frozenset[str], depth: int) -> str | None:
    """An object of the user's, a module of theirs, by what the names reach in it."""
    if isinstance(value, ModuleType):
        if is_versioned(getattr(value, "__file__", None)):
            return None
        inside = {name: told(found, names, 1) for name, found in vars(value).items() if name in names}
        return f"module {value.__name__} {digest_of_plain(inside)}"
    if is_versioned(_file_of(type(value))) or hasattr(value, "named_parameters"):
        return None
    own = getattr(value, "__dict__", {})
    inside = {name: told(found, names, depth - 1) for name, found in own.items() if name in names}
    return f"{class_name(type(value))} {_class(type(value), names)} {digest_of_plain(inside)}"


def _class(kind: type, names: frozenset[str]) -> str:
    """The user's own code in a class and its bases. Torch's bases count by name: they have versions, and Dynamo changes some as it loads."""
    bases = [base for base in kind.__mro__ if base is not object]
    told_bases = zip(bases, class_described(kind, names), strict=True)
    return digest_of_plain([found[:1] if is_versioned(_file_of(base)) else found for base, found in told_bases])


# ---- the model ----------------------------------------------------------------------------------------------------------------


def classes_of(model: Any, names: frozenset[str]) -> dict[str, str]:
    """The code that calls of the model's own classes reach, by class, as it is in this process: also what was replaced in them."""
    kinds = dict.fromkeys(type(part) for part in model.modules())
    return {class_name(kind): _class(kind, names) for kind in kinds if not is_versioned(_file_of(kind))}


def attributes_of(model: Any, names: frozenset[str]) -> dict[str, str]:
    """What the model and its parts hold of their own under ``names``, and whether they are being trained."""
    found: dict[str, str] = {}
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            text = told(value, names) if name in names or name == "training" else None
            if text is not None:
                found[f"{path}.{name}" if path else name] = text
    return found


def tensors_of(model: Any) -> list[str]:
    """Parameters and buffers: names, and which of them are one tensor."""
    first: dict[int, str] = {}
    lines = []
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            lines.append(f"{name} {_tensor(tensor, dynamic=False)} {first.setdefault(id(tensor), name)}")
    return lines


def _file_of(kind: type) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


# ---- the call -----------------------------------------------------------------------------------------------------------------


def arguments(args: Sequence[Any], named: Mapping[str, Any], *, dynamic: bool, names: frozenset[str] | None = None) -> list[str]:
    """What a trace takes from the arguments, one line each; ``names`` are those by which the traced code can have read fields, if known."""
    pairs = [*((str(at), value) for at, value in enumerate(args)), *sorted(named.items())]
    return [line for path, value in pairs for line in _leaves(path, value, dynamic=dynamic, names=names, depth=_DEPTH + 2)]


def _leaves(path: str, value: Any, *, dynamic: bool, names: frozenset[str] | None, depth: int) -> Iterator[str]:
    if hasattr(value, "untyped_storage"):
        yield f"{path} {_tensor(value, dynamic=dynamic)}"
        return
    if type(value) in _PLAIN:
        number = type(value) in {int, float}
        yield f"{path} {type(value).__name__}" + ("" if number and dynamic and value not in {0, 1} else f" {value!r}"[:_LONG])
        return
    parts = list(_parts(value, names)) if depth else []
    yield f"{path} {class_name(type(value))} {len(parts)}"
    for name, item in parts:
        yield from _leaves(f"{path}.{name}", item, dynamic=dynamic, names=names, depth=depth - 1)


def _parts(value: Any, names: frozenset[str] | None) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (list, tuple)):
        yield from ((str(at), item) for at, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((repr(key), item) for key, item in value.items())
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if names is None or field.name in names:
                yield field.name, getattr(value, field.name, None)
    elif names is not None and not is_versioned(_file_of(type(value))) and not hasattr(value, "named_parameters"):
        yield from ((name, item) for name, item in sorted(getattr(value, "__dict__", {}).items()) if name in names)


def _tensor(tensor: Any, *, dynamic: bool) -> str:
    """Sizes of 0 and 1 are never symbolic; strides follow from sizes in what is contiguous."""
    sizes = [size if not dynamic or size in {0, 1} else "s" for size in tensor.shape]
    strides = "" if tensor.is_contiguous() else f" {'strided' if dynamic else tuple(tensor.stride())}"
    return f"{type(tensor).__name__} {tensor.dtype} {tensor.device} {sizes}{strides}"


# ---- around it ----------------------------------------------------------------------------------------------------------------


def settings_now(torch: Any, decompositions: Mapping[Any, Any] | None) -> dict[str, str]:
    """Settings of the process that decide a graph, and the user's own decompositions by their code."""
    found = {
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "default dtype": str(torch.get_default_dtype()),
    }
    for device in ("cpu", "npu"):
        found[f"autocast on {device}"] = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""
    for operator, function in (decompositions or {}).items():
        found[f"decomposition of {operator}"] = str(told(function, frozenset()))
    return found


def versions_now(torch: Any, torch_npu: Any, bundled: str) -> dict[str, str]:
    """Everything installed that decides what is stored. ``bundled``: the version of the bundled file format."""
    npu = torch_npu.npu
    return {
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "torch_npu": str(torch_npu.__version__),
        "CANN": str(npu.utils.get_cann_version()),
        "device": str(npu.get_device_name()),
        "bundled format": bundled,
    }


def place_now(torch: Any, torch_npu: Any) -> dict[str, int]:
    """The device's number, and this process's place in its job."""
    dist = torch.distributed
    joined = dist.is_available() and dist.is_initialized()
    return {
        "device": int(torch_npu.npu.current_device()),
        "world size": int(dist.get_world_size()) if joined else 1,
        "rank": int(dist.get_rank()) if joined else 0,
    }
