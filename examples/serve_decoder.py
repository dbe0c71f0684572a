"""Serve a small decoder with static kernels, one process a rank, and compare every step with eager.

    torchrun --nproc-per-node 4 examples/serve_decoder.py --batch-sizes 1,2,4

Each rank serves its own requests with the same model, so that all ranks ask for the same kernels; with ``--pipeline`` each rank
has its own layers instead, and hands its hidden states on.  For each batch size the decode step is compiled by the backend
``npugraph_ex`` with ``static_kernel_compile``; the first call asks npgxd for the kernels.  Without a daemon the model runs all
the same, with dynamic kernels.  The exit code is 1 if any output differs from eager's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from decoder import Decoder, DecoderConfig, LayerCache
from reporting import graph_facts, reader_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Option = str | int | bool | Callable[..., object]
    Step = Callable[[Tensor, Tensor, list[LayerCache]], Tensor]

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""How far a compiled step may be from eager's: rounding, no more."""


@dataclass(frozen=True, slots=True)
class Rank:
    """This process's place in its job, as the launcher says it."""

    rank: int
    world_size: int
    local_rank: int
    joined: bool  # whether a process group connects the ranks

    @classmethod
    def join(cls, *, independent: bool) -> Rank:
        """Read the launcher's variables and, if there are several ranks and they shall know each other, connect them."""
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        joined = world_size > 1 and not independent
        if joined:
            dist.init_process_group("gloo")
        return cls(rank, world_size, int(os.environ.get("LOCAL_RANK", "0")), joined)

    def meet(self) -> None:
        """Wait for the other ranks, so that their next calls are near each other."""
        if self.joined:
            dist.barrier()

    def leave(self) -> None:
        """Disconnect."""
        if self.joined:
            dist.destroy_process_group()


@dataclass(slots=True)
class Served:
    """What came of one batch size."""

    batch: int
    equal: bool = True
    max_difference: float = 0.0
    first_call_s: float = 0.0
    graphs: list[dict[str, object]] = field(default_factory=list)

    def time(self, step: Step, inputs: Tensor, positions: Tensor, cache: list[LayerCache]) -> Tensor:
        """Run ``step``; how long the first one took, which is when kernels are asked for, is kept."""
        started = time.monotonic()
        outputs = step(inputs, positions, cache)
        self.first_call_s = self.first_call_s or time.monotonic() - started
        return outputs

    def compare(self, ours: Tensor, eager: Tensor) -> None:
        """Hold ``ours`` against ``eager``."""
        self.max_difference = max(self.max_difference, float((ours - eager).abs().max()))
        self.equal = self.equal and torch.allclose(ours, eager, rtol=RELATIVE, atol=ABSOLUTE)


