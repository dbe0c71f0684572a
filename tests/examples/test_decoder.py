"""The decoder against the formulas of its parts, and its one-token step against the whole sequence."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from decoder import Decoder, DecoderConfig, RMSNorm

CONFIG = DecoderConfig()


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(CONFIG, seed=3).eval()


def reference(decoder: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """The same model in other words: complex rotation, repeated heads, torch's own attention and norm."""
    config, weights = decoder.config, dict(decoder.named_parameters())
    batch, steps = tokens.shape
    half = config.head_width // 2
    rates = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.polar(torch.ones(steps, half, dtype=torch.float64), torch.outer(torch.arange(steps, dtype=torch.float64), rates))

    def rotated(x: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn[:, None]
        return torch.cat((turned.real, turned.imag), dim=-1).float()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (config.width,), weights[f"{name}.weight"], config.epsilon)

    x = weights["embedding.weight"][tokens]
    for i in range(config.layers):
        y = norm(x, f"layers.{i}.attention_norm")
        part = {n: y @ weights[f"layers.{i}.attention.{n}.weight"].T for n in ("query", "key", "value")}
        split = {n: p.view(batch, steps, -1, config.head_width) for n, p in part.items()}
        q, k = rotated(split["query"]), rotated(split["key"])
        k, v = (t.repeat_interleave(config.heads // config.kv_heads, dim=2) for t in (k, split["value"]))
        attended = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + attended.transpose(1, 2).flatten(2) @ weights[f"layers.{i}.attention.output.weight"].T
        y = norm(x, f"layers.{i}.feed_forward_norm")
        gate, up, down = (weights[f"layers.{i}.feed_forward.{n}.weight"] for n in ("gate", "up", "down"))
        x = x + (functional.silu(y @ gate.T) * (y @ up.T)) @ down.T
    return norm(x, "norm") @ weights["head.weight"].T


def tokens_of(batch: int, steps: int) -> torch.Tensor:
    return torch.randint(CONFIG.vocabulary, (batch, steps), generator=torch.Generator().manual_seed(5))


def test_the_whole_sequence_equals_the_plain_reference(decoder: Decoder) -> None:
    tokens = tokens_of(3, 11)
    with torch.no_grad():
        torch.testing.assert_close(decoder(tokens), reference(decoder, tokens), rtol=1e-4, atol=1e-5)


def test_decoding_step_by_step_equals_the_whole_sequence(decoder: Decoder) -> None:
    tokens = tokens_of(2, 9)
    cache = decoder.new_cache(2)
    with torch.no_grad():
        steps = [decoder.decode_step(tokens[:, i], torch.full((2,), i), cache) for i in range(9)]
        torch.testing.assert_close(torch.stack(steps, dim=1), decoder(tokens), rtol=1e-4, atol=1e-5)


def test_each_sequence_may_stand_at_its_own_position(decoder: Decoder) -> None:
    tokens = tokens_of(2, 6)
    cache = decoder.new_cache(2)
    with torch.no_grad():
        for i in range(4):
            decoder.decode_step(tokens[:, i], torch.full((2,), i), cache)
        # sequence 0 goes back to position 2, sequence 1 goes on to position 4
        logits = decoder.decode_step(torch.stack((tokens[0, 2], tokens[1, 4])), torch.tensor([2, 4]), cache)
        whole = decoder(tokens)
    torch.testing.assert_close(logits, torch.stack((whole[0, 2], whole[1, 4])), rtol=1e-4, atol=1e-5)


def test_a_step_writes_its_own_place_in_the_cache_and_no_other(decoder: Decoder) -> None:
    cache = decoder.new_cache(2)
    with torch.no_grad():
        decoder.decode_step(torch.tensor([1, 2]), torch.tensor([0, 7]), cache)
    for keys, values in cache:
        for tensor in (keys, values):
            written = tensor.abs().sum(dim=(2, 3)) > 0
            assert written.nonzero().tolist() == [[0, 0], [1, 7]]


def test_pipeline_stages_together_are_the_model(decoder: Decoder) -> None:
    first, second = Decoder(CONFIG, seed=3, last=1), Decoder(CONFIG, seed=3, first=1)
    tokens = tokens_of(2, 5)
    with torch.no_grad():
        assert torch.equal(second(first(tokens)), decoder(tokens))
        cache, caches = decoder.new_cache(2), (first.new_cache(2), second.new_cache(2))
        positions = torch.zeros(2, dtype=torch.int64)
        hidden = first.decode_step(tokens[:, 0], positions, caches[0])
        step = second.decode_step(hidden, positions, caches[1])
        assert torch.equal(step, decoder.decode_step(tokens[:, 0], positions, cache))


def test_weights_depend_on_the_seed_alone() -> None:
    once, again, other = (Decoder(CONFIG, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not torch.equal(once["head.weight"], other["head.weight"])
    assert not torch.equal(once["layers.0.feed_forward.up.weight"], once["layers.1.feed_forward.up.weight"])


def test_a_compiled_step_serves_every_position_with_one_graph(decoder: Decoder) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(decoder.decode_step, backend=counting, fullgraph=True, dynamic=False)
    tokens = tokens_of(2, 4)
    cache, expected = decoder.new_cache(2), decoder.new_cache(2)
    with torch.no_grad():
        for i in range(4):
            positions = torch.tensor([i, i + 1])
            torch.testing.assert_close(
                step(tokens[:, i], positions, cache), decoder.decode_step(tokens[:, i], positions, expected)
            )
    assert len(graphs) == 1
    for ours, theirs in zip(cache, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rms_norm_ignores_the_scale_of_its_input() -> None:
    norm = RMSNorm(8, 0.0)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm(x * 7), norm(x))


@pytest.mark.parametrize("sizes", [{"width": 30}, {"heads": 4, "kv_heads": 3}, {"width": 12, "heads": 4, "kv_heads": 2}])
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="width must divide"):
        DecoderConfig(**sizes)


@pytest.mark.parametrize("span", [(-1, 1), (2, 1), (0, 3)])
def test_a_stage_outside_the_model_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a stage needs"):
        Decoder(CONFIG, first=span[0], last=span[1])
