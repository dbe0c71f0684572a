"""Writing down what a trace relied on, while its model and its arguments are at hand.

Promise: ``collect`` gives facts that hold for the very call that was traced, or raises NotCacheable; equal models give equal facts
in every process.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from npgxd.client.codes import class_described, class_name, code_digest, own_names
from npgxd.client.versioned import is_versioned
from npugraph_ex.inference.cacheable import NotCacheable, Why
from npugraph_ex.inference.facts import ClassFact, Fact, Facts
from npugraph_ex.inference.facts_code import (
    compares_identity,
    find_by_name,
    names_used,
    shadow_drafts,
    texts_of,
    uncovered,
)
from npugraph_ex.inference.facts_guards import Draft, drafts
from npugraph_ex.inference.facts_paths import MISSING, NoPath, Paths, Roots, follow, spoken
from npugraph_ex.inference.facts_settings import MODES, OTHER_MODE, TRANSFORMS, settings_now, settings_wanted, versions_now
from npugraph_ex.inference.facts_shapes import Ranges, used, without
from npugraph_ex.inference.facts_tensors import TensorFact, aliases, tensor_fact
from npugraph_ex.inference.facts_values import Unencodable, encode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from npugraph_ex.inference.capture import Capture

_INTERCHANGEABLE: Final = (int, float, complex, str, bytes, tuple, type, FunctionType, ModuleType, type(None))
"""Whose identity says no more than their value, which is a fact of its own."""
_UNCLASSED: Final = "builtins"
"""The module whose classes need no code facts: nothing of theirs can be replaced."""


def collect(capture: Capture, ranges: Ranges, made_from: Mapping[str, Any]) -> Facts:
    """Everything that the trace relied on. ``ranges`` is from the same torch's ``facts_dynamo``, ``made_from`` from ``facts_given``."""
    own = capture.function.__code__.co_varnames[0]
    paths = Paths(capture.function, capture.aliases)
    drafted = drafts(capture, paths)
    numbered = [_number(reference.source, paths) for reference in ranges.references]
    values = _values(capture, paths, own)
    names = names_used(capture.traced)
    writer = _Writer(capture, paths, values, own, names)
    drafted += _tensor_class_drafts(drafted, values)
    drafted += _code_drafts(capture, drafted, writer, paths)
    drafted += _own_drafts(drafted, values)
    drafted += shadow_drafts(capture.traced, _scopes(capture, paths, values))
    writer.values = values = _values(capture, paths, own)
    offsets = _names_offsets(capture)
    sizes = _Sizes(ranges, numbered, _idle(capture, ranges, offsets=offsets), offsets=offsets)
    drafted = list(dict.fromkeys([*drafted, *(Draft("value", node) for node in sorted(sizes.constants))]))
    facts = [writer.fact(draft, sizes) for draft in drafted]
    facts += _about_several(capture, facts, values, sizes)
    devices = _devices(capture)
    return Facts(
        module=capture.function.__module__,
        own=own,
        code=code_digest(capture.function.__code__),
        nodes=paths.nodes,
        facts=sorted(facts, key=_order),
        classes=[ClassFact(class_name(kind), writer.described[kind]) for kind in writer.described],
        names=sorted(names),
        devices=devices,
        settings=_settings(capture, devices, names, values),
        versions=versions_now(devices),
        made_from=made_from,
    )


def _own_drafts(drafted: Sequence[Draft], values: Sequence[Any]) -> list[Draft]:
    """What an object of a user's class has of its own hides what its class has: Dynamo looks at that for modules alone."""
    typed = dict.fromkeys(draft.node for draft in drafted if draft.kind == "type")
    return [Draft("own", node) for node in typed if _is_users(type(values[node])) and hasattr(values[node], "__dict__")]


def _tensor_class_drafts(drafted: Sequence[Draft], values: Sequence[Any]) -> list[Draft]:
    """One tensor of each class, for the methods of that class: users give ``torch.Tensor`` methods of their own, too."""
    first = {type(values[draft.node]): draft.node for draft in reversed(drafted) if draft.kind == "tensor"}
    return [Draft("type", node) for node in sorted(first.values())]


def _is_users(kind: type) -> bool:
    return not is_versioned(getattr(sys.modules.get(kind.__module__), "__file__", "") or "")


def _settings(capture: Capture, devices: Sequence[str], names: frozenset[str], values: Sequence[Any]) -> dict[str, Any]:
    """NotCacheable under a mode that changes what every torch function does: only this process has it."""
    texts = texts_of(capture.traced) | {value for value in values if type(value) is str}
    settings = settings_now(settings_wanted(devices, names, texts))
    if OTHER_MODE in settings[MODES].split() or settings[TRANSFORMS]:
        raise NotCacheable("it was called inside a torch function mode or a functorch transform", why=Why.PROCESS_LOCAL)
    return settings


