"""From an aten graph to something that runs: the part of the backend that needs no Dynamo.

Promise: a graph that was just traced and one that was read from a compile cache go the same way: the same engine, the same static
kernels, the same observers; what a device cannot do of the user's options is said once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from npugraph_ex import _notices
from npugraph_ex.engines import Engine, engine_for
from npugraph_ex.graph import CompiledGraph, SymbolicSizes, boxed
from npugraph_ex.option_off import OFF
from npugraph_ex.options import Options, unmet
from npugraph_ex.passes import optimise
from npugraph_ex.program import ModuleProgram, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch.fx import GraphModule

    from npugraph_ex.observe import Observer
    from npugraph_ex.recording.recorded import RecordMemory
    from npugraph_ex.static_kernels import StaticKernels


def compile_graph(
    module: GraphModule, example_inputs: Sequence[Any], *, options: Options, name: str, training: bool = False
) -> Callable[[list[Any]], object]:
    """Make one functional aten graph ready to run, as AOT autograd wants it; ``training``: one of a forward and backward pair."""
    rewrite(module, example_inputs, options)
    sizes = SymbolicSizes.of_graph(module)
    return boxed(ready(ModuleProgram(module), engine_for(module), sizes, options=options, name=name, training=training))


def rewrite(module: GraphModule, example_inputs: Sequence[Any], options: Options) -> None:
    """Run the passes that ``options`` ask for, in place; none where the original graph is to be dumped."""
    if not (options.dump_tensor_data and options.data_dump_stage == "original"):
        optimise(module, example_inputs, options)


def ready(
    program: Program,
    engine: Engine,
    sizes: SymbolicSizes,
    *,
    options: Options,
    name: str,
    build_dir: Path | None = None,
    memory: RecordMemory | None = None,
    training: bool = False,
) -> CompiledGraph:
    """A rewritten graph on its engine. ``build_dir`` and ``memory`` are a compile cache's: where it keeps the graph, and its records."""
    _tell_unmet(options, engine)
    kernels: StaticKernels | None = None
    observers: tuple[Observer, ...] = ()
    if options.static_kernel_compile:
        from npugraph_ex.static_kernels import StaticKernels  # noqa: PLC0415 -- a start from the compile cache need not import it

        kernels = StaticKernels(name, engine, options, program, build_dir=build_dir, memory=memory)
        OFF.take_back()
    else:
        OFF.tell(name)
    if options.dump_tensor_data:
        from npugraph_ex.tensor_dump import TensorDump  # noqa: PLC0415 -- the same

        observers = (TensorDump(options.data_dump_dir, graph=name),)
    runner = engine.runner(program, options, name=name, training=training)
    return CompiledGraph(sizes, runner, static_kernels=kernels, observers=observers)


def _tell_unmet(options: Options, engine: Engine) -> None:
    for sentence in unmet(options, engine.device, engine.capabilities):
        _notices.once(("unmet", sentence), logging.WARNING, sentence)
