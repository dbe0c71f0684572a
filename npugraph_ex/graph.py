"""One compiled graph: what AOT autograd calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule

    from npugraph_ex.engines import Runner
    from npugraph_ex.observe import Observer
    from npugraph_ex.static_kernels import StaticKernels


class CompiledGraph:
    """Called with a list of inputs that it empties, from any thread."""

    def __init__(
        self,
        sizes: SymbolicSizes,
        runner: Runner,
        *,
        static_kernels: StaticKernels | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._sizes = sizes
        self._runner = runner
        self._static_kernels = static_kernels
        self._observers = tuple(observers)

    def __call__(self, inputs: list[Any]) -> object:
        """The graph's outputs."""
        kernels = self._static_kernels
        if kernels is not None:
            if kernels.begin_call():
                self._runner.renew()
            sizes = self._sizes.of(inputs)
            if kernels.claim(sizes):
                return kernels.first_run(sizes, lambda observers: self._runner(inputs, (*self._observers, *observers)))
        return self._runner(inputs, self._observers)


def boxed(graph: CompiledGraph) -> Callable[[list[Any]], object]:
    """``graph`` as AOT autograd wants it: a function that is marked as taking its inputs in one list."""

    def run(inputs: list[Any]) -> object:
        return graph(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001 -- AOT autograd's own mark
    return run


@dataclass(frozen=True, slots=True)
class SymbolicSizes:
    """What can differ between two calls of one graph: the symbolic sizes among its inputs. None for a static graph.

    ``numbers`` are the positions of inputs that are sizes themselves, ``tensors`` (position, axis) of those seen in a tensor alone.
    """

    numbers: tuple[int, ...] = ()
    tensors: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_graph(cls, module: GraphModule) -> SymbolicSizes:
        """Those of a graph with fake values."""
        numbers: list[int] = []
        tensors: list[tuple[int, int]] = []
        known: set[object] = set()
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for position, node in enumerate(placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                numbers.append(position)
                known.add(value.node.expr)
        for position, node in enumerate(placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for axis, size in enumerate(value.shape):
                    if (
                        isinstance(size, torch.SymInt)
                        and size.node.expr not in known
                        and not size.node.expr.free_symbols <= known
                    ):
                        tensors.append((position, axis))
                        known.add(size.node.expr)
        return cls(tuple(numbers), tuple(tensors))

    def of(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Their values in this call, the graph's symbolic inputs first."""
        if not self.numbers and not self.tensors:
            return ()
        return (
            *(int(inputs[position]) for position in self.numbers),
            *(int(inputs[position].shape[axis]) for position, axis in self.tensors),
        )