def _scopes(capture: Capture, paths: Paths, values: Sequence[Any]) -> dict[int, Mapping[str, Any]]:
    """The globals that the user's own traced code may have looked names up in, by node."""
    found = {id(capture.function.__globals__): (paths.node(-1, "globals", ""), capture.function.__globals__)}
    for node, value in enumerate(values):
        if isinstance(value, FunctionType) and not is_versioned(value.__code__.co_filename):
            found.setdefault(id(value.__globals__), (paths.node(node, "attr", "__globals__"), value.__globals__))
        elif isinstance(value, ModuleType) and not is_versioned(getattr(value, "__file__", None)):
            found.setdefault(id(vars(value)), (paths.node(node, "body"), vars(value)))
    return dict(found.values())


_FIRST: Final = ("type", "tensor")


def _order(fact: Fact) -> tuple[bool, int, bool, str, str]:
    """A place before what lies in it, and its type before its content: so the first misfit is the one that explains the others."""
    return fact.node < 0, fact.node, fact.kind not in _FIRST, fact.kind, repr(fact.data)


def _number(source: str, paths: Paths) -> int | None:
    """The node that a range speaks of; None for one that Dynamo made itself."""
    try:
        return paths.of(source)
    except NoPath:
        return None


def _values(capture: Capture, paths: Paths, own: str) -> list[Any]:
    values = follow(paths.nodes, Roots(capture.function, capture.scope))
    for node, value in enumerate(values):
        if value is MISSING:
            place = spoken(paths.nodes, node, capture.function.__module__, own)
            raise NotCacheable(f"the trace read {place}, which is not found there again", why=Why.UNSERIALISABLE)
    return values


def _code_drafts(capture: Capture, drafted: Sequence[Draft], writer: _Writer, paths: Paths) -> list[Draft]:
    read = [writer.values[draft.node] for draft in drafted if draft.kind in {"value", "type"}]
    functions = [capture.function, *(value for value in read if not isinstance(value, type))]
    classes = dict.fromkeys(value if isinstance(value, type) else type(value) for value in read)
    left = uncovered(capture.traced, functions, classes, writer.names)
    return find_by_name(left, paths)


class _Writer:
    """Turns drafts into facts, and keeps the classes that they are about."""

    def __init__(self, capture: Capture, paths: Paths, values: list[Any], own: str, names: frozenset[str]) -> None:
        self.values = values
        self.names = names
        self.described: dict[type, Sequence[Any]] = {}
        self._numbers: dict[type, int] = {}
        self._paths = paths
        self._module = capture.function.__module__
        self._own = own

    def fact(self, draft: Draft, sizes: _Sizes) -> Fact:
        """One fact with its value. NotCacheable if that means nothing elsewhere."""
        try:
            return Fact(draft.kind, draft.node, self._data(draft, self.values[draft.node], sizes))
        except Unencodable as error:
            place = spoken(self._paths.nodes, draft.node, self._module, self._own)
            raise NotCacheable(f"the trace read {place}, and {error}", why=Why.UNSERIALISABLE, place=place) from None

    def _data(self, draft: Draft, value: Any, sizes: _Sizes) -> Any:  # noqa: PLR0911 -- one case a kind
        match draft.kind:
            case "value":
                self._class_of(value)
                return encode(value)
            case "type":
                return self._class_of(type(value))
            case "tensor":
                return sizes.loosen(draft.node, tensor_fact(value)).plain()
            case "len" | "keys":
                return len(value) if draft.kind == "len" else [encode(key) for key in value]
            case "own":
                return own_names(value, self.names)
            case "has":
                return [draft.detail, hasattr(value, draft.detail)]
            case "contains":
                key, there = draft.detail
                return [encode(key), there]
        return draft.detail

    def _class_of(self, kind: Any) -> int:
        if not isinstance(kind, type):
            return -1
        if kind not in self._numbers:
            self._numbers[kind] = len(self._numbers)
            plain = kind.__module__ == _UNCLASSED
            self.described[kind] = [] if plain else class_described(kind, self.names)
        return self._numbers[kind]


