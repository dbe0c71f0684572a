"""Taking operators out of a graph that change nothing.

An operator goes only if its result has the very shape, strides, dtype and device of its input, known without asking about
symbolic sizes, and only if no output of the graph comes to share memory with an input or another output because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

if TYPE_CHECKING:
    from collections.abc import Callable

_VIEWS: Final = {"slice", "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "alias", "squeeze", "unsqueeze"}
_INTEGRAL: Final = {"ceil", "floor", "round", "trunc"}
_INTEGERS: Final = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def _always(_node: Node) -> bool:
    return True


def _ones(node: Node) -> bool:
    return all(isinstance(item, int) and item == 1 for item in _list(node.args[1]))


def _zeros(node: Node) -> bool:
    return all(isinstance(item, int) and item == 0 for item in _list(node.args[1]))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _whole_slice(node: Node) -> bool:
    step = node.args[4] if len(node.args) > 4 else node.kwargs.get("step", 1)  # noqa: PLR2004 -- its place in the schema
    return bool(step == 1)


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
    "pow": lambda node: node.args[1] in (1, 1.0),
    "convert_element_type": _always,
    "_to_copy": _always,
    "clone": _always,
}


def remove_noop_ops(graph: Graph) -> int:
    """Take them out; returns how many."""
    copies_may_go = not any(_mutates(node) for node in graph.nodes)
    outputs = set(graph.output_node().all_input_nodes)
    removed = 0
    for node in list(graph.nodes):
        source = _source(node)
        if source is None or not _same_value(node.meta.get("val"), source.meta.get("val")):
            continue
        if _is_noop_view(node):
            if node in outputs and (source.op == "placeholder" or source in outputs):
                continue  # an output would become an input, or another output
        elif not (copies_may_go and _is_noop_copy(node, source) and not _reaches(node, outputs)):
            continue  # the copy protects from a later change, or an output from sharing memory
        node.replace_all_uses_with(source)
        if node in outputs:
            outputs.add(source)
        graph.erase_node(node)
        removed += 1
    return removed


def _is_noop_view(node: Node) -> bool:
    name = _name(node)
    return name in _VIEWS and _VIEW_CHECKS.get(name, _always)(node)


def _is_noop_copy(node: Node, source: Node) -> bool:
    name = _name(node)
    if name in _INTEGRAL:
        return len(node.args) == 1 and not node.kwargs and source.meta["val"].dtype in _INTEGERS
    return name in _COPY_CHECKS and _COPY_CHECKS[name](node)


def _reaches(node: Node, outputs: set[Node]) -> bool:
    """Whether an output is, or may be, a view of what ``node`` returns."""
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        if one in outputs:
            return True
        fresh = [user for user in one.users if user not in seen and _may_alias(user)]
        seen.update(fresh)
        waiting.extend(fresh)
    return False


def _may_alias(node: Node) -> bool:
    """Whether ``node``'s result may share memory with its inputs."""
    target = node.target
    if not isinstance(target, OpOverload):
        return node.op == "call_function"
    return _name(node) in _VIEWS or any(item.alias_info is not None for item in target._schema.returns)  # noqa: SLF001


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
    if node.op != "call_function" or getattr(node.target, "__module__", "") == "_operator":
        return False
    return not isinstance(node.target, OpOverload) or bool(node.target._schema.is_mutable)  # noqa: SLF001


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
