"""The schema of a record: strict reading of its JSON, and one spelling for each meaning (docs/cann.md, "Record schema").

What is known is checked; what is not known is kept as it is, since it may decide bytes. Numbers are spelled as their declared
dtype says, where nothing is lost by it: ``1`` and ``1.0`` are one float attribute.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = Any
"""Any JSON value."""
Object = dict[str, Json]

OP_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
NOISE: Final = ("bin_type", "bin_info")
"""Keys that only the ``<pid>_debug`` folder has: where a kernel was found at the time, not which kernel it is."""

MAX_DEPTH: Final = 16
MAX_RANK: Final = 32
MAX_DIMENSION: Final = 2**48
MAX_ELEMENTS: Final = 2**60
MAX_TEXT: Final = 4096

_WORD: Final = re.compile(r"[A-Za-z0-9_:.\-]{0,64}")
_FLOATS: Final = frozenset({"float", "float16", "float32", "float64", "bfloat16", "double", "half"})
_INTEGERS: Final = frozenset({"int", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (4, 8, 16, 32, 64))})
_TEXTS: Final = frozenset({"str", "string"})
_EXACT: Final = 2**53


class UnusableError(ValueError):
    """Why a record cannot be used."""


def read_json(raw: bytes) -> Object:
    """The JSON object in ``raw``: UTF-8, no key twice, finite numbers, not nested deeper than 16; UnusableError otherwise."""
    try:
        document: Json = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except UnusableError:
        raise
    except UnicodeDecodeError as error:
        raise UnusableError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise UnusableError(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise UnusableError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise UnusableError("not a JSON object")
    _bound_depth(document, MAX_DEPTH)
    return document


def compact(value: Json) -> bytes:
    """``value`` as compact JSON with sorted keys, in UTF-8; UnusableError for what JSON or UTF-8 cannot say."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise UnusableError("text with half a surrogate pair in it") from None
    except ValueError:
        raise UnusableError("a number is out of range") from None


def normalise(document: Mapping[str, Json]) -> Object:
    """The record's canonical fields; UnusableError names the field that is wrong."""
    fields = {name: value for name, value in document.items() if name not in NOISE}
    op_type = fields.get("op_type")
    if not isinstance(op_type, str) or not OP_TYPE.fullmatch(op_type):
        raise UnusableError("op_type must be a name of 1 to 128 letters, digits and underscores")
    for side in ("inputs", "outputs"):
        fields[side] = [_element(f"{side}[{at}]", item) for at, item in enumerate(_array(side, fields.get(side)))]
    fields["attrs"] = [_attribute(f"attrs[{at}]", item) for at, item in enumerate(_array("attrs", fields.get("attrs")))]
    _unique_names(fields["attrs"])
    for name, check in _PLAIN.items():
        if name in fields:
            check(name, fields[name])
    return fields


def tensor(where: str, value: Json) -> Object:
    """One tensor object, checked and in its canonical spelling."""
    if not isinstance(value, dict):
        raise UnusableError(f"{where} must be a tensor object")
    fields: Object = dict(value)
    for name in ("dtype", "format", "shape"):
        if name not in fields:
            raise UnusableError(f"{where} has no {name}")
    for name, check in _TENSOR.items():
        if name in fields:
            check(f"{where}.{name}", fields[name])
    if "const_data" in fields:
        fields["const_data"] = _constant(f"{where}.const_data", fields["dtype"], fields["const_data"])
    return fields


def attribute_value(where: str, dtype: str, value: Json) -> Json:
    """An attribute's value, checked against its dtype and in that dtype's spelling; of an unknown dtype, as it is."""
    kind = dtype.lower()
    if kind.startswith("list"):
        inner = kind.removeprefix("list").lstrip("_")
        if inner.startswith("list"):  # list_list_int, listListInt
            return [attribute_value(f"{where}[{at}]", inner, item) for at, item in enumerate(_array(where, value))]
        if _scalar(inner) is not None:
            return [_spell(f"{where}[{at}]", inner, item) for at, item in enumerate(_array(where, value))]
        return value
    return _spell(where, kind, value)


# ---- the parts -------------------------------------------------------------------------------------------------------


def _element(where: str, value: Json) -> Json:
    """A tensor, None (optional and absent) or a list of tensors (a dynamic input)."""
    if value is None:
        return None
    if isinstance(value, list):
        return [None if item is None else tensor(f"{where}[{at}]", item) for at, item in enumerate(value)]
    return tensor(where, value)


def _attribute(where: str, value: Json) -> Object:
    if not isinstance(value, dict):
        raise UnusableError(f"{where} must be an attribute object")
    for name in ("name", "dtype", "value"):
        if name not in value:
            raise UnusableError(f"{where} has no {name}")
    _text(f"{where}.name", value["name"])
    _word(f"{where}.dtype", value["dtype"])
    if "index" in value:
        _whole(f"{where}.index", value["index"])
    return {**value, "value": attribute_value(f"{where}.value", value["dtype"], value["value"])}


