"""Tracing with the Dynamo of torch 2.13: everything here that is private to torch is in this module.

Promise: ``trace`` runs nothing on the device, changes no argument and draws no random number; it returns the whole method as one
graph of aten operators that keep views and in-place changes as they are, or raises what Dynamo raises if that is not possible.

What torch 2.13 was seen to do (nothing of it is documented): ``fullgraph_capture`` gives the rewritten bytecode and the graph;
``build_guards(save=False)`` gives every guard with its value, also for local classes; and ``make_fx`` over the Dynamo graph's own
fake values, without functionalisation, keeps returned mutated inputs, mutated views, one tensor passed twice and overlapping
inputs, which the inner graph of AOT autograd alone does not.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import config, convert_frame, exc
from torch._dynamo.hooks import Hooks
from torch._dynamo.utils import dynamo_timed, get_metrics_context
from torch._dynamo.variables.torch_function import torch_function_mode_stack_state_mgr as modes
from torch._guards import Source, TracingContext, detect_fake_mode, tracing
from torch.fx.experimental.proxy_tensor import make_fx

from npugraph_ex.inference.capture import Capture, GraphInput, Guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FunctionType

    from torch import nn
    from torch._dynamo.types import GuardFilterEntry
    from torch._guards import Guard
    from torch.fx import GraphModule

NOT_TRACEABLE: Final = (exc.Unsupported, exc.UncapturedHigherOrderOpError, exc.UserError, exc.TorchRuntimeError)
"""What ``trace`` raises where Dynamo finds no whole graph; everything else is a fault of the model's own code, or ours."""


class NoGraph(Exception):
    """The method computes nothing with tensors: there is no graph to keep."""


def trace(
    function: FunctionType,
    instance: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Capture:
    """Trace ``instance.function(*args, **kwargs)`` for inference, with symbolic sizes if ``dynamic``.

    Raises one of NOT_TRACEABLE, or NoGraph.
    """
    bound = function.__get__(instance, type(instance))
    before = frozenset(function.__globals__)
    entries: list[GuardFilterEntry] = []

    def keep_all(seen: Any) -> list[bool]:
        entries.extend(seen)
        return [True] * len(seen)

    with _undisturbed(), _shapes(dynamic=dynamic), get_metrics_context(), dynamo_timed("npugraph_ex.cache_compile"), modes:
        captured = convert_frame.fullgraph_capture(bound, args, dict(kwargs))
        if captured.backend_input is None:
            raise NoGraph(f"{function.__qualname__} computes nothing with tensors")
        traced = captured.graph_capture_output
        graph = _aten(captured.backend_input, decompositions)
        with modes.temp_restore_stack():  # guards are tried where they will be checked
            traced.build_guards(function.__code__, hooks=Hooks(guard_filter_fn=keep_all), save=False)
    module = captured.backend_input.graph_module
    return Capture(
        torch_version=str(torch.__version__),
        function=function,
        instance=instance,
        args=args,
        kwargs=kwargs,
        scope=_scope(function, instance, args, kwargs),
        dynamic=dynamic,
        bytecode=traced.bytecode,
        graph_name=captured.backend_input.backend_id,
        aliases=dict(traced.import_sources),
        installed=frozenset(traced.f_globals) - before,
        dynamo_graph=module,
        graph=graph,
        inputs=_inputs(module, traced.output_graph.export_metadata.graph_input_idx_to_local_source),
        guards=tuple(_guarded(entry) for entry in entries),
        traced=tuple(dict.fromkeys((function.__code__, *traced.traced_code))),
        shape_env=traced.output_graph.shape_env,
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """One trace at a time in the process, for inference; Python's and torch's random generators are as they were after it."""
    with convert_frame.compile_lock, torch.no_grad():
        state, seeds = random.getstate(), torch.get_rng_state()
        try:
            yield
        finally:
            random.setstate(state)
            torch.set_rng_state(seeds)


@contextlib.contextmanager
def _shapes(*, dynamic: bool) -> Iterator[None]:
    """As ``torch.compile(dynamic=...)`` sets it."""
    static = {"automatic_dynamic_shapes": False, "assume_static_by_default": True}
    with config.patch({"assume_static_by_default": False} if dynamic else static):
        yield


def _aten(found: convert_frame.BackendInput, decompositions: Mapping[Any, Callable[..., Any]]) -> GraphModule:
    """The Dynamo graph as aten operators: every call as the dispatcher sees it, in order, nothing functionalised."""
    fakes = [node.meta["example_value"] for node in found.graph_module.graph.find_nodes(op="placeholder")]
    mode = (
        detect_fake_mode(fakes) or found.fake_mode
    )  # the values' own: found's is a fresh one for back ends that make new values
    with tracing(TracingContext(mode)), enable_python_dispatcher(), mode:
        traced: GraphModule = make_fx(found.graph_module, decomposition_table=dict(decompositions))(*fakes)
    return traced


def _inputs(module: GraphModule, sources: Mapping[int, Any]) -> tuple[GraphInput, ...]:
    nodes = module.graph.find_nodes(op="placeholder")
    return tuple(
        GraphInput(node.name, sources[at].name if at in sources else _own_source(node), node.meta["example_value"])
        for at, node in enumerate(nodes)
    )


def _own_source(node: Any) -> str:
    """An input that Dynamo added itself, such as a symbolic size."""
    argument = node.meta.get("grapharg")
    return argument.source.name if argument is not None else ""


def _guarded(entry: GuardFilterEntry) -> Guarded:
    guard: Guard = entry.orig_guard
    return Guarded(
        source=guard.name,
        kind=entry.guard_type,
        kinds=tuple(entry.derived_guard_types),
        has_value=entry.has_value,
        value=entry.value if entry.has_value else None,
        is_global=entry.is_global,
        code=tuple(dict.fromkeys(guard.code_list or ())),
        detail=_detail(guard),
    )


def _detail(guard: Guard) -> dict[str, Any]:
    """The arguments that a guard's maker was bound to, other sources as their expressions."""
    if not isinstance(guard.create_fn, functools.partial):
        return {}
    names = list(inspect.signature(guard.create_fn.func).parameters)[2:]  # after the builder and the guard
    given = dict(zip(names, guard.create_fn.args, strict=False)) | guard.create_fn.keywords
    return {name: value.name if isinstance(value, Source) else value for name, value in given.items()}


def _scope(function: FunctionType, instance: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function, follow_wrapped=False).bind(instance, *args, **kwargs)
    bound.apply_defaults()
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return bound.arguments | {name: cell.cell_contents for name, cell in cells}