class Server:
    """One rank's model, whole or a stage of it, and the steps that it serves."""

    def __init__(self, options: argparse.Namespace, rank: Rank) -> None:
        self.rank = rank
        self.steps: int = options.steps
        self.backend: str = options.backend
        self.pipeline: bool = options.pipeline and rank.joined
        config = DecoderConfig(layers=max(options.layers, rank.world_size) if self.pipeline else options.layers)
        first, last = stage(config.layers, rank.rank, rank.world_size) if self.pipeline else (0, config.layers)
        self.model = Decoder(config, seed=options.seed, first=first, last=last).eval()

    def compiled_step(self) -> Step:
        """The decode step through the backend."""
        if self.backend != "npugraph_ex":
            return torch.compile(self.model.decode_step, backend=self.backend, fullgraph=True, dynamic=False)
        options: dict[str, Option] = {"static_kernel_compile": True}
        return torch.compile(self.model.decode_step, backend=self.backend, options=options, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def serve(self, batch: int) -> Served:
        """Decode ``steps`` tokens for ``batch`` sequences, compiled and eager, each with a cache of its own."""
        served, step = Served(batch), self.compiled_step()
        cache, eager_cache = self.model.new_cache(batch), self.model.new_cache(batch)
        if self.pipeline:
            # Stages wait for each other's results, so each asks for its kernels before any has one: position 0 is written again.
            served.time(step, self._placeholder(batch), torch.zeros(batch, dtype=torch.int64), cache)
        inputs = torch.arange(batch) + self.rank.rank
        for number in range(self.steps):
            positions = torch.full((batch,), number)
            inputs = self._receive(inputs, batch)
            ours = served.time(step, inputs, positions, cache)
            eager = self.model.decode_step(inputs, positions, eager_cache)
            served.compare(ours, eager)
            inputs = self._send(eager, batch)
        for mine, theirs in zip(cache, eager_cache, strict=True):
            served.compare(mine.keys, theirs.keys)
            served.compare(mine.values, theirs.values)
        return served

    def _placeholder(self, batch: int) -> Tensor:
        width = self.model.config.width
        return torch.zeros(batch, dtype=torch.int64) if self.model.embeds else torch.zeros(batch, width)

    def _receive(self, inputs: Tensor, batch: int) -> Tensor:
        """This step's input: tokens, or what the stage before made of them."""
        if not self.pipeline or self.model.embeds:
            return inputs
        hidden = self._placeholder(batch)
        dist.recv(hidden, src=self.rank.rank - 1)
        return hidden

    def _send(self, outputs: Tensor, batch: int) -> Tensor:
        """Hand ``outputs`` on; gives the next step's tokens."""
        if self.pipeline and not self.model.predicts:
            dist.send(outputs, dst=self.rank.rank + 1)
        tokens = outputs.argmax(dim=-1) if self.model.predicts else torch.zeros(batch, dtype=torch.int64)
        if self.pipeline:
            dist.broadcast(tokens, src=self.rank.world_size - 1)
        return tokens


def stage(layers: int, rank: int, world_size: int) -> tuple[int, int]:
    """The layers ``[first, last)`` of one pipeline stage."""
    return layers * rank // world_size, layers * (rank + 1) // world_size


def batch_sizes(value: str) -> list[int]:
    """``1,2,4`` as numbers."""
    sizes = [int(part) for part in value.split(",")]
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError("batch sizes are 1 or more")
    return sizes


def parser() -> argparse.ArgumentParser:
    """The command line."""
    commands = argparse.ArgumentParser(description="Serve a small decoder with static kernels, and compare it with eager.")
    commands.add_argument("--batch-sizes", type=batch_sizes, default=[1, 2, 4], help="decode batch sizes, for example 1,2,4")
    commands.add_argument("--steps", type=int, default=4, help="tokens to decode for each batch size")
    commands.add_argument("--layers", type=int, default=2, help="layers of the model")
    commands.add_argument("--seed", type=int, default=0, help="seed of the weights")
    commands.add_argument("--pipeline", action="store_true", help="give each rank its own layers, so that ranks' graphs differ")
    commands.add_argument("--backend", default="npugraph_ex", help="torch.compile backend, for comparison")
    commands.add_argument("--report", type=Path, metavar="FILE", help="write what happened as JSON; {rank} is this rank's number")
    commands.add_argument("--check-reader", action="store_true", help="load the views as the simulated CANN's runtime would")
    commands.add_argument("--no-local-world-size", action="store_true", help="unset LOCAL_WORLD_SIZE first: it shall still work")
    commands.add_argument("--independent", action="store_true", help="do not connect the ranks to each other")
    return commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve every batch size; 0 if all outputs equal eager's."""
    started = time.monotonic()
    options = parser().parse_args(arguments)
    if options.no_local_world_size:
        os.environ.pop("LOCAL_WORLD_SIZE", None)
    torch.set_num_threads(1)
    rank = Rank.join(independent=options.independent)
    server = Server(options, rank)
    all_served = []
    for batch in options.batch_sizes:
        known = len(graph_facts())
        rank.meet()
        served = server.serve(batch)
        served.graphs = graph_facts()[known:]
        all_served.append(served)
        print(f"[rank {rank.rank}] batch {batch}: {_in_words(served)}", flush=True)
    reader = reader_facts([graph for served in all_served for graph in served.graphs]) if options.check_reader else None
    if options.report:
        report = {
            "schema": 1,
            "pid": os.getpid(),
            **{name: value for name, value in asdict(rank).items() if name != "joined"},
            "local_world_size": os.environ.get("LOCAL_WORLD_SIZE"),
            "batches": [asdict(served) for served in all_served],
            "reader": reader,
            "wall_s": time.monotonic() - started,
        }
        path = Path(str(options.report).format(rank=rank.rank))
        path.write_text(json.dumps(report, indent=1), encoding="utf-8")
    rank.meet()
    rank.leave()
    return 0 if all(served.equal for served in all_served) else 1


def _in_words(served: Served) -> str:
    states = ", ".join(f"{graph['state']}({graph['reason']})" for graph in served.graphs) or "no static kernels asked for"
    verdict = "equal to eager" if served.equal else "DIFFERENT from eager"
    return f"{states}; {verdict}, largest difference {served.max_difference:.3g}; first call {served.first_call_s:.2f} s"


if __name__ == "__main__":
    code = main()
    gc.freeze()  # or the exit searches all of torch for garbage, which takes a second
    sys.exit(code)
