"""One start of the example decoder, as a process: ``python -m tools.bench.cache_start WAY LAYERS DIRECTORY NAME``.

Prints one JSON line: milliseconds from the built model to its first output (imports included that the way needs), where they went,
and what further calls cost; the time that only this measuring took is told apart.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own habit
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH: Final = 64
HEADS: Final = 4
LENGTH: Final = 32
CALLS: Final = 30


class Block(nn.Module):
    """One layer with a KV cache that is updated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.cache: torch.Tensor
        self.register_buffer("cache", torch.zeros(2, 4, LENGTH, WIDTH))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """One decode step."""
        batch = x.shape[0]
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        self.cache.index_copy_(2, position, torch.stack((key, value)).unsqueeze(2))
        keys, values = self.cache.view(2, batch, LENGTH, HEADS, -1).transpose(2, 3)
        attended = F.scaled_dot_product_attention(query.view(batch, HEADS, 1, -1), keys, values)
        x = x + self.out(attended.reshape(batch, WIDTH))
        after: torch.Tensor = x + self.down(F.silu(self.up(x)))
        return after


class Decoder(nn.Module):
    """The example decoder."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def step(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The next token's logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, position)
        logits: torch.Tensor = self.head(x)
        return logits


def main(way: str, layers: str, directory: str, name: str) -> None:
    """Start once, in one way."""
    torch.manual_seed(0)
    model = Decoder(int(layers)).eval()
    tokens, position = torch.randint(0, 256, (4,)), torch.tensor([3])
    parts: dict[str, float] = {}
    with torch.no_grad():
        begun = time.perf_counter()
        step = _WAYS[way](model, Path(directory), name, (tokens, position), parts)
        before = time.perf_counter()
        step(tokens, position)
        ready = time.perf_counter()
        parts["first call"] = (ready - before) * 1000
        told = {"ready_ms": (ready - begun) * 1000, "parts": parts, "call_us": _per_call(lambda: step(tokens, position))}
        told |= {"origin": getattr(step, "origin", way), "reason": getattr(step, "reason", ""), "check_us": 0.0, "inputs": 0}
        if check := getattr(getattr(step, "_opened", None), "check", None):
            told["check_us"] = _per_call(lambda: check(model, tokens, position))
            told["inputs"] = len(list(model.parameters())) + len(list(model.buffers())) + 2
    told["measuring_ms"] = (time.perf_counter() - ready) * 1000
    print(json.dumps(told), flush=True)


def _eager(model: Decoder, _directory: Path, _name: str, _inputs: Any, _parts: dict[str, float]) -> Callable[..., Any]:
    return model.step


def _cold(model: Decoder, _directory: Path, _name: str, _inputs: Any, _parts: dict[str, float]) -> Callable[..., Any]:
    step: Callable[..., Any] = torch.compile(model.step, backend="npugraph_ex", dynamic=False, fullgraph=True)
    return step


def _file(model: Decoder, directory: Path, _name: str, _inputs: Any, parts: dict[str, float]) -> Callable[..., Any]:
    begun = time.perf_counter()
    from npugraph_ex.inference import cache_compile  # noqa: PLC0415 -- its import is part of the start

    parts["import"] = (time.perf_counter() - begun) * 1000
    return cache_compile(model.step, dynamic=False, cache_dir=directory / "cache")


def _daemon(model: Decoder, directory: Path, name: str, _inputs: Any, parts: dict[str, float]) -> Callable[..., Any]:
    return _file(model, directory / f"empty{name}", name, _inputs, parts)


def _torch(model: Decoder, directory: Path, name: str, inputs: Any, _parts: dict[str, float]) -> Callable[..., Any]:
    """Torch's own way: ``aot_compile`` once, ``load_compiled_function`` at every start."""
    from torch._dynamo.aot_compile_types import SerializableCallable  # noqa: PLC0415 -- loading does so as well

    file = directory / "torch.pt2"
    _define_kept(SerializableCallable)
    if name == "make":
        compiled: Any = torch.compile(
            model.step, backend=lambda graph, _inputs: globals()["Kept"](graph), dynamic=False, fullgraph=True
        )
        compiled.aot_compile((inputs, {})).save_compiled_function(str(file))
    with file.open("rb") as saved:
        loaded: Callable[..., Any] = torch.compiler.load_compiled_function(saved, f_globals=Decoder.step.__globals__)
    return lambda *args: loaded(model, *args)


def _define_kept(base: type) -> None:
    """A callable that ``aot_compile`` can store: Dynamo's own graph, kept as torch.fx pickles it. Its module must have it by name."""

    class Kept(base):  # type: ignore[misc]
        def __init__(self, graph: torch.fx.GraphModule) -> None:
            self.graph = graph

        def __call__(self, *args: Any) -> Any:
            return self.graph(*args)

        @classmethod
        def serialize_compile_artifacts(cls, fn: Any) -> bytes:
            return pickle.dumps(fn.graph)

        @classmethod
        def deserialize_compile_artifacts(cls, data: bytes) -> Any:
            return pickle.loads(data)  # noqa: S301 -- what this bench wrote itself

    Kept.__qualname__ = "Kept"
    globals()["Kept"] = Kept


def _per_call(call: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(CALLS):
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best * 1e6


_WAYS: Final[dict[str, Callable[..., Callable[..., Any]]]] = {
    "eager": _eager,
    "cold": _cold,
    "file": _file,
    "daemon": _daemon,
    "torch": _torch,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
