"""Train a small model for a few steps with static kernels, and compare its losses with eager's.

    python examples/train.py
    torchrun --nproc-per-node 2 examples/train.py --steps 8

The forward and the backward graph are compiled by the backend ``npugraph_ex`` with ``static_kernel_compile``; each asks npgxd
for its kernels at its first run.  With several ranks, each has its own data and the gradients are averaged outside of the graphs.
The exit code is 1 if the losses differ from eager's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from decoder import DecoderConfig, FeedForward, RMSNorm
from reporting import graph_facts, reader_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Option = str | int | bool | Callable[..., object]
    Loss = Callable[[Tensor, Tensor], Tensor]

RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""How far a loss may be from eager's after some steps: rounding, no more."""


class NextToken(nn.Module):
    """Predicts each next token from the two before it: embedding, SwiGLU blocks, head.

    Without attention on purpose: its backward pass has calls that differ from the forward's in strides alone.  Such calls share one
    place in CANN's index, so that the later kernel cannot take effect, and npgxd calls that graph DEGRADED(restart_needed).
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.join = nn.Linear(2 * config.width, config.width, bias=False)
        self.norms = nn.ModuleList(RMSNorm(config.width, config.epsilon) for _ in range(config.layers))
        self.blocks = nn.ModuleList(FeedForward(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, pairs: Tensor) -> Tensor:
        """Pairs of tokens ``[samples, 2]`` to logits ``[samples, vocabulary]``."""
        x = self.join(self.embedding(pairs).flatten(1))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        logits: Tensor = self.head(x)
        return logits


class Training:
    """A model, its optimizer and its data; the same for equal seeds."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        torch.manual_seed(options.seed)
        self.config = DecoderConfig()
        self.model = NextToken(self.config).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.learning_rate)
        self.batch = options.batch
        self.data = torch.Generator().manual_seed(options.seed * 1000 + rank)

    def loss(self, pairs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the next token."""
        return functional.cross_entropy(self.model(pairs), targets)

    def next_text(self) -> Tensor:
        """Three tokens a sample ``[batch, 3]``, counting on by one, two or three: something that can be learned."""
        starts = torch.randint(self.config.vocabulary, (self.batch, 1), generator=self.data)
        strides = torch.randint(1, 4, (self.batch, 1), generator=self.data)
        return (starts + strides * torch.arange(3)) % self.config.vocabulary

    def step(self, loss_of: Loss) -> float:
        """Forward, loss, backward, gradient average over the ranks, optimizer; gives the loss."""
        text = self.next_text()
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(text[:, :2].contiguous(), text[:, 2].contiguous())
        loss.backward()  # type: ignore[no-untyped-call]
        if dist.is_initialized():
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
                if parameter.grad is not None:
                    parameter.grad /= dist.get_world_size()
        self.optimizer.step()
        return float(loss.detach())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    commands = argparse.ArgumentParser(description="Train a small model with static kernels, and compare it with eager.")
    commands.add_argument("--steps", type=int, default=5, help="optimizer steps")
    commands.add_argument("--batch", type=int, default=24, help="samples a step and rank")
    commands.add_argument("--learning-rate", type=float, default=1e-2, help="AdamW's learning rate")
    commands.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    commands.add_argument("--backend", default="npugraph_ex", help="torch.compile backend, for comparison")
    commands.add_argument("--report", type=Path, metavar="FILE", help="write what happened as JSON; {rank} is this rank's number")
    commands.add_argument("--check-reader", action="store_true", help="load the views as the simulated CANN's runtime would")
    return commands


def compiled_loss(training: Training, backend: str) -> Loss:
    """``training.loss`` through the backend."""
    if backend != "npugraph_ex":
        return torch.compile(training.loss, backend=backend, fullgraph=True, dynamic=False)
    options: dict[str, Option] = {"static_kernel_compile": True}
    return torch.compile(training.loss, backend=backend, options=options, fullgraph=True, dynamic=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train twice, compiled and eager; 0 if the losses are the same."""
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    ours, eager = Training(options, rank), Training(options, rank)
    loss_of = compiled_loss(ours, options.backend)
    losses = [(ours.step(loss_of), eager.step(eager.loss)) for _ in range(options.steps)]
    for number, (mine, expected) in enumerate(losses):
        print(f"[rank {rank}] step {number}: loss {mine:.6f}, eager {expected:.6f}", flush=True)
    graphs = graph_facts()
    for graph in graphs:
        print(f"[rank {rank}] {graph['graph']}: {graph['state']}({graph['reason']}), {graph['records']} records", flush=True)
    difference = max(abs(mine - expected) for mine, expected in losses)
    equal = all(abs(mine - expected) <= ABSOLUTE + RELATIVE * abs(expected) for mine, expected in losses)
    print(f"[rank {rank}] losses {'equal' if equal else 'DIFFER from'} eager's, largest difference {difference:.3g}", flush=True)
    if options.report:
        facts = {"schema": 1, "rank": rank, "losses": losses, "equal": equal, "max_difference": difference, "graphs": graphs}
        facts["reader"] = reader_facts(graphs) if options.check_reader else None
        Path(str(options.report).format(rank=rank)).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if world_size > 1:
        dist.destroy_process_group()
    return 0 if equal else 1


if __name__ == "__main__":
    code = main()
    gc.freeze()  # or the exit searches all of torch for garbage, which takes a second
    sys.exit(code)
