"""A small Llama-style decoder: RMSNorm, rotary embedding, grouped-query attention with a key-value cache, SwiGLU.

It is written here, in plain torch, so that the examples need no model hub.  The weights depend on the seed alone: every process
that builds ``Decoder(config, seed=0)`` has the same model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The sizes of a decoder; the default is small enough for a test."""

    vocabulary: int = 256
    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 160
    context: int = 32
    rotary_base: float = 10_000.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.kv_heads or self.head_width % 2:
            raise ValueError("width must divide into heads of an even width, and heads into kv_heads")

    @property
    def head_width(self) -> int:
        """Features of one attention head."""
        return self.width // self.heads


class LayerCache(NamedTuple):
    """What one layer remembers: ``[batch, context, kv_heads, head_width]`` each, written in place."""

    keys: Tensor
    values: Tensor


class Places(NamedTuple):
    """Where the steps of one call stand, for every layer alike."""

    cosines: Tensor  # [..., 1, head_width]: the rotation of each step
    sines: Tensor
    visible: Tensor  # [batch or 1, steps, length]: which positions each step may look at


class RMSNorm(nn.Module):
    """Scale each vector to unit root mean square, then by a learned weight."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` to the same."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


def rotary_tables(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[context, head_width]`` of every position's rotation, both halves of a head alike."""
    exponents = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
    angles = torch.outer(torch.arange(config.context, dtype=torch.float64), config.rotary_base**-exponents).repeat(1, 2)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, places: Places) -> Tensor:
    """Turn each head of ``x`` ``[batch, steps, heads, head_width]`` by its position's angles (halves convention)."""
    first, second = x.chunk(2, dim=-1)
    return x * places.cosines + torch.cat((-second, first), dim=-1) * places.sines


class Attention(nn.Module):
    """Grouped-query attention: several query heads share one key and value head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        shared = config.kv_heads * config.head_width
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, shared, bias=False)
        self.value = nn.Linear(config.width, shared, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def project(self, x: Tensor, places: Places) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries ``[batch, steps, heads, head_width]``, rotated keys and plain values with ``kv_heads`` heads."""
        batch, steps, _ = x.shape
        config = self.config
        queries = self.query(x).view(batch, steps, config.heads, config.head_width)
        keys = self.key(x).view(batch, steps, config.kv_heads, config.head_width)
        values = self.value(x).view(batch, steps, config.kv_heads, config.head_width)
        return rotate(queries, places), rotate(keys, places), values

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """Mix ``values`` of the positions that are ``visible`` ``[batch or 1, steps, length]`` into ``[batch, steps, width]``."""
        batch, steps, heads, width = queries.shape
        groups = heads // self.config.kv_heads
        grouped = queries.view(batch, steps, self.config.kv_heads, groups, width).permute(0, 2, 3, 1, 4)
        scores = grouped @ keys.permute(0, 2, 3, 1).unsqueeze(2) * width**-0.5
        weights = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(dim=-1)
        mixed = weights @ values.permute(0, 2, 1, 3).unsqueeze(2)
        joined: Tensor = self.output(mixed.permute(0, 3, 1, 2, 4).reshape(batch, steps, heads * width))
        return joined


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` to the same."""
        down: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return down


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.width, config.epsilon)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, places: Places) -> Tensor:
        """A whole sequence ``[batch, steps, width]``, without a cache."""
        queries, keys, values = self.attention.project(self.attention_norm(x), places)
        return self._finish(x, self.attention.attend(queries, keys, values, places.visible))

    def step(self, x: Tensor, places: Places, positions: Tensor, cache: LayerCache) -> Tensor:
        """One more token of each sequence ``[batch, 1, width]``; its key and value are written into ``cache``."""
        queries, keys, values = self.attention.project(self.attention_norm(x), places)
        rows = torch.arange(x.shape[0], device=x.device)
        cache.keys[rows, positions] = keys[:, 0]
        cache.values[rows, positions] = values[:, 0]
        return self._finish(x, self.attention.attend(queries, cache.keys, cache.values, places.visible))

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + attended
        fed: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return x + fed


class Decoder(nn.Module):
    """The model, or the part of it between ``first`` and ``last`` (a pipeline stage).

    The first stage embeds tokens, the last one gives logits; in between, hidden states ``[batch, steps, width]`` go in and out.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: DecoderConfig, *, seed: int = 0, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = config.layers if last is None else last
        if not 0 <= first <= last <= config.layers:
            raise ValueError(f"a stage needs 0 <= first <= last <= {config.layers}")
        self.config = config
        self.embeds = first == 0
        self.predicts = last == config.layers
        self.layers = nn.ModuleList(Layer(config) for _ in range(first, last))
        if self.embeds:
            self.embedding = nn.Embedding(config.vocabulary, config.width)
        if self.predicts:
            self.norm = RMSNorm(config.width, config.epsilon)
            self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        cosines, sines = rotary_tables(config)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self._initialise(seed, first)

    def _initialise(self, seed: int, first: int) -> None:
        """Give every weight a value that depends on the seed and on its place in the whole model, not on the stage."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm.weight"):
                    continue
                generator = torch.Generator().manual_seed(crc32(f"{seed} {_whole_name(name, first)}".encode()))
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)

    def new_cache(self, batch: int) -> list[LayerCache]:
        """An empty cache for ``batch`` sequences."""
        config = self.config
        shape = (batch, config.context, config.kv_heads, config.head_width)
        return [LayerCache(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]

    def forward(self, inputs: Tensor) -> Tensor:
        """Whole sequences, no cache: tokens ``[batch, steps]`` or hidden states in, logits or hidden states per position out."""
        x = self.embedding(inputs) if self.embeds else inputs
        order = torch.arange(x.shape[1], device=x.device)
        visible = (order[None, :] <= order[:, None])[None]
        places = Places(self.cosines[: x.shape[1], None], self.sines[: x.shape[1], None], visible)
        for layer in self.layers:
            x = layer(x, places)
        return self._predict(x)

    def decode_step(self, inputs: Tensor, positions: Tensor, cache: list[LayerCache]) -> Tensor:
        """One token of each sequence: tokens ``[batch]`` or hidden states ``[batch, width]`` in, ``[batch, ...]`` out.

        ``positions`` ``[batch]`` are int64 and stay tensors, so that a compiled step serves every position.  ``cache`` is updated
        in place.
        """
        x = (self.embedding(inputs) if self.embeds else inputs)[:, None]
        visible = (torch.arange(self.config.context, device=x.device)[None, :] <= positions[:, None])[:, None]
        places = Places(self.cosines[positions][:, None, None], self.sines[positions][:, None, None], visible)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer.step(x, places, positions, layer_cache)  # type: ignore[operator]  # nn.ModuleList holds any module
        return self._predict(x)[:, 0]

    def _predict(self, x: Tensor) -> Tensor:
        if not self.predicts:
            return x
        logits: Tensor = self.head(self.norm(x))
        return logits


def _whole_name(name: str, first: int) -> str:
    """A parameter's name in the whole model: ``layers.0.up.weight`` of a stage from layer 2 on is ``layers.2.up.weight``."""
    parts = name.split(".")
    if parts[0] == "layers":
        parts[1] = str(int(parts[1]) + first)
    return ".".join(parts)
