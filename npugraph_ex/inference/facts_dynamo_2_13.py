"""What a shape environment of torch 2.13 demands of a call's sizes: private to torch, so in a module of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugraph_ex.inference.facts_shapes import Ranges, read_ranges

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


def ranges(shape_env: ShapeEnv) -> Ranges:
    """Every size, stride, offset and number of the trace's inputs: fixed, or within which expressions. NoRange if unreadable."""
    tracked: list[Any] = shape_env.tracked_fakes or []
    names: dict[str, int] = {}

    def reference(source: Any) -> str:
        return f"S[{names.setdefault(source.name, len(names))}]"

    helper = shape_env.produce_guards_verbose(
        [item.fake for item in tracked],
        [item.source for item in tracked],
        source_ref=reference,
        input_contexts=[item.symbolic_context for item in tracked],
        ignore_static=False,
        langs=("python",),
    )[0]
    return read_ranges(list(helper.exprs), names)
