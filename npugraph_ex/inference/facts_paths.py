"""Where a value was found: from the call's arguments, the function's globals or a module, step by step.

Promise: a path is plain data of a closed vocabulary; to follow it runs no code but attribute and item access on the user's own
objects.  Dynamo names such places by Python expressions (``L['self'].layers[0]``, ``G['SCALE']``); ``Paths.of`` reads those that
have a meaning in another process, and raises ``NoPath`` for the rest.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import operator
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from types import CellType, FunctionType, ModuleType

Node = tuple[int, str, Any]
"""The node that it starts from (-1: none), the step, and its key."""


class NoPath(Exception):
    """A place that cannot be found again in another process."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True)
class Roots:
    """What paths start from, in this process and for this call."""

    function: FunctionType
    arguments: Mapping[str, Any]

    @property
    def cells(self) -> dict[str, CellType]:
        """What the function closes over, by name."""
        return dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))


# ---- writing them down ------------------------------------------------------------------------------------------------------


class Paths:
    """Every place that some facts are about, each once, a base always before what starts from it."""

    def __init__(self, function: FunctionType, aliases: Mapping[str, str]) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[tuple[int, str, str], int] = {}
        self._read: dict[str, int] = {}
        self._cells = frozenset(function.__code__.co_freevars)
        self._aliases = aliases
        self._scopes: dict[str, int] = {}

    def node(self, base: int, step: str, key: Any = None) -> int:
        """The number of that place."""
        known = (base, step, repr(key))
        if known not in self._numbers:
            self._numbers[known] = len(self.nodes)
            self.nodes.append((base, step, key))
        return self._numbers[known]

    def of(self, expression: str) -> int:
        """The number of the place that Dynamo calls ``expression``. NoPath if it has no meaning elsewhere."""
        if expression not in self._read:
            try:
                tree = ast.parse(expression, mode="eval").body
            except (SyntaxError, RecursionError):
                raise NoPath(f"{expression} cannot be read") from None
            self._read[expression] = self._follow(tree)
        return self._read[expression]

    def name_scope(self, alias: str, node: int) -> None:
        """``alias`` is Dynamo's name, in the globals, of the dictionary at ``node``."""
        self._scopes[alias] = node

    def _follow(self, tree: ast.expr) -> int:  # noqa: C901, PLR0911 -- one case a form of expression
        match tree:
            case ast.Subscript(value=ast.Name(id="L" | "G" as where), slice=ast.Constant(value=str(name))):
                return self._root(where, name)
            case ast.Subscript(value=ast.Call(func=ast.Name(id="list"), args=[ast.Call(func=func, args=[inner])]), slice=at):
                if ast.unparse(func) == "dict.keys":
                    return self.node(self._follow(inner), "key", _literal(at))
            case ast.Subscript(value=value, slice=at):
                return self._item(self._follow(value), "item", at)
            case ast.Attribute(value=ast.Name(id="dict" | "list" | "object")):
                pass
            case ast.Attribute(value=value, attr=name):
                return self.node(self._follow(value), "attr", name)
            case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[], keywords=[]):
                return self.node(self._follow(value), "scalar")
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._called(name, args, tree)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name), args=[inner, at], keywords=[]):
                if (owner, name) == ("object", "__getattribute__"):
                    return self.node(self._follow(inner), "raw", _literal(at))
                if name == "__getitem__" and owner in {"dict", "list", "tuple"}:
                    return self._item(self._follow(inner), "entry" if owner == "dict" else "at", at)
        raise NoPath(f"{ast.unparse(tree)} means nothing in another process")

    def _item(self, base: int, step: str, at: ast.expr) -> int:
        match at:
            case ast.Subscript(value=ast.Call(func=ast.Name(id="list"), args=[ast.Call()]), slice=ast.Constant(value=int(place))):
                return self.node(base, "nth", place)  # what lies under the dictionary's own n-th key
        key = _literal(at)
        plain = key is None or isinstance(key, (str, int))
        return self.node(base, step, key) if plain else self.node(base, "literal", repr(key))

    def _called(self, name: str, args: Sequence[ast.expr], tree: ast.expr) -> int:
        match name, args:
            case "type" | "___dataclass_fields", [inner]:
                return self.node(self._follow(inner), "type" if name == "type" else "fields")
            case "dict", [ast.Attribute(value=inner, attr="__dict__")]:
                return self.node(self._follow(inner), "body")
            case "getattr", [inner, ast.Constant(value=str(attr))]:
                return self.node(self._follow(inner), "attr", attr)
            case "___namedtuple_fields", [inner]:
                return self.node(self._follow(inner), "attr", "_fields")
            case "__import__", [ast.Constant(value=str(module))]:
                return self.node(-1, "module", module)
            case "int" | "___as_tensor", [inner]:
                return self._follow(inner)  # what a symbolic number is made from
        raise NoPath(f"{ast.unparse(tree)} means nothing in another process")

    def _root(self, where: str, name: str) -> int:
        if where == "L":
            return self.node(-1, "cell" if name in self._cells else "argument", name)
        if name in self._aliases:
            return self.node(-1, "module", self._aliases[name])
        if name.startswith("__builtins_dict__"):
            return self.node(-1, "builtin", "")
        if name in self._scopes:
            return self._scopes[name]
        if name.startswith("___unnamed_scope"):
            raise NoPath("a function's globals belong to no module")
        return self.node(-1, "global", name)


