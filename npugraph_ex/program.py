"""What an engine runs: one graph, as code for every call and as nodes for a call that is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch.fx.graph import _BoxedCodeGen

if TYPE_CHECKING:
    from torch.fx import GraphModule


class Program(Protocol):
    """One graph."""

    def run(self, inputs: list[Any]) -> object:
        """Its outputs. ``inputs`` is emptied: each is freed as soon as the graph needs it no more."""
        ...

    def module(self) -> GraphModule:
        """The same graph as nodes; made at the first call where it was read from a compile cache."""
        ...


class ModuleProgram:
    """The generated code of a graph that was just compiled."""

    def __init__(self, module: GraphModule) -> None:
        module.graph.set_codegen(_BoxedCodeGen())
        module.recompile()
        self._module = module

    def run(self, inputs: list[Any]) -> object:
        """See ``Program``."""
        result: object = self._module(inputs)
        return result

    def module(self) -> GraphModule:
        """See ``Program``."""
        return self._module
