"""Passes over the FX graph, on any device.

Promise: a built-in pass never changes a result or what aliases what; the user's own passes run before and after the built-in
ones, and an error of theirs is the user's to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugraph_ex.passes.noop import remove_noop_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule

    from npugraph_ex.options import Options

__all__ = ["optimise", "remove_noop_ops"]


def optimise(module: GraphModule, example_inputs: Sequence[Any], options: Options) -> None:
    """Run every pass that ``options`` ask for over ``module``, in place."""
    if options.post_grad_custom_pre_pass is not None:
        options.post_grad_custom_pre_pass(module, example_inputs, options)
    if options.remove_noop_ops:
        remove_noop_ops(module.graph)
    if options.post_grad_custom_post_pass is not None:
        options.post_grad_custom_post_pass(module, example_inputs, options)
    module.graph.lint()
    module.recompile()
