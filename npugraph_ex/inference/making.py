"""From one call of a method to the bytes of an entry: trace, judge, write down."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from npugraph_ex.inference import entry, tracing
from npugraph_ex.inference.cacheable import refuse_unless_cacheable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FunctionType

    from torch import nn

    from npugraph_ex.options import Options


def made(
    function: FunctionType,
    instance: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Options,
    made_from: Mapping[str, Any],
    *,
    dynamic: bool,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> bytes:
    """Nothing of the method is run: its state is as it was. NotCacheable where an entry must not be kept."""
    collect = importlib.import_module("npugraph_ex.inference.facts_collect")  # what only making needs is not imported to load
    with tracing.nobody_else_traces():
        capture = tracing.trace(function, instance, args, kwargs, dynamic=dynamic, decompositions=decompositions)
        refuse_unless_cacheable(capture)
        facts = collect.collect(capture, tracing.ranges(capture), made_from)
    return entry.made(capture, facts, options)
