"""Tensors and attributes in the words of a CANN record (docs/cann.md, "Record schema")."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

Json = Any
"""A value that JSON can carry."""

DTYPES: Final[dict[torch.dtype, str]] = {
    torch.float32: "float",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "double",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
}

_FLOAT_MAX: Final = torch.finfo(torch.float32).max
REQUIRED: Final = "required"
OPTIONAL: Final = "optional"
DYNAMIC: Final = "dynamic"


class Undescribable(Exception):
    """This call cannot be told in the record schema; the message says why."""


def dtype_word(dtype: torch.dtype) -> str:
    """CANN's word for a dtype."""
    try:
        return DTYPES[dtype]
    except KeyError:
        raise Undescribable(f"dtype {dtype} has no word in the record schema") from None


def tensor(value: torch.Tensor, name: str, index: int, param_type: str = REQUIRED, *, views: bool = True) -> dict[str, Json]:
    """A tensor object. ``views``: say how a tensor lies in its storage (schema of CANN 9.1 and later)."""
    shape = [int(size) for size in value.shape]
    described: dict[str, Json] = {
        "name": name,
        "index": index,
        "param_type": param_type,
        "dtype": dtype_word(value.dtype),
        "shape": shape,
        "format": "ND",
        "origin_shape": shape,
        "origin_format": "ND",
        "value_depend": False,
    }
    if views and value.layout == torch.strided:
        contiguous = value.is_contiguous()
        described["is_view"] = not contiguous
        if not contiguous:
            described["stride"] = [int(step) for step in value.stride()]
            described["offset"] = int(value.storage_offset())
    return described


def number(like: torch.dtype, name: str, index: int) -> dict[str, Json]:
    """An operand that is a number in Python and a scalar tensor on the device; its value does not decide the kernel."""
    return {
        "name": name,
        "index": index,
        "param_type": REQUIRED,
        "dtype": dtype_word(like),
        "shape": [],
        "format": "ND",
        "origin_shape": [],
        "origin_format": "ND",
        "value_depend": False,
    }


def constant(values: list[int], name: str, index: int) -> dict[str, Json]:
    """An input of whole numbers whose value, not only its shape, decides the kernel."""
    return {
        "name": name,
        "index": index,
        "param_type": REQUIRED,
        "dtype": "int64",
        "shape": [len(values)],
        "format": "ND",
        "origin_shape": [len(values)],
        "origin_format": "ND",
        "value_depend": True,
        "const_data": values,
    }


def attribute(name: str, value: object, index: int) -> dict[str, Json]:
    """An attribute object; Undescribable for a value that has no attribute type."""
    return {"name": name, "dtype": _attribute_word(name, value), "index": index, "value": _plain(name, value)}


def _attribute_word(name: str, value: object) -> str:
    for kind, word in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):  # a bool is an int to Python
        if isinstance(value, kind):
            return word
    if isinstance(value, (list, tuple)):
        kinds = {type(item) for item in value}
        word = {frozenset({bool}): "list_bool", frozenset({int}): "list_int", frozenset(): "list_int"}.get(frozenset(kinds), "")
        if word or kinds <= {int, float}:
            return word or "list_float"
    raise Undescribable(f"argument {name!r} of type {type(value).__name__} has no attribute type")


def _plain(name: str, value: object) -> Json:
    """``value`` in JSON, which has no infinities: they become the largest finite float."""
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            raise Undescribable(f"argument {name!r} is not a number")
        return max(-_FLOAT_MAX, min(_FLOAT_MAX, value))
    return value
