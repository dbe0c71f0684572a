"""From Dynamo's guards to facts: which of its kinds says what, and which cannot be kept.

Guards of the process's settings are left out, they are facts of another sort (``facts_settings``), and so are sizes
(``facts_shapes``). A kind that is not known is refused: a fact that is not understood cannot be checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from npugraph_ex.inference.cacheable import NotCacheable, Why
from npugraph_ex.inference.facts_paths import MISSING, NoPath, Paths, Roots, follow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npugraph_ex.inference.capture import Capture, Guarded

_SETTINGS: Final = frozenset(
    [
        "GRAD_MODE",
        "DETERMINISTIC_ALGORITHMS",
        "GLOBAL_STATE",
        "TORCH_FUNCTION_STATE",
        "DEFAULT_DEVICE",
        "AUTOGRAD_SAVED_TENSORS_HOOKS",
        "FSDP_TRAINING_STATE",
        "DUAL_LEVEL",
        "FUNCTORCH_STACK_MATCH",
        "SHAPE_ENV",
    ]
)
_VALUES: Final = frozenset(
    [
        "EQUALS_MATCH",
        "CONSTANT_MATCH",
        "CONSTANT_SUBCLASS_MATCH",
        "BOOL_MATCH",
        "NONE_MATCH",
        "ID_MATCH",
        "CLASS_MATCH",
        "FUNCTION_MATCH",
        "MODULE_MATCH",
        "BUILTIN_MATCH",
        "CLOSURE_MATCH",
    ]
)
_MODE_AT: Final = "___get_torch_function_mode_stack_at"
"""A default device is seen as a mode: a setting."""
_NUMBERED: Final = re.compile(r"(__builtins_dict__|___unnamed_scope)_\d+")
"""Names that Dynamo counts up, or takes from addresses."""
_HOOKS: Final = ("_hooks", "_pre_hooks", "_hooks_with_kwargs", "_hooks_always_called")


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact before its value is taken: ``detail`` is what the guard was told, ``other`` a second place."""

    kind: str
    node: int
    detail: Any = None


def drafts(capture: Capture, paths: Paths) -> list[Draft]:
    """Every guard as one or two drafts, in an order that does not depend on the process. NotCacheable for what cannot be kept."""
    inner = (_MODE_AT, *(f"G[{alias!r}]" for alias, module in capture.aliases.items() if _is_inner(module)))
    wanted = sorted(
        (guard for guard in capture.guards if guard.kind not in _SETTINGS and not guard.source.startswith(inner)), key=_order
    )
    plain = [guard for guard in wanted if "___unnamed_scope" not in guard.source]
    found = [draft for guard in plain for draft in _drafted(guard, paths)]
    if len(plain) < len(wanted):
        _find_scopes(capture, paths)
        found += [draft for guard in wanted if "___unnamed_scope" in guard.source for draft in _drafted(guard, paths)]
    return list(dict.fromkeys(found))


def _is_inner(module: str) -> bool:
    """A module that torch keeps to itself, Dynamo's own among them: torch's version stands for it, and a warm process lacks it."""
    first, *rest = module.split(".")
    return first == "torch" and any(name.startswith("_") for name in rest)


def _order(guard: Guarded) -> tuple[int, str, str, str]:
    source = _NUMBERED.sub(r"\1", guard.source)
    return len(source), source, guard.kind, _NUMBERED.sub(r"\1", repr(sorted(guard.detail.items(), key=str)))


def _drafted(guard: Guarded, paths: Paths) -> Iterable[Draft]:
    try:
        return _KINDS.get(guard.kind, _unknown)(guard, paths, paths.of(guard.source))
    except NoPath as error:
        raise NotCacheable(
            f"the trace read {guard.source}, which another process could not find: {error}",
            why=Why.UNSERIALISABLE,
            source=guard.source,
            guard=guard.kind,
        ) from None


