"""The ranges that symbolic sizes must stay in, as plain expressions of a closed grammar.

Dynamo's shape environment states them as Python expressions; read here are comparisons, ``and``, ``or``, ``not``, arithmetic, and
a few functions, over references ``S[n]`` to a size, a stride, an offset or a number. Anything else is refused.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

Part = Literal["size", "stride", "storage_offset", "value"]

FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "max": max,
    "min": min,
    "abs": abs,
    "int": int,
    "float": float,
    "round": round,
    "math.isnan": math.isnan,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
    "math.sqrt": math.sqrt,
}
_ALLOWED: Final = (
    *(ast.Expression, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.IfExp, ast.Load),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod, ast.Pow, ast.LShift, ast.RShift),
)
_REFERENCE: Final = re.compile(r"(.*)\.(?:(size|stride)\(\)\[(\d+)\]|(storage_offset)\(\))", re.DOTALL)
_LONGEST: Final = 4000


class NoRange(Exception):
    """An expression outside the grammar."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One number that expressions speak of: a part of the tensor, or the number itself, that Dynamo calls ``source``."""

    source: str
    part: Part
    axis: int | None

    @classmethod
    def of(cls, name: str) -> Reference:
        """``L['x'].size()[0]`` and its like."""
        found = _REFERENCE.fullmatch(name)
        if found is None:
            return cls(name, "value", None)
        source, by_axis, axis, _offset = found.groups()
        if axis is None:
            return cls(source, "storage_offset", None)
        return cls(source, "size" if by_axis == "size" else "stride", int(axis))


@dataclass(frozen=True, slots=True)
class Ranges:
    """What a shape environment demands: references by number, those that are fixed, and what the others must fulfil."""

    references: tuple[Reference, ...]
    fixed: Mapping[int, int]
    expressions: tuple[str, ...]


def read_ranges(expressions: list[str], names: Mapping[str, int]) -> Ranges:
    """Sort Dynamo's expressions over ``S[n]``; ``names`` are the references by Dynamo's name. NoRange for what cannot be read."""
    fixed: dict[int, int] = {}
    others: list[str] = []
    for text in expressions:
        tree = _checked(text)
        match tree:
            case ast.Compare(
                left=ast.Subscript(slice=ast.Constant(value=int(number))), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]
            ) if type(value) is int:
                fixed[number] = value
            case ast.Constant(value=True):
                pass
            case _:
                others.append(ast.unparse(tree))
    return Ranges(tuple(Reference.of(name) for name in sorted(names, key=names.__getitem__)), fixed, tuple(sorted(set(others))))


def without(expressions: Sequence[str], idle: Collection[int]) -> list[str]:
    """What ``expressions`` demand of everything but the references in ``idle``, whose values nothing depends on.

    One number may have been traced for several places that happened to agree, and conditions on it are stated of the first of them:
    so an idle place is replaced by one that it equals, before what speaks of idle places alone is left out.
    """
    trees = [_checked(text) for text in expressions]
    equal: dict[int, int] = {}
    for _ in idle:  # chains of equal places
        for one, other in itertools.chain.from_iterable((pair, pair[::-1]) for tree in trees if (pair := _equality(tree))):
            if one in idle and one not in equal and (other not in idle or other in equal):
                equal[one] = equal.get(other, other)
    told = [ast.unparse(_Renamed(equal).visit(tree)) for tree in trees]
    return sorted({text for text in told if not _says_nothing(text, idle)})


def _equality(tree: ast.expr) -> tuple[int, int] | None:
    match tree:
        case ast.Compare(
            left=ast.Subscript(slice=ast.Constant(value=int(one))),
            ops=[ast.Eq()],
            comparators=[ast.Subscript(slice=ast.Constant(value=int(other)))],
        ):
            return one, other
    return None


def _says_nothing(text: str, idle: Collection[int]) -> bool:
    pair = _equality(_checked(text))
    return all(number in idle for number in used(text)) or (pair is not None and pair[0] == pair[1])


class _Renamed(ast.NodeTransformer):
    """References by other numbers."""

    def __init__(self, names: Mapping[int, int]) -> None:
        self._names = names

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node.slice:
            case ast.Constant(value=int(number)):
                node.slice = ast.Constant(self._names.get(number, number))
        return node


def used(text: str) -> list[int]:
    """The numbers n of the references S[n] in one expression."""
    return sorted(
        {
            node.slice.value
            for node in ast.walk(_checked(text))
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
        }
    )


def holds(text: str, numbers: Mapping[int, Any]) -> bool:
    """Whether an expression is true of ``numbers`` (by n). NoRange for what is outside the grammar."""
    compiled = compile(ast.Expression(_checked(text)), "<range>", "eval")
    return bool(eval(compiled, {"__builtins__": {}, "S": numbers, "math": math} | _plain_functions()))  # noqa: S307 -- of a closed grammar


def _plain_functions() -> dict[str, Any]:
    return {name: function for name, function in FUNCTIONS.items() if "." not in name}


def _checked(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise NoRange(f"an expression of {len(text)} characters over sizes is too long")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError):
        raise NoRange(f"{text} cannot be read") from None
    _check(tree.body, text)
    return tree.body


def _check(tree: ast.AST, text: str) -> None:
    match tree:
        case ast.Constant(value=value) if isinstance(value, (int, float)):
            return
        case ast.Subscript(value=ast.Name(id="S"), slice=ast.Constant(value=int())):
            return
        case ast.Call(func=func, args=args, keywords=[]) if ast.unparse(func) in FUNCTIONS:
            for argument in args:
                _check(argument, text)
            return
    if not isinstance(tree, _ALLOWED):
        raise NoRange(f"{text} is not a plain expression over sizes")
    for child in ast.iter_child_nodes(tree):
        _check(child, text)
