"""The example of the vendor's documentation, on the processor: a dataclass and a list as arguments, prompt and decode on one model.

``python vendor_example.py CACHE_DIR [RENDEZVOUS RANK WORLD_SIZE]`` prints one JSON line: where each graph came from, the paths, the results,
whether they equal eager, and whether Dynamo was imported.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from typing import List  # noqa: UP035 -- as in the example

from tests.uncollected import uncollected

with uncollected():
    import torch

    import npugraph_ex


@dataclasses.dataclass
class InputMeta:
    data: torch.Tensor
    is_prompt: bool


class Model(torch.nn.Module):
    def __init__(self, cache_dir):
        super().__init__()
        self.linear1 = torch.nn.Linear(2, 1)
        for param in self.parameters():
            torch.nn.init.ones_(param)
        self.cached_prompt = npugraph_ex.inference.cache_compile(self.prompt, cache_dir=cache_dir)
        self.cached_decode = npugraph_ex.inference.cache_compile(self.decode, cache_dir=cache_dir)

    def forward(self, x: InputMeta, kv: List[torch.Tensor]):  # noqa: UP006 -- as in the example
        if x.is_prompt:
            return self.cached_prompt(x, kv)
        return self.cached_decode(x, kv)

    def _forward(self, x, kv):
        return self.linear1(x.data) + self.linear1(kv[0])

    def prompt(self, x, y):
        return self._forward(x, y)

    def decode(self, x, y):
        return self._forward(x, y)


def main(cache_dir, rendezvous="", rank="0", world_size="1"):
    if rendezvous:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(world_size)
        )
    torch.manual_seed(0)
    x = InputMeta(data=torch.randn(2, 2), is_prompt=True)
    kv = [torch.randn(2, 2)]
    model = Model(cache_dir)
    prompt = model(x, kv)
    x.is_prompt = False
    decode = model(x, kv)
    if rendezvous:
        together = prompt.clone()
        torch.distributed.all_reduce(together)
        assert torch.allclose(together, prompt * int(world_size))
        torch.distributed.destroy_process_group()
    cached = (model.cached_prompt, model.cached_decode)
    told = {
        "origins": [one.origin for one in cached],
        "paths": [str(one.path) for one in cached],
        "equal": torch.equal(prompt, model._forward(x, kv)) and torch.equal(prompt, decode),
        "result": prompt.tolist(),
        "dynamo": "torch._dynamo" in sys.modules,
    }
    print(json.dumps(told))  # noqa: T201 -- what its test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
    gc.freeze()
