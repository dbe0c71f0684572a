"""The source of a model that a program of these tests serves, to be edited between its starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
import torch
from served_scale import scaled

class Model(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(8, 8, generator=generator))
        self.register_buffer("calls", torch.zeros(1))

    def step(self, x):
        self.calls += 1
        return scaled(torch.nn.functional.silu(x @ self.weight)) * self.calls + self.rank
"""
SCALE = """
FACTOR = 2.0

def scaled(x):
    return x * FACTOR
"""


def write(directory: Path, scale: str = SCALE) -> None:
    """Put the model there, with ``scale`` as the module of a function that it calls."""
    (directory / "served_model.py").write_text(MODEL)
    (directory / "served_scale.py").write_text(scale)
