"""What one trace of a method is made of: plain data between tracing, judging and storing.

A ``Capture`` is made once, at the first call, by the one module that knows this torch's Dynamo (``dynamo_2_13`` and its like), and
is read by everybody else: ``facts`` and ``calls`` write down what must still hold for it to be used again, ``cacheable`` says why
it may not be kept, ``entry`` turns it into an artifact.  It holds live objects of the process (the model, the arguments), so it is
dropped when the artifact is made.  Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType, FunctionType

    from torch import nn
    from torch.fx import GraphModule
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


@dataclass(frozen=True, slots=True)
class Guarded:
    """One fact that the trace relied on, as Dynamo guards it.

    ``source`` is a Python expression over ``L`` (the call's arguments by name, ``L['self']`` among them) and ``G`` (the function's
    globals), or "" for state of the process. ``kind`` is Dynamo's name of the guard (``EQUALS_MATCH``, ``TENSOR_MATCH``, ...) and
    ``kinds`` the names of what it was turned into. ``value`` is the object that ``source`` gave, if ``has_value``. ``detail`` is what
    the guard was told beyond its source, by parameter name (``attr``, ``key``); another source stands there as its expression.
    """

    source: str
    kind: str
    kinds: tuple[str, ...]
    has_value: bool
    value: Any
    is_global: bool
    code: tuple[str, ...]
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of the graph, in order: its name, where the bytecode takes it from, and its fake tensor or symbolic number."""

    name: str
    source: str
    value: Any


@dataclass(frozen=True, slots=True)
class Capture:
    """One whole graph, traced from ``function`` bound to ``instance`` at the call ``instance.function(*args, **kwargs)``.

    ``scope`` is that call's arguments by name, defaults and closure cells included. ``bytecode`` is the function as Dynamo rewrote
    it: it collects the graph's inputs, calls the global ``graph_name``, replays side effects and builds the result; ``aliases``
    are the globals that it, and the guards' sources, use for modules (alias -> module name), and ``installed`` the names of the
    other globals that Dynamo put beside the user's. ``dynamo_graph`` holds torch calls, ``graph`` the aten operators that will
    run, with views and in-place changes as they are, both with fake values. ``traced`` is every code object that was traced into,
    ``function``'s own among them.
    """

    torch_version: str
    function: FunctionType
    instance: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    scope: Mapping[str, Any]
    dynamic: bool
    bytecode: CodeType
    graph_name: str
    aliases: Mapping[str, str]
    installed: frozenset[str]
    dynamo_graph: GraphModule
    graph: GraphModule
    inputs: tuple[GraphInput, ...]
    guards: tuple[Guarded, ...]
    traced: tuple[CodeType, ...]
    shape_env: ShapeEnv
