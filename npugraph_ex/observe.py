"""Running a graph node by node with observers that see each operator, its inputs and its result.

The same run serves recording and the tensor dump, so that a call never computes, mutates or draws random numbers twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch.fx import GraphModule, Interpreter, Node

if TYPE_CHECKING:
    from collections.abc import Sequence


class Observer(Protocol):
    """Sees each node of a run, after it ran."""

    def saw(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """``args`` and ``kwargs`` are the concrete values that ``node`` got. Must not change or keep them."""
        ...


class _ObservedRun(Interpreter):
    """An Interpreter that shows operators to its observers."""

    def __init__(self, module: GraphModule, observers: Sequence[Observer]) -> None:
        super().__init__(module)
        self._observers = observers
        self.extra_traceback = False  # a user's error stays as it was raised

    def run_node(self, n: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        result = getattr(self, n.op)(n.target, args, kwargs)
        if n.op == "call_function":
            for observer in self._observers:
                observer.saw(n, tuple(args), dict(kwargs), result)
        return result


def run_observed(module: GraphModule, inputs: list[Any], observers: Sequence[Observer]) -> object:
    """The outputs of one run of ``module``; ``inputs`` is emptied, so that inputs are freed as soon as they are not needed."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        for observer in observers:
            observer.saw(node, (), {}, value)
    result: object = _ObservedRun(module, observers).boxed_run(inputs)
    return result
