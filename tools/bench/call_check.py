"""What it costs to know that a call fits its compile-cache entry: a model whose graph has 200 tensors as inputs.

In this process and of processor time, so that other work on the machine does not count; traced once, with no file and no daemon.
"""

from __future__ import annotations

import time
import timeit
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from tools.demo.children import Children

LINEARS: Final = 98
"""Each has a weight and a bias; the cache, the counter and the two arguments make it 200."""
REPEAT: Final = 9
CALLS: Final = 200


def call_check(_directory: Path, _children: Children) -> dict[str, str]:
    """The quick check of every call, the whole one of the first call, and what is compared in them."""
    import torch  # noqa: PLC0415 -- the other benches need none

    from npugraph_ex.inference import making  # noqa: PLC0415 -- same
    from npugraph_ex.inference.calls import CallCheck  # noqa: PLC0415 -- same
    from npugraph_ex.inference.entry import read  # noqa: PLC0415 -- same
    from npugraph_ex.inference.facts import Facts  # noqa: PLC0415 -- same
    from npugraph_ex.inference.facts_given import given  # noqa: PLC0415 -- same
    from npugraph_ex.options import Options  # noqa: PLC0415 -- same

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(LINEARS))
            self.cache: torch.Tensor
            self.steps: torch.Tensor
            self.register_buffer("cache", torch.zeros(4, 16))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def step(self, x: torch.Tensor, kv: dict[str, torch.Tensor]) -> torch.Tensor:
            self.steps.add_(1)
            self.cache.copy_(x)
            for layer in self.layers:
                x = layer(x)
            return x + kv["k"] + self.cache

    model = Model().eval()
    function: Any = Model.step
    args = (torch.randn(4, 16), {"k": torch.randn(4, 16)})
    options = Options()
    entry = read(
        making.made(function, model, args, {}, options, given(options, {}, dynamic=False), dynamic=False, decompositions={})
    )
    facts = Facts.parse(entry.facts)
    check = CallCheck(facts, entry.check_code(), function)
    whole = _milliseconds(lambda: CallCheck(facts, entry.check_code(), function)(model, *args))
    if check(model, *args):
        raise SystemExit("the call that was traced does not fit its own entry")
    quick = min(timeit.repeat(lambda: check(model, *args), number=CALLS, repeat=REPEAT, timer=time.process_time)) / CALLS
    tensors = sum(fact.kind == "tensor" for fact in facts.facts)
    return {
        "a call's check, every call (budget for 200 inputs: 250 us)": f"{quick * 1e6:.0f} us for {tensors} tensors, {len(facts.facts)} facts",
        "a call's check, the first call": f"{whole:.1f} ms",
    }


def _milliseconds(run: Any) -> float:
    return min(timeit.repeat(run, number=1, repeat=REPEAT, timer=time.process_time)) * 1000
