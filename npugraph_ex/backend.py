"""The entry point: what Dynamo calls for ``torch.compile(model, backend="npugraph_ex", options={...})``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch._dynamo.backends.common import aot_autograd

from npugraph_ex import reports
from npugraph_ex.compiling import compile_graph
from npugraph_ex.options import SPECS, OptionError, Options, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    return compile_for_dynamo(gm, example_inputs, options=read_options(options), decompositions={})


def compile_for_dynamo(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Options,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """The same for options that were checked already; ``decompositions`` are used beside AOT autograd's own."""
    if options.static_kernel_compile:
        from npgxd.client import current  # noqa: PLC0415 -- nothing of it is wanted where the option is off

        current().look_early()  # the graph's first call says hello; until then there is its compilation
    number = str(reports.next_number())
    compiler = aot_autograd(
        fw_compiler=partial(compile_graph, options=options, name=f"{number}.forward", training=True),
        bw_compiler=partial(compile_graph, options=options, name=f"{number}.backward", training=True),
        inference_compiler=partial(compile_graph, options=options, name=number),
        decompositions=dict(decompositions) or None,
        keep_inference_input_mutations=True,
    )
    compiled: Callable[..., Any] = compiler(gm, example_inputs)
    return compiled
