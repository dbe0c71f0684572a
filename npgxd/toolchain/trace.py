"""The trace: what a compiled kernel's own json can tell of the record that asked for it, in one form for both.

An index entry names a kernel, the kernel's json says what it was compiled for (``supportInfo``), and by its trace the entry is
led back to its record. A trace holds op type, impl mode, the deterministic flag, tensors and attribute values; it leaves out
what ``supportInfo`` does not have (``const_data``, core counts, ``extra_params``, labels), so different records can share one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from npgxd.errors import RecordError
from npgxd.toolchain._schema import Json, Object, UnusableError, attribute_value, compact, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_CERTAIN: Final = ("dtype", "format", "shape")
_ALSO: Final = ("origin_shape", "origin_format", "sub_format", "c0_format")
_OF_VIEWS: Final = ("stride", "offset")
_SEPARATOR: Final = "\n"


def trace_of_record(fields: Mapping[str, Json]) -> str:
    """The trace of a record in its canonical spelling."""
    return _trace(fields["op_type"], fields.get("impl_mode"), fields.get("deterministic"), fields)


def trace_of_support_info(op_type: str, kernel_json: Mapping[str, Json]) -> str:
    """The trace of a kernel, from its own json; RecordError if that does not say what it was compiled for."""
    info = kernel_json.get("supportInfo")
    if not isinstance(info, dict):
        raise RecordError(
            f"a kernel of {op_type} does not say what it was compiled for: no supportInfo in its json", op_type=op_type
        )
    mode = info.get("implMode", kernel_json.get("implMode"))
    deterministic = info.get("deterministic", kernel_json.get("deterministic"))
    try:
        return _trace(op_type, mode, deterministic, info)
    except (UnusableError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"the supportInfo of a kernel of {op_type} cannot be read: {error}", op_type=op_type) from None


def coarse_trace(trace: str) -> str:
    """``trace`` with dtype, format and shape alone of each tensor: for a compiler whose ``supportInfo`` has no more.

    Whoever finds no record by the full trace may look by this one, and may use what it finds if that is exactly one.
    """
    op_type, _, rest = trace.partition(_SEPARATOR)
    fields = read_json(rest.encode())
    for side in ("inputs", "outputs"):
        fields[side] = [_reduce(element) for element in fields[side]]
    return f"{op_type}{_SEPARATOR}{compact(fields).decode()}"


def _trace(op_type: str, mode: Json, deterministic: Json, fields: Mapping[str, Json]) -> str:
    told = {
        "impl_mode": mode or "",
        "deterministic": str(deterministic).lower() in {"true", "1"},
        "inputs": _side(fields.get("inputs")),
        "outputs": _side(fields.get("outputs")),
        "attrs": dict(_attribute(item) for item in fields.get("attrs") or ()),
    }
    return f"{op_type}{_SEPARATOR}{compact(told).decode()}"


def _side(elements: Json) -> list[Json]:
    """Tensors in order; absent optional ones at the end leave no trace, as not every writer names them."""
    told = [_element(element) for element in elements or ()]
    while told and told[-1] is None:
        told.pop()
    return told


def _element(element: Json) -> Json:
    if element is None:
        return None
    if isinstance(element, list):
        return [_element(item) for item in element]
    if not isinstance(element, dict):
        raise UnusableError("a tensor is not an object")
    told: Object = {name: element[name] for name in _CERTAIN} if all(name in element for name in _CERTAIN) else _incomplete()
    told |= {name: element[name] for name in _ALSO if element.get(name) is not None}
    if element.get("is_view"):
        told |= {name: element[name] for name in _OF_VIEWS if element.get(name) is not None}
    return told


def _incomplete() -> Object:
    raise UnusableError(f"a tensor lacks one of {', '.join(_CERTAIN)}")


def _reduce(element: Json) -> Json:
    if isinstance(element, dict):
        return {name: element[name] for name in _CERTAIN}
    return [_reduce(item) for item in element] if isinstance(element, list) else element


def _attribute(attribute: Object) -> tuple[str, Json]:
    name, dtype = str(attribute.get("name")), attribute.get("dtype")
    value = attribute.get("value")
    if isinstance(dtype, str):
        value = attribute_value(f"attribute {name}", dtype, value)
    return (name, _as_stored(value))


def _as_stored(value: Json) -> Json:
    """Floats as CANN stores them, in 32 bits: a writer may print ``0.1`` or ``0.10000000149``."""
    if isinstance(value, list):
        return [_as_stored(item) for item in value]
    if isinstance(value, float):
        try:
            stored: float = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            return value
        return stored
    return value
