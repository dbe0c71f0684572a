"""Taking operators out of a graph that change nothing.

An operator goes only if its result has the very shape, strides, dtype and device of its input, known without asking about symbolic
sizes, and only if no output of the graph comes to share memory with an input or another output because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten

_VIEWS: Final = {"slice", "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "alias", "squeeze", "unsqueeze"}
_INTEGRAL: Final = {"ceil", "floor", "round", "trunc"}


def _ones(node: Node) -> bool:
    return all(isinstance(item, int) and item == 1 for item in _list(node.args[1]))


def _zeros(node: Node) -> bool:
    return all(isinstance(item, int) and item == 0 for item in _list(node.args[1]))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _whole_slice(node: Node) -> bool:
    step = node.args[4] if len(node.args) > 4 else node.kwargs.get("step", 1)  # noqa: PLR2004 -- its place in the schema
    return step == 1


def _is_identity_order(node: Node) -> bool:
    return [int(axis) for axis in _list(node.args[1])] == list(range(len(_list(node.args[1]))))


def _same_axes(node: Node) -> bool:
    return node.args[1] == node.args[2]


_VIEW_CHECKS: Final[dict[str, Callable[[Node], bool]]] = {
    "slice": _whole_slice,
    "permute": _is_identity_order,
    "transpose": _same_axes,
}
_COPY_CHECKS: Final[dict[str, Callable[[Node], bool]]] = {
    "repeat": _ones,
    "constant_pad_nd": _zeros,
    "cat": lambda node: len(_list(node.args[0])) == 1,
    "pow": lambda node: isinstance(node.args[1], (int, float)) and node.args[1] == 1,
    "convert_element_type": lambda _node: True,
    "_to_copy": lambda _node: True,
    "clone": lambda _node: True,
}


def remove_noop_ops(graph: Graph) -> int:
    """Take them out; returns how many."""
    copies_may_go = not any(_mutates(node) for node in graph.nodes)
    outputs = set(graph.output_node().all_input_nodes)
    removed = 0
    for node in list(graph.nodes):
        source = _source(node)
        if source is None or not _changes_nothing(node, source, copies_may_go=copies_may_go):
            continue
        if node in outputs and (source.op == "placeholder" or source in outputs or _name(node) not in _VIEWS):
            continue  # an output would become an input, or another output
        node.replace_all_uses_with(source)
        if node in outputs:
            outputs.add(source)
        graph.erase_node(node)
        removed += 1
    return removed


def _changes_nothing(node: Node, source: Node, *, copies_may_go: bool) -> bool:
    if not _same_value(node.meta.get("val"), source.meta.get("val")):
        return False
    name = _name(node)
    if name in _VIEWS:
        return _VIEW_CHECKS.get(name, lambda _node: True)(node)
    if not copies_may_go:
        return False  # a copy protects from a later change of what it was made from
    if name in _INTEGRAL:
        return len(node.args) == 1 and not node.kwargs and not source.meta["val"].dtype.is_floating_point
    return name in _COPY_CHECKS and _COPY_CHECKS[name](node)


def _name(node: Node) -> str:
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, OpOverload) else ""


def _source(node: Node) -> Node | None:
    """The one tensor that ``node`` is made from."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or node.target.namespace not in {"aten", "prims"}:
        return None
    first = node.args[0] if node.args else None
    if isinstance(first, (list, tuple)) and len(first) == 1:
        first = first[0]
    return first if isinstance(first, Node) else None


def _mutates(node: Node) -> bool:
    return node.op == "call_function" and (not isinstance(node.target, OpOverload) or node.target._schema.is_mutable)  # noqa: SLF001


def _same_value(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if one.dtype != other.dtype or one.device != other.device or one.layout != other.layout or one.layout != torch.strided:
        return False
    if one.dim() != other.dim() or one.is_conj() != other.is_conj() or one.is_neg() != other.is_neg():
        return False
    pairs = [*zip(one.shape, other.shape, strict=True), *zip(one.stride(), other.stride(), strict=True)]
    return all(_same_size(a, b) for a, b in [*pairs, (one.storage_offset(), other.storage_offset())])


def _same_size(one: Any, other: Any) -> bool:
    """Equal for certain; asking a symbolic size directly would add a guard."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    if isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt):
        return bool(one.node.expr == other.node.expr)
    return False
