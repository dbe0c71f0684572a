"""A few calls that make kernels of many kinds: views, constants, a dynamic input, attributes, one composite operator."""

from __future__ import annotations

import torch
import torch_npu  # noqa: F401 -- registers the device

from decoder import Decoder, DecoderConfig, LayerCache


def step() -> None:
    """One decoding step of a small decoder in half precision, and what it does not have."""
    config = DecoderConfig(layers=1)
    model = Decoder(config).eval().half().npu()
    caches = [LayerCache(keys.half().npu(), values.half().npu()) for keys, values in Decoder(config).new_cache(2)]
    with torch.no_grad():
        model.decode_step(torch.tensor([3, 5]).npu(), torch.tensor([0, 1]).npu(), caches)
    composite()
    x = torch.ones(3, 4).npu()
    x + 1
    x.t() + 1e-5
    x.sum(0)
    torch.npu.synchronize()


def composite() -> torch.Tensor:
    """An operator of two kernels: a product, then a sum."""
    x = torch.ones(4, 4).npu()
    return torch.addmm(x, x, x, beta=0.5)
