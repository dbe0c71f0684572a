"""Values as plain data that means the same in every process.

Promise: ``encode`` gives equal data for two values exactly if a trace that read the one holds for the other: of one type, and
equal down to the bit (1, True and 1.0 differ, so do 0.0 and -0.0; a nan equals itself).  Functions are their code, classes,
modules and enum members their names.  What means nothing in another process raises ``Unencodable``.
"""

from __future__ import annotations

import enum
import math
import re
import struct
from collections import OrderedDict, deque
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Final

import torch

from npgxd.client.codes import class_name, code_digest, described
from npugraph_ex.inference.devices import relative

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LONGEST_TOLD: Final = 60
_MOST_ITEMS: Final = 10_000


class Unencodable(Exception):
    """A value that another process could not recognise."""


def encode(value: Any, depth: int = 8) -> Any:
    """Plain data: None, bool, str, or a list that begins with the type's name. Unencodable for what means nothing elsewhere."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if depth == 0:
        raise Unencodable("it is nested too deeply")
    exact = _EXACT.get(kind)
    if exact is not None:
        return [kind.__name__, *exact(value, depth - 1)]
    for base, known in _KINDS:
        if isinstance(value, base):
            return known(value, depth - 1)
    return _other(value, kind, depth - 1)


def _items(value: Any, depth: int) -> list[Any]:
    return [encode(item, depth) for item in _few(value)]


def _unordered(value: Any, depth: int) -> list[Any]:
    return sorted(_items(value, depth), key=repr)


def _pairs(value: Any, depth: int) -> list[Any]:
    return [[encode(key, depth), encode(item, depth)] for key, item in _few(value.items())]


def _bounds(value: Any, depth: int) -> list[Any]:
    return [encode(part, depth) for part in (value.start, value.stop, value.step)]


_EXACT: Final[Mapping[type, Callable[[Any, int], list[Any]]]] = {
    int: lambda value, _depth: [str(value)],
    float: lambda value, _depth: [_bits(value)],
    complex: lambda value, _depth: [_bits(value.real), _bits(value.imag)],
    bytes: lambda value, _depth: [value.hex()],
    **dict.fromkeys((tuple, list, deque, torch.Size), _items),
    **dict.fromkeys((set, frozenset), _unordered),
    **dict.fromkeys((dict, OrderedDict), _pairs),
    **dict.fromkeys((slice, range), _bounds),
    **dict.fromkeys((torch.dtype, torch.layout, torch.memory_format), lambda value, _depth: [str(value)]),
    torch.device: lambda value, _depth: [str(relative(value))],
    **dict.fromkeys((type(Ellipsis), type(NotImplemented)), lambda value, _depth: [repr(value)]),
    FunctionType: lambda value, _depth: [described(value)],
    CodeType: lambda value, _depth: [code_digest(value)],
}


def _enum(value: Any, depth: int) -> list[Any]:
    return ["enum", class_name(type(value)), value.name if value.name is not None else str(value), _plain(value.value, depth)]


def _method(value: Any, depth: int) -> list[Any]:
    return ["method", described(value), encode(value.__self__, depth) if isinstance(value.__self__, type) else None]


def _subclass(value: Any, depth: int) -> list[Any]:
    if hasattr(type(value), "_fields"):
        return ["namedtuple", class_name(type(value)), *_items(value, depth)]
    base: Any = next(base for base in _CONSTANTS if isinstance(value, base))
    return ["subclass", class_name(type(value)), encode(base(value), depth)]


_CONSTANTS: Final[tuple[type, ...]] = (int, float, complex, str, bytes, tuple)
_OPERATORS: Final = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)  # noqa: SLF001 -- torch has no public names for them
_BUILTINS: Final = (
    BuiltinFunctionType,
    WrapperDescriptorType,
    MethodWrapperType,
    MethodDescriptorType,
    ClassMethodDescriptorType,
)
_KINDS: Final[Sequence[tuple[Any, Callable[[Any, int], list[Any]]]]] = (
    (enum.Enum, _enum),
    (ModuleType, lambda value, _depth: ["module", value.__name__]),
    (GenericAlias, lambda value, _depth: ["typing", str(value)]),
    (type, lambda value, _depth: ["class", class_name(value)]),
    (MethodType, _method),
    (re.Pattern, lambda value, depth: ["pattern", encode(value.pattern, depth), str(int(value.flags))]),
    (_OPERATORS, lambda value, _depth: ["operator", str(value)]),
    (_BUILTINS, lambda value, _depth: ["builtin", str(getattr(value, "__module__", None)), value.__qualname__]),
    (_CONSTANTS, _subclass),
)


def _other(value: Any, kind: type, _depth: int) -> Any:
    if kind.__module__ == "typing" or kind.__name__ == "UnionType":
        return ["typing", str(value)]
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        return ["numpy", str(value.dtype), value.tobytes().hex()]
    if (code := described(value)) is not None:
        return ["callable", class_name(kind), code]
    if callable(value) and kind.__module__.split(".")[0] == "torch" and hasattr(value, "__qualname__"):
        return ["builtin", str(getattr(value, "__module__", None)), str(value.__qualname__)]
    raise Unencodable(f"an object of {class_name(kind)} means nothing in another process")


def _plain(value: Any, depth: int) -> Any:
    """An enum member's value, where it says anything."""
    try:
        return encode(value, depth - 1)
    except Unencodable:
        return None


def _few(items: Any) -> Any:
    if len(items) > _MOST_ITEMS:
        raise Unencodable(f"it has {len(items)} items")
    return items


def _bits(value: float) -> str:
    return "nan" if math.isnan(value) else struct.pack(">d", value).hex()


def told(encoded: Any) -> str:
    """An encoded value for a sentence: what the user wrote, as far as it is short."""
    text = _told(encoded)
    return text if len(text) <= _LONGEST_TOLD else text[: _LONGEST_TOLD - 3] + "..."


def _told(encoded: Any) -> str:
    if not isinstance(encoded, list) or not encoded:
        return repr(encoded)
    kind, *rest = encoded
    if kind == "float":
        return "nan" if rest[0] == "nan" else repr(struct.unpack(">d", bytes.fromhex(rest[0]))[0])
    if kind in _BRACKETS:
        return _BRACKETS[kind].format(", ".join(map(_told, rest)))
    if kind in {"dict", "OrderedDict"}:
        return "{" + ", ".join(f"{_told(key)}: {_told(item)}" for key, item in rest) + "}"
    if kind in {"function", "method", "code", "callable"}:
        return "other code"
    return str(_WORDS.get(kind, f"{kind} {{}}").format(*rest))


_BRACKETS: Final = {"list": "[{}]", "tuple": "({})"} | {
    kind: kind + "({})" for kind in ("set", "frozenset", "deque", "Size", "slice", "range", "namedtuple")
}
_WORDS: Final = {
    "int": "{}",
    "dtype": "{}",
    "enum": "{0}.{1}",
    "builtin": "{0}.{1}",
    "operator": "operator {}",
    "subclass": "{1}",
}