def _unique_names(attributes: list[Object]) -> None:
    seen: set[str] = set()
    for attribute in attributes:
        if attribute["name"] in seen:
            raise UnusableError(f"attribute {attribute['name']!r} is given twice")
        seen.add(attribute["name"])


def _constant(where: str, dtype: str, value: Json) -> Json:
    """``const_data``: numbers, possibly in nested lists, or text such as ``NULL``."""
    if isinstance(value, list):
        return [_constant(where, dtype, item) for item in value]
    if isinstance(value, dict):
        raise UnusableError(f"{where} must be numbers or text")
    if value is None or isinstance(value, str):
        return value
    kind = dtype.lower()
    return _spell(where, kind, value) if kind in _FLOATS or kind in _INTEGERS else value


def _scalar(kind: str) -> Callable[[str, Json], Json] | None:
    if kind in _FLOATS:
        return _as_float
    if kind in _INTEGERS:
        return _as_integer
    if kind == "bool":
        return _as_bool
    if kind in _TEXTS:
        return _as_text
    return None


def _spell(where: str, kind: str, value: Json) -> Json:
    spell = _scalar(kind)
    return value if spell is None else spell(where, value)


def _as_float(where: str, value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnusableError(f"{where} must be a number")
    if isinstance(value, int) and abs(value) > _EXACT:
        raise UnusableError(f"{where} is too large for a float to hold exactly")
    return float(value)


def _as_integer(where: str, value: Json) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    _whole(where, value)
    return int(value)


def _as_bool(where: str, value: Json) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise UnusableError(f"{where} must be true or false")


def _as_text(where: str, value: Json) -> str:
    if not isinstance(value, str):
        raise UnusableError(f"{where} must be text")
    return value


# ---- checks ----------------------------------------------------------------------------------------------------------


def _array(where: str, value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise UnusableError(f"{where} must be an array")
    return value


def _object(where: str, value: Json) -> None:
    if not isinstance(value, dict):
        raise UnusableError(f"{where} must be an object")


def _text(where: str, value: Json) -> None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise UnusableError(f"{where} must be text of at most {MAX_TEXT} characters")


def _word(where: str, value: Json) -> None:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise UnusableError(f"{where} must be a word of at most 64 characters")


def _flag(where: str, value: Json) -> None:
    if not isinstance(value, bool):
        raise UnusableError(f"{where} must be true or false")


def _whole(where: str, value: Json) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**64:
        raise UnusableError(f"{where} must be a whole number of 64 bits")


def _count(where: str, value: Json) -> None:
    _whole(where, value)
    if value < 0:
        raise UnusableError(f"{where} must not be negative")


def _shape(where: str, value: Json) -> None:
    if len(_array(where, value)) > MAX_RANK:
        raise UnusableError(f"{where} has more than {MAX_RANK} dimensions")
    elements = 1
    for size in value:
        if isinstance(size, bool) or not isinstance(size, int):
            raise UnusableError(f"{where} must hold whole numbers")
        if not 0 <= size <= MAX_DIMENSION:
            raise UnusableError(f"{where} has a dimension of {str(size)[:32]}; 0 to {MAX_DIMENSION} are possible")
        elements *= max(size, 1)
    if elements > MAX_ELEMENTS:
        raise UnusableError(f"{where} says that there are more than {MAX_ELEMENTS} elements")


def _stride(where: str, value: Json) -> None:
    if len(_array(where, value)) > MAX_RANK:
        raise UnusableError(f"{where} has more than {MAX_RANK} dimensions")
    for step in value:
        _whole(where, step)


def _deterministic(where: str, value: Json) -> None:
    if value not in ("true", "false"):
        raise UnusableError(f'{where} must be the text "true" or "false"')


def _platform(where: str, value: Json) -> None:
    _object(where, value)
    for name in ("vector_core_cnt", "cube_core_cnt"):
        if name in value:
            _count(f"{where}.{name}", value[name])


_PLAIN: Final[dict[str, Callable[[str, Json], None]]] = {
    "impl_mode": _text,
    "deterministic": _deterministic,
    "tune_mode": _text,
    "platform_info": _platform,
    "deterministic_level": _whole,
}
_TENSOR: Final[dict[str, Callable[[str, Json], None]]] = {
    "dtype": _word,
    "format": _word,
    "shape": _shape,
    "origin_shape": _shape,
    "origin_format": _word,
    "name": _text,
    "index": _whole,
    "param_type": _word,
    "value_depend": _flag,
    "is_view": _flag,
    "stride": _stride,
    "offset": _count,
}


def _unique(pairs: list[tuple[str, Json]]) -> Object:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise UnusableError(f"key {twice[:64]!r} is given twice")
    return found


def _refuse(constant: str) -> Json:
    raise UnusableError(f"{constant} is not a number that JSON knows")


def _bound_depth(value: Json, left: int) -> None:
    if not left:
        raise UnusableError(f"nested deeper than {MAX_DEPTH}")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)):
            _bound_depth(item, left - 1)
