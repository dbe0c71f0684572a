"""What the user gave beside the model: options, passes and decompositions, as plain data that changes if their code does.

A pass or a decomposition is followed deeper than a traced function, because nobody watched it run: its own code, what it closes
over, its defaults, and every function, class and plain value that it names in its module.
"""

from __future__ import annotations

import dataclasses
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from npgxd.client.codes import class_described, class_name, codes_behind, described
from npugraph_ex.inference.facts_values import Unencodable, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugraph_ex.options import Options

UNDECIDING: Final = frozenset({"data_dump_dir", "use_graph_pool", "static_kernel_wait"})
"""Where something is put, handles of this process, and whether it waits: no option here changes the graph."""
_PUBLISHED: Final = frozenset({"torch", "torch_npu", "builtins", "npugraph_ex", "npgxd"})
_DEPTH: Final = 6


def given(options: Options, decompositions: Mapping[Any, Any], *, dynamic: bool) -> dict[str, Any]:
    """Plain; equal exactly if they make the same graph of the same model."""
    fields = [item.name for item in dataclasses.fields(options) if item.name not in UNDECIDING | {"given"}]
    return {
        "dynamic": dynamic,
        "options": {name: deep(getattr(options, name)) for name in fields},
        "decompositions": {
            str(name): deep(function) for name, function in sorted(decompositions.items(), key=lambda item: str(item[0]))
        },
    }


def deep(value: Any, depth: int = _DEPTH, seen: frozenset[int] = frozenset()) -> Any:
    """A value, or the code behind it and behind what that names."""
    if id(value) in seen or depth == 0:
        return ["again"]
    seen |= {id(value)}
    if isinstance(value, type):
        return ["class", class_name(value), _published(value) or class_described(value, frozenset(vars(value)))]
    code = described(value)
    if code is None:
        return _value(value, depth, seen)
    if _published(value):
        return [str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", "")), code]
    return [code, _closed_over(value, depth, seen), _named(value, depth, seen)]


def _value(value: Any, depth: int, seen: frozenset[int]) -> Any:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: deep(value[key], depth - 1, seen) for key in sorted(value)}
    try:
        return encode(value)
    except Unencodable:
        pass
    kind = type(value)
    if callable(value) and not _published(kind):  # an object with __call__: its class's code, and its attributes
        state = {name: deep(item, depth - 1, seen) for name, item in sorted(getattr(value, "__dict__", {}).items())}
        return ["object", deep(kind.__call__, depth - 1, seen), class_described(kind, frozenset(vars(kind))), state]
    return ["object", class_name(kind)]


def _closed_over(value: Any, depth: int, seen: frozenset[int]) -> Any:
    function = getattr(value, "__func__", value)
    if not isinstance(function, FunctionType):
        return [deep(part, depth - 1, seen) for part in (getattr(value, "args", ()), getattr(value, "keywords", {}))]
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    return [deep(part, depth - 1, seen) for part in (*cells, function.__defaults__, function.__kwdefaults__)]


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _named(value: Any, depth: int, seen: frozenset[int]) -> dict[str, Any]:
    """What its code names in its module: functions, classes and values, not modules and not what torch publishes."""
    scope: Mapping[str, Any] = getattr(getattr(value, "__func__", value), "__globals__", {})
    names = sorted({name for code in codes_behind(value) for name in code.co_names if name in scope})
    return {name: deep(scope[name], depth - 1, seen) for name in names if not _published(scope[name])}


def _published(value: Any) -> bool:
    """Whether a version stands for it: it comes from torch or from this project."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in _PUBLISHED