class _Sizes:
    """Which sizes, strides and offsets are fixed, and what the others must fulfil."""

    def __init__(self, ranges: Ranges, nodes: Sequence[int | None], idle: Collection[int], *, offsets: bool) -> None:
        self._offsets = offsets
        self._fixed: dict[tuple[int | None, str, int | None], int] = {}
        self._free: set[tuple[int, str, int | None]] = set()
        self.facts: list[Fact] = []
        for number, reference in enumerate(ranges.references):
            node = nodes[number]
            if node is None and reference.part == "value":
                raise _unfindable(reference.source)
            place = (node, reference.part, reference.axis)
            if number in ranges.fixed:
                self._fixed[place] = ranges.fixed[number]
            elif node is not None:
                self._free.add((node, reference.part, reference.axis))
        self.constants = {node for number, node in enumerate(nodes) if node is not None and _is_constant(number, ranges)}
        expressions = without(ranges.expressions, idle)
        self.facts = [fact for text in expressions if (fact := _range(text, ranges, nodes)) is not None]

    def loosen(self, node: int, exact: TensorFact) -> TensorFact:
        """``exact`` with None for every part that the trace did not fix."""

        def of(part: str, sizes: Sequence[int | None]) -> tuple[int | None, ...]:
            return tuple(None if (node, part, axis) in self._free else size for axis, size in enumerate(sizes))

        plain = exact.plain()
        offset = exact.offset if self._offsets and (node, "storage_offset", None) not in self._free else None
        return TensorFact.parse([*plain[:-3], of("size", exact.sizes), of("stride", exact.strides), offset])


def _is_constant(number: int, ranges: Ranges) -> bool:
    """Whether it is an argument's or attribute's number that the trace took as it was."""
    if ranges.references[number].part != "value":
        return False
    return number in ranges.fixed or any(
        text.startswith(f"S[{number}] == ") and used(text) == [number] for text in ranges.expressions
    )


def _unfindable(source: str) -> NotCacheable:
    return NotCacheable(f"{source} must stay in a range, and another process could not find it", why=Why.UNSERIALISABLE)


def _range(text: str, ranges: Ranges, nodes: Sequence[int | None]) -> Fact | None:
    """One expression with its references numbered from 0. NotCacheable if it speaks of something that cannot be found again."""
    numbers = used(text)
    if not numbers:
        return None
    for place, number in enumerate(numbers):
        text = text.replace(f"S[{number}]", f"S[_{place}]")
    places = []
    for number in numbers:
        reference, node = ranges.references[number], nodes[number]
        if node is None:
            raise _unfindable(reference.source)
        places.append([node, reference.part, reference.axis])
    return Fact("range", -1, [text.replace("S[_", "S["), places])


def _about_several(capture: Capture, facts: Sequence[Fact], values: Sequence[Any], sizes: _Sizes) -> list[Fact]:
    nodes = sorted({fact.node for fact in facts if fact.kind == "tensor"})
    found = list(sizes.facts) + _distinct(nodes, values)
    if any(map(compares_identity, capture.traced)):
        objects = {fact.node for fact in facts if fact.kind == "type"}
        found += _distinct(sorted(node for node in objects if not isinstance(values[node], _INTERCHANGEABLE)), values)
    if len(nodes) > 1 and _changes_something(capture):
        found.append(Fact("storage", -1, [nodes, aliases([values[node] for node in nodes])]))
    return found


def _distinct(nodes: Sequence[int], values: Sequence[Any]) -> list[Fact]:
    """That these are as many objects as they were: Dynamo guards which are one, and takes for granted which are not."""
    once = {id(values[node]): node for node in reversed(nodes)}
    return [Fact("distinct", -1, sorted(once.values()))] if len(once) > 1 else []


def _changes_something(capture: Capture) -> bool:
    return any(_is_mutable(node.target) for node in capture.graph.graph.nodes)


def _is_mutable(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _names_offsets(capture: Capture) -> bool:
    """Whether the graph depends on where in its memory a tensor begins: no other operator looks, whatever a trace compared it with."""
    taken = any("storage_offset" in source for source in _taken(capture))
    return taken or any("as_strided" in str(node.target) for node in capture.graph.graph.nodes)


def _taken(capture: Capture) -> list[str]:
    """Where the inputs that the graph does anything with come from."""
    places = capture.graph.graph.find_nodes(op="placeholder")
    return [item.source for item, node in zip(capture.inputs, places, strict=True) if node.users]


def _idle(capture: Capture, ranges: Ranges, *, offsets: bool) -> set[int]:
    """The references that nothing depends on: a view's base, and offsets, unless the graph takes or names them."""
    bases = any("._base" in source for source in _taken(capture))
    return {
        number
        for number, reference in enumerate(ranges.references)
        if (reference.part == "storage_offset" and not offsets) or ("._base" in reference.source and not bases)
    }


def _devices(capture: Capture) -> list[str]:
    kinds = {item.value.device.type for item in capture.inputs if isinstance(item.value, torch.Tensor)}
    kinds |= {
        node.meta["val"].device.type for node in capture.graph.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)
    }
    return sorted(kinds)
