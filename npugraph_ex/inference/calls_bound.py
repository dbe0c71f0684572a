"""Binding the quick check of calls: the globals that its text uses, as a whole check has just found them.

Promise: nothing of a call is kept but what the next one is compared with: types, constants, functions, modules; no tensor, and no object
that belongs to one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from npugraph_ex.inference.calls_source import TENSOR_PARTS, parameters, prefix_beside, shared_constants
from npugraph_ex.inference.facts_paths import scalar
from npugraph_ex.inference.facts_tensors import TensorFact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from npugraph_ex.inference.facts import Fact, Facts
    from npugraph_ex.inference.facts_paths import Node


@dataclass(frozen=True, slots=True)
class Bound:
    """What the text uses beside constants: the function that is called, and how to compare what has no short phrase."""

    function: FunctionType
    differs: Callable[[int, object], bool]
    keys_differ: Callable[[int, Any], bool]
    holds_otherwise: Callable[[int, Any], bool]
    settings: Callable[[], bool]
    storages: Callable[[tuple[Any, ...]], list[int]]
    format: Callable[[torch.Tensor], int | None]


def bound_constants(facts: Facts, values: Sequence[Any], bound: Bound) -> dict[str, Any]:
    """The globals of the check: what a whole check has just found at each place."""
    code = bound.function.__code__
    own = prefix_beside(parameters(code))
    shared = shared_constants(facts)
    constants: dict[str, Any] = {
        "math": math,
        f"{own}function": bound.function,
        f"{own}code": code,
        f"{own}defaults": bound.function.__defaults__,
        f"{own}kwdefaults": bound.function.__kwdefaults__,
        f"{own}globals": bound.function.__globals__,
        f"{own}cells": dict(zip(code.co_freevars, bound.function.__closure__ or (), strict=True)),
        f"{own}scalar": scalar,
        f"{own}differs": bound.differs,
        f"{own}keys_differ": bound.keys_differ,
        f"{own}holds_otherwise": bound.holds_otherwise,
        f"{own}settings": bound.settings,
        f"{own}storages": bound.storages,
        f"{own}format": bound.format,
        f"{own}methods_differ": _methods(facts, values),
    }
    for number, node in enumerate(facts.nodes):
        if _is_bound(node):
            constants[f"{own}k{number}"] = values[number]
    for fact in facts.facts:
        if fact.kind == "tensor":
            value, tensor = values[fact.node], TensorFact.parse(fact.data)
            live = {"kind": type(value), "dtype": value.dtype, "device": value.device, "layout": value.layout}
            constants |= {f"{own}{part}{shared[part, getattr(tensor, part)]}": live[part] for part in TENSOR_PARTS}
    for number, fact in enumerate(facts.facts):
        constants |= {own + name: value for name, value in _of_fact(own, number, fact, values)}
    return constants


def _is_bound(node: Node) -> bool:
    base, step, _key = node
    return base < 0 and step in {"module", "builtin", "function"}


def _of_fact(own: str, number: int, fact: Fact, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if fact.node < 0:
        return
    value = values[fact.node]
    match fact.kind:
        case "type":
            yield f"t{fact.data}", type(value)
        case "value":
            yield f"k{own}{number}", value
            if isinstance(value, FunctionType):
                yield f"c{number}", value.__code__
        case "keys":
            yield f"k{own}{number}", list(value)
        case "own":
            yield f"k{own}{number}", frozenset(value.__dict__)


def _methods(facts: Facts, values: Sequence[Any]) -> Callable[[], bool]:
    """Whether a method that the trace could reach was replaced since: found on the class as its instances find it."""
    classes = {fact.data: type(values[fact.node]) for fact in facts.facts if fact.kind == "type"}
    watched = [
        (kind, name, found)
        for number, kind in sorted(classes.items())
        for name in sorted({name for _base, body in facts.classes[number].described for name, _code in body})
        if not (name.startswith("__") and kind.__module__.partition(".")[0] == "torch")
        if (found := getattr(kind, name, None)) is getattr(kind, name, None)
    ]
    return lambda: any(getattr(kind, name, None) is not found for kind, name, found in watched)
