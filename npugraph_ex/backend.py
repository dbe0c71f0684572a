"""The entry point: what Dynamo calls for ``torch.compile(model, backend="npugraph_ex", options={...})``."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from torch._dynamo.backends.common import aot_autograd

from npugraph_ex import _notices, reports
from npugraph_ex.engines import Engine, engine_for
from npugraph_ex.graph import CompiledGraph, SymbolicSizes, boxed
from npugraph_ex.options import SPECS, OptionError, Options, read_options, unmet
from npugraph_ex.passes import optimise
from npugraph_ex.static_kernels import StaticKernels
from npugraph_ex.tensor_dump import TensorDump

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch.fx import GraphModule


def npugraph_ex(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, object] | None = None,
    **others: object,
) -> Callable[..., Any]:
    """Compile one Dynamo graph: inference, or forward and backward each a graph of their own.

    OptionError if ``options`` holds anything that is not documented, before anything is compiled.
    """
    if others:
        raise OptionError(
            f"torch.compile({next(iter(others))}=...) is not supported by npugraph_ex",
            hint="Give options={...} with any of: " + ", ".join(name for name in SPECS if not name.startswith("_")),
        )
    checked = read_options(options)
    number = str(reports.next_number())
    compiler = aot_autograd(
        fw_compiler=partial(compile_graph, options=checked, name=f"{number}.forward"),
        bw_compiler=partial(compile_graph, options=checked, name=f"{number}.backward"),
        inference_compiler=partial(compile_graph, options=checked, name=number),
        keep_inference_input_mutations=True,
    )
    compiled: Callable[..., Any] = compiler(gm, example_inputs)
    return compiled


def compile_graph(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Options,
    name: str,
    build_dir: Path | None = None,
) -> Callable[[list[Any]], object]:
    """Make one functional aten graph ready to run. ``build_dir`` is where a compile cache keeps it, if one does."""
    engine = engine_for(module)
    _tell_unmet(options, engine)
    original = options.dump_tensor_data and options.data_dump_stage == "original"
    if not original:
        optimise(module, example_inputs, options)
    kernels = StaticKernels(name, engine, options, build_dir=build_dir) if options.static_kernel_compile else None
    observers = (TensorDump(options.data_dump_dir, graph=name),) if options.dump_tensor_data else ()
    graph = CompiledGraph(SymbolicSizes(module), engine.runner(module, options), static_kernels=kernels, observers=observers)
    return boxed(graph)


def _tell_unmet(options: Options, engine: Engine) -> None:
    for sentence in unmet(options, engine.device, engine.capabilities):
        _notices.once(("unmet", sentence), logging.WARNING, sentence)
