"""The method compiled without any cache: for calls that no entry fits, and for methods that none can be kept of."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import config

from npugraph_ex.backend import compile_for_dynamo

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugraph_ex.inference.opening import Plan


def compiled_as_usual(method: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """``torch.compile`` with this package's back end, the same options and decompositions; graph breaks are allowed here.

    A call that meets another thread's trace runs the method itself: torch 2.13 cannot tell the two threads apart, and would raise.
    """
    backend = partial(compile_for_dynamo, options=plan.options, decompositions=plan.decompositions)
    compiled: Callable[..., Any] = torch.compile(method, backend=backend, dynamic=plan.dynamic)

    def call(*args: Any, **kwargs: Any) -> Any:
        with config.patch(error_on_nested_fx_trace=False):  # the setting is each thread's own
            return compiled(*args, **kwargs)

    return call
