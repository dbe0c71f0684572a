"""What must not be kept, and why: each reason has a code that is remembered and a sentence that is told.

Promise: a graph that would answer wrongly in another process, or for the next call, is refused here before it is stored; the
function itself still runs, compiled as usual.
"""

from __future__ import annotations

import dis
import itertools
import re
from enum import StrEnum
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch

from npgxd.errors import NpgxError
from npugraph_ex.random_numbers import draws_random_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import CodeType

    from torch.fx import GraphModule, Node

    from npugraph_ex.inference.capture import Capture


_OPERATORS: Final[Any] = torch._ops  # noqa: SLF001 -- torch has no public names for the classes of operators


class Why(StrEnum):
    """The reason code of a refusal; a stored NOT_CACHEABLE answer carries it."""

    RANDOM = "random"
    GRAPH_BREAK = "graph_break"
    RECOMPILES = "recompiles"
    PROCESS_LOCAL = "process_local"
    CHANGES_CONSTANT = "changes_constant"
    UNKNOWN_CODE = "unknown_code"
    UNSERIALISABLE = "unserialisable"
    NEEDS_BACKWARD = "needs_backward"


class NotCacheable(NpgxError):
    """This function's graph cannot be kept; it runs compiled as usual. ``why`` is the reason's code."""

    code = "NOT_CACHEABLE"
    exit_code = 65

    def __init__(self, message: str, *, hint: str = "", why: str = Why.UNSERIALISABLE, **data: object) -> None:
        super().__init__(message, hint=hint, why=str(why), **data)
        self.why = str(why)


def refuse_unless_cacheable(capture: Capture) -> None:
    """NotCacheable with the first reason found."""
    for judge in (_needs_backward, _changes_constant, _opaque_calls, _process_local, _random):
        judge(capture)


# ---- a backward ---------------------------------------------------------------------------------------------------------------


def _needs_backward(capture: Capture) -> None:
    name = wants_backward(capture.scope)
    if name:
        raise NotCacheable(
            f"argument {name} requires a gradient, and cached graphs have no backward",
            hint="Call it under torch.no_grad(), or use torch.compile for training",
            why=Why.NEEDS_BACKWARD,
        )


def wants_backward(arguments: Mapping[str, Any]) -> str:
    """The name of the first argument that asks for a gradient now; "" if none does.

    The module's own parameters do not count: a model that serves requests is often left as it was made.
    """
    if not torch.is_grad_enabled():
        return ""
    return next((name for name, value in arguments.items() if _asks(value, depth=4)), "")