def _literal(tree: ast.expr) -> Any:
    try:
        return ast.literal_eval(tree)
    except ValueError:
        raise NoPath(f"the key {ast.unparse(tree)} means nothing in another process") from None


# ---- following them -----------------------------------------------------------------------------------------------------------


def _module(name: str) -> ModuleType:
    """A module that is loaded already; torch's own may be loaded for it."""
    if name in sys.modules or not name.startswith("torch."):
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LookupError(name) from error


def scalar(value: Any) -> Any:
    """The number in a tensor that holds one; a number that Dynamo would have made such a tensor of."""
    return value.item() if hasattr(value, "item") else value


_STARTS: Final[Mapping[str, Callable[[str, Roots], Any]]] = {
    "argument": lambda key, roots: roots.arguments[key],
    "cell": lambda key, roots: roots.cells[key].cell_contents,
    "global": lambda key, roots: roots.function.__globals__[key],
    "globals": lambda _key, roots: roots.function.__globals__,
    "module": lambda key, _roots: _module(key),
    "builtin": lambda _key, _roots: vars(builtins),
    "function": lambda _key, roots: roots.function,
}
_STEPS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "attr": getattr,
    "item": operator.getitem,
    "raw": object.__getattribute__,
    "entry": dict.__getitem__,
    "at": lambda base, key: (list if isinstance(base, list) else tuple).__getitem__(base, key),
    "key": lambda base, key: list(base)[key],
    "nth": lambda base, key: list(base.values())[key],  # what lies under a dictionary's own n-th key
    "literal": lambda base, key: base[ast.literal_eval(key)],
    "type": lambda base, _key: type(base),
    "body": lambda base, _key: vars(base),
    "fields": lambda base, _key: tuple(base.__dataclass_fields__),
    "scalar": lambda base, _key: scalar(base),
}
ROOTS: Final = frozenset(_STARTS)
STEPS: Final = frozenset(_STEPS)


def follow(nodes: Sequence[Node], roots: Roots, wanted: Collection[int] | None = None) -> list[Any]:
    """The value at each node, or at those that are ``wanted``; MISSING where there is none, and wherever that is the base."""
    found: list[Any] = []
    for number, (base, step, key) in enumerate(nodes):
        if (wanted is not None and number not in wanted) or (base >= 0 and found[base] is MISSING):
            found.append(MISSING)
            continue
        try:
            found.append(_STARTS[step](key, roots) if base < 0 else _STEPS[step](found[base], key))
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
            found.append(MISSING)
    return found


def with_bases(nodes: Sequence[Node], numbers: Iterable[int]) -> set[int]:
    """These nodes and all that they start from."""
    found: set[int] = set()
    for number in numbers:
        at = number
        while at >= 0 and at not in found:
            found.add(at)
            at = nodes[at][0]
    return found


# ---- telling them -------------------------------------------------------------------------------------------------------------


def spoken(nodes: Sequence[Node], number: int, module: str, own: str = "self") -> str:
    """The place in a reader's words: "global mymod.SCALE", "self.layers.0.training", "argument x.pos"."""
    base, step, key = nodes[number]
    if base < 0:
        roots = {
            "argument": own if key == own else f"argument {key}",
            "cell": f"closure variable {key}",
            "global": f"global {module}.{key}",
            "module": key,
            "builtin": "builtins",
            "globals": f"module {module}",
        }
        return str(roots.get(step, "the function"))
    inner = spoken(nodes, base, module, own)
    if step in {"attr", "raw"}:
        return inner.removesuffix(".__closure__") if key == "cell_contents" else f"{inner}.{key}"
    if step in {"item", "entry", "at"}:
        return _item_spoken(inner, key)
    words = {
        "scalar": f"{inner}.item()",
        "literal": f"{inner}[{key}]",
        "type": f"the class of {inner}",
        "body": f"{inner}.__dict__",
    }
    return words.get(step, f"{inner}'s {step} {'' if key is None else key}".rstrip())


def _item_spoken(inner: str, key: Any) -> str:
    if inner.endswith(".__dict__"):
        inner = inner.removesuffix(".__dict__")
        return f"{key} of {inner}" if inner.startswith("the class of ") else f"{inner}.{key}"
    for container in ("._modules", "._parameters", "._buffers"):
        if inner.endswith(container) and isinstance(key, str):
            return f"{inner.removesuffix(container)}.{key}"
    return f"{inner}[{key!r}]"