def _unknown(guard: Guarded, _paths: Paths, _node: int) -> Iterable[Draft]:
    why = Why.PROCESS_LOCAL if "OBJ" in guard.kind or "SCRIPT" in guard.kind else Why.UNSERIALISABLE
    raise NotCacheable(
        f"the trace relied on {guard.source} in a way that cannot be checked later ({guard.kind})",
        why=why,
        source=guard.source,
        guard=guard.kind,
    )


def _plain(kind: str) -> Callable[[Guarded, Paths, int], Iterable[Draft]]:
    def draft(_guard: Guarded, _paths: Paths, node: int) -> Iterable[Draft]:
        return [Draft(kind, node)]

    return draft


def _type(guard: Guarded, _paths: Paths, node: int) -> Iterable[Draft]:
    """A dictionary of hooks that was empty must stay so: Dynamo looks at the type of the global ones alone."""
    if guard.source.endswith(_HOOKS) and guard.has_value and guard.value is not None and not len(guard.value):
        return [Draft("type", node), Draft("empty", node)]
    return [Draft("type", node)]


def _length(guard: Guarded, _paths: Paths, node: int) -> Iterable[Draft]:
    sized = Draft("len", node)
    return [sized] if isinstance(guard.value, dict) else [Draft("type", node), sized]


def _keys(_guard: Guarded, _paths: Paths, node: int) -> Iterable[Draft]:
    return [Draft("type", node), Draft("keys", node)]


def _has(guard: Guarded, _paths: Paths, node: int) -> Iterable[Draft]:
    return [Draft("has", node, guard.detail["attr"])]


def _absent(guard: Guarded, _paths: Paths, node: int) -> Iterable[Draft]:
    return [Draft("absent", node, guard.detail["attr"])]


def _contains(guard: Guarded, _paths: Paths, node: int) -> Iterable[Draft]:
    return [Draft("contains", node, (guard.detail["key"], "NOT" not in guard.kind))]


def _same(guard: Guarded, paths: Paths, node: int) -> Iterable[Draft]:
    return [Draft("same", node, paths.of(guard.detail["source_b"]))]


_KINDS: Final[Mapping[str, Callable[[Guarded, Paths, int], Iterable[Draft]]]] = {
    **dict.fromkeys(_VALUES, _plain("value")),
    "TENSOR_MATCH": _plain("tensor"),
    "TYPE_MATCH": _type,
    "SEQUENCE_LENGTH": _length,
    "DICT_KEYS_MATCH": _keys,
    "MAPPING_KEYS_CHECK": _keys,
    "DICT_CONTAINS": _contains,
    "DICT_NOT_CONTAINS": _contains,
    "SET_CONTAINS": _contains,
    "SET_NOT_CONTAINS": _contains,
    "HASATTR": _has,
    "NOT_PRESENT_IN_GENERIC_DICT": _absent,
    "EMPTY_NN_MODULE_HOOKS_DICT": _plain("empty"),
    "NOT_NONE_MATCH": _plain("some"),
    "DUPLICATE_INPUT": _same,
}


def _find_scopes(capture: Capture, paths: Paths) -> None:
    """Give names to the globals of functions that belong to no importable module: those of a function that is a fact already."""
    scopes = {
        id(value): name
        for name, value in capture.function.__globals__.items()
        if name.startswith("___unnamed_scope") and isinstance(value, dict)
    }
    found = follow(paths.nodes, Roots(capture.function, capture.scope))
    for node, value in enumerate(found):
        if isinstance(value, FunctionType) and id(value.__globals__) in scopes:
            paths.name_scope(scopes.pop(id(value.__globals__)), paths.node(node, "attr", "__globals__"))
        elif value is not MISSING and isinstance(type(value), type):
            _scopes_of_class(type(value), paths.node(node, "type"), scopes, paths)


def _scopes_of_class(kind: type, node: int, scopes: dict[int, str], paths: Paths) -> None:
    """Through a method of its class, where that class's module cannot be imported."""
    if not scopes:
        return
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, FunctionType) and id(member.__globals__) in scopes:
            method = paths.node(paths.node(node, "body"), "item", name)
            paths.name_scope(scopes.pop(id(member.__globals__)), paths.node(method, "attr", "__globals__"))