def _asks(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if depth == 0 or isinstance(value, torch.nn.Module):
        return False
    if isinstance(value, (list, tuple)):
        return any(_asks(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return any(_asks(item, depth - 1) for item in value.values())
    if hasattr(value, "__dataclass_fields__"):
        return any(_asks(getattr(value, name, None), depth - 1) for name in value.__dataclass_fields__)
    return False


# ---- state that the trace reads and writes ------------------------------------------------------------------------------------

_VALUES: Final = frozenset({"EQUALS_MATCH", "CONSTANT_MATCH", "BOOL_MATCH", "NONE_MATCH"})


def _changes_constant(capture: Capture) -> None:
    written = _written_attributes(capture.bytecode)
    for guard in capture.guards:
        name = guard.source.rpartition(".")[2].removeprefix("G['").removesuffix("']")
        if guard.kind in _VALUES and name in written:
            raise NotCacheable(
                f"the call reads {_short(guard.source)} as a constant and changes it, so that no two calls are alike",
                hint="Keep it in a tensor, or pass it as an argument",
                why=Why.CHANGES_CONSTANT,
                source=guard.source,
            )


def _written_attributes(code: CodeType) -> frozenset[str]:
    """Names of the attributes that Dynamo's bytecode sets on what was there before the call.

    It sets them by an instruction, or through ``object.__setattr__`` with the name as a constant after the object.
    """
    steps = list(dis.get_instructions(code))
    calls = any("setattr" in str(name) for name in code.co_names)
    created = _created(steps)
    written = set()
    for before, step in itertools.pairwise(steps):
        names = step.opname in {"STORE_ATTR", "STORE_GLOBAL"} or (calls and step.opname == "LOAD_CONST")
        on_new = before.opname == "LOAD_FAST" and before.argval in created and step.opname != "STORE_GLOBAL"
        if names and isinstance(step.argval, str) and not on_new:
            written.add(step.argval)
    return frozenset(written)


_MAKERS: Final = frozenset({"__new__", "object_new"})
_CALL_LENGTH: Final = 8


def _created(steps: Sequence[dis.Instruction]) -> frozenset[str]:
    """The local variables in which the bytecode keeps objects that it makes itself."""
    made = set()
    for place, step in enumerate(steps):
        near = steps[max(0, place - _CALL_LENGTH) : place]
        if (
            step.opname == "STORE_FAST"
            and near
            and near[-1].opname.startswith("CALL")
            and any(one.argval in _MAKERS for one in near)
        ):
            made.add(str(step.argval))
    return frozenset(made)


def _short(source: str) -> str:
    """``self.n`` for Dynamo's ``L['self'].n``."""
    return re.sub(r"\b[LG]\['(\w+)'\]", r"\1", source)


# ---- what the aten graph does -------------------------------------------------------------------------------------------------

_OWN_NAMESPACES: Final = frozenset(
    {"aten", "prims", "prim", "higher_order", "_c10d_functional", "c10d_functional", "npu", "_operator"}
)


def _opaque_calls(capture: Capture) -> None:
    """Python that ran while tracing but that nobody looked into: ``allow_in_graph``, and decompositions of a library's own."""
    kept = {str(node.target) for node in _calls(capture.graph)}
    for node in _calls(capture.dynamo_graph):
        target = node.target
        if isinstance(target, (_OPERATORS.OpOverload, _OPERATORS.OpOverloadPacket)):
            own = str(target).partition(".")[0] in _OWN_NAMESPACES
            if not own and not any(name.startswith(str(target)) for name in kept):
                raise _unknown(f"operator {target} is taken apart by code of a library that cannot be followed")
        elif isinstance(target, FunctionType) and not _of_torch(target):
            raise _unknown(f"{target.__module__}.{target.__qualname__} is called without being looked into (allow_in_graph)")


def _unknown(message: str) -> NotCacheable:
    return NotCacheable(message, hint="Its code decides the graph, and a change of it could not be noticed", why=Why.UNKNOWN_CODE)


def _of_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in {"torch", "torch_npu", "_operator", "math"}


_LOCAL_TARGETS: Final = ("triton_kernel_wrapper", "wrap_with_", "inductor_compiled_code", "call_torchbind", "auto_functionalized")


def _process_local(capture: Capture) -> None:
    for node in _calls(capture.graph):
        name = str(node.target)
        if any(part in name for part in _LOCAL_TARGETS):
            raise NotCacheable(f"{name} refers to an object by its number in this process", why=Why.PROCESS_LOCAL, operator=name)
        for argument in _leaves((node.args, node.kwargs)):
            if isinstance(argument, (torch.ScriptObject, torch.Generator)) or type(argument).__module__.startswith("triton"):
                kind = f"{type(argument).__module__}.{type(argument).__qualname__}"
                raise NotCacheable(f"{name} is given a {kind} that only this process has", why=Why.PROCESS_LOCAL, operator=name)
    for source in capture.inputs:
        if not isinstance(source.value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            raise NotCacheable(
                f"the graph takes a {type(source.value).__name__}, which only this process has", why=Why.PROCESS_LOCAL
            )


# ---- random numbers -----------------------------------------------------------------------------------------------------------


def _random(capture: Capture) -> None:
    for node in _calls(capture.graph):
        if draws_random_numbers(node):
            raise NotCacheable(
                f"operator {node.target} draws random numbers",
                hint="Call model.eval(), or leave this function to torch.compile",
                why=Why.RANDOM,
                operator=str(node.target),
            )


def _calls(module: GraphModule) -> Iterator[Node]:
    """Every call, in nested graphs too."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (node for node in part.graph.nodes if node.op == "call_function")


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value
