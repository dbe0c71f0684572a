"""Every operator that a decoder needs, against the CPU, over dtypes, views, broadcasting and in-place forms."""

from collections.abc import Callable

import torch
import torch_npu

from decoder import Decoder, DecoderConfig, LayerCache
from reporting import report

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float64: 1e-12}
torch.manual_seed(0)


def inplace(change: Callable[..., object]) -> Callable[..., torch.Tensor]:
    """``change`` on a copy of its first argument, which then is the result."""

    def changed(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        copy = first.clone()
        change(copy, *others)
        return copy

    return changed


REAL: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "add with alpha": lambda a, b: torch.add(a, b, alpha=0.5),
    "add number": lambda a, b: a + 1.5,
    "add broadcast": lambda a, b: a + b[0, :1],
    "add of views": lambda a, b: a.transpose(0, 1) + b.transpose(0, 1)[:, :, 0:1],
    "add in place": inplace(lambda a, b: a.add_(b)),
    "add into a view": inplace(lambda a, b: a[:, 1].add_(b[:, 1])),
    "sub": lambda a, b: a - b,
    "sub number": lambda a, b: a - 2,
    "mul": lambda a, b: a * b,
    "mul number": lambda a, b: a * 0.3,
    "mul in place": inplace(lambda a, b: a.mul_(b)),
    "div": lambda a, b: a / (b.abs() + 1),
    "div number": lambda a, b: a / 3,
    "pow": lambda a, b: a.pow(2),
    "maximum": torch.maximum,
    "neg": lambda a, b: -a,
    "exp": lambda a, b: a.exp(),
    "rsqrt": lambda a, b: torch.rsqrt(a.abs() + 1),
    "sqrt": lambda a, b: (a.abs() + 1).sqrt(),
    "tanh": lambda a, b: a.tanh(),
    "sigmoid": lambda a, b: a.sigmoid(),
    "silu": lambda a, b: torch.nn.functional.silu(a),
    "relu": lambda a, b: a.relu(),
    "gelu": lambda a, b: torch.nn.functional.gelu(a),
    "clamp": lambda a, b: a.clamp(-0.5, 0.5),
    "mean": lambda a, b: a.mean(-1, keepdim=True),
    "sum over two axes": lambda a, b: a.sum((0, 2)),
    "amax": lambda a, b: a.amax(1),
    "softmax": lambda a, b: a.softmax(-1),
    "softmax of a view": lambda a, b: a.transpose(1, 2).softmax(1),
    "log_softmax": lambda a, b: a.log_softmax(1),
    "argmax": lambda a, b: a.argmax(-1),
    "matmul": lambda a, b: a @ b.transpose(1, 2),
    "matmul broadcast": lambda a, b: a[:, None] @ b.transpose(1, 2)[None],
    "mm": lambda a, b: a[0] @ b[0].t(),
    "addmm": lambda a, b: torch.addmm(a[0, 0, :3], a[0], b[0].t()),
    "addmm with beta": lambda a, b: torch.addmm(a[0, :, :3], a[0], b[0].t(), beta=0.5, alpha=2),
    "baddbmm": lambda a, b: torch.baddbmm(a[:, :, :3], a, b.transpose(1, 2)),
    "linear": lambda a, b: torch.nn.functional.linear(a, b[0], b[0, :, 0]),
    "cat": lambda a, b: torch.cat((a, b), 1),
    "cat of views": lambda a, b: torch.cat((-a[..., 2:], b[..., :2]), -1),
    "where": lambda a, b: torch.where(a < b, a, b),
    "masked_fill": lambda a, b: a.masked_fill(b < 0, -torch.inf),
    "less": lambda a, b: a < b,
    "equal to a number": lambda a, b: a == 0,
    "logical": lambda a, b: ~(a < b) & (a > -1) | (b > 1),
    "cast to half": lambda a, b: a.half(),
    "cast to whole": lambda a, b: (a * 10).long(),
    "contiguous": lambda a, b: a.permute(2, 0, 1).contiguous(),
    "expand": lambda a, b: a[:, :1].expand(2, 3, 4).contiguous(),
    "copy into a view": inplace(lambda a, b: a[..., ::2].copy_(b[..., ::2])),
    "zero": inplace(lambda a, b: a.zero_()),
    "fill": inplace(lambda a, b: a[0].fill_(7)),
    "index": lambda a, b: a[torch.tensor([1, 0, -1], device=a.device), torch.tensor([2, 0, 1], device=a.device)],
    "index_put": inplace(lambda a, b: a.index_put_((torch.tensor([1, 0], device=a.device),), b)),
    "index_select": lambda a, b: a.index_select(1, torch.tensor([2, 0], device=a.device)),
    "embedding": lambda a, b: torch.nn.functional.embedding(torch.tensor([[1, 0], [2, 2]], device=a.device), a[0]),
    "rms_norm": lambda a, b: (
        torch_npu.npu_rms_norm(a, b[0, 0], 1e-6)[0]
        if a.is_npu
        else a * torch.rsqrt(a.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(a.dtype) * b[0, 0]
    ),
}
WHOLE: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * 3,
    "bits": lambda a, b: (a & 6) | (~b & 1),
    "compare": lambda a, b: a <= b,
    "true division": lambda a, b: a / (b + 100),
    "arange": lambda a, b: torch.arange(2, 11, 3, device=a.device) + a[0, 0, 0],
    "large": lambda a, b: a + 2**60,
}


def difference(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    ours = ours.cpu()
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return float("inf")
    if not wanted.is_floating_point():
        return float((ours != wanted).sum())
    ours, wanted = ours.double(), wanted.double()
    same = (ours == wanted) | (ours.isnan() & wanted.isnan())
    return float(torch.where(same, 0.0, (ours - wanted).abs() / (1 + wanted.abs())).max())


def off(dtype: torch.dtype, cases: dict[str, Callable[..., torch.Tensor]], a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """The cases whose results are too far from the CPU's, with how far."""
    far = {name: difference(case(a.npu(), b.npu()), case(a, b)) for name, case in cases.items()}
    return {f"{name} in {dtype}": value for name, value in far.items() if not value <= TOLERANCE.get(dtype, 0)}


def decoder_off(dtype: torch.dtype) -> float:
    """How far a decoder's steps are from the CPU's."""
    host, device = Decoder(DecoderConfig()).eval().to(dtype), Decoder(DecoderConfig()).eval().to(dtype).npu()
    caches = [LayerCache(keys.to(dtype), values.to(dtype)) for keys, values in host.new_cache(2)]
    on_device = [LayerCache(keys.npu(), values.npu()) for keys, values in caches]
    worst = 0.0
    with torch.no_grad():
        for step in range(3):
            tokens, positions = torch.tensor([3 + step, 250 - step]), torch.tensor([step, 2 * step])
            wanted = host.decode_step(tokens, positions, caches)
            ours = device.decode_step(tokens.npu(), positions.npu(), on_device)
            worst = max(worst, difference(ours, wanted))
    return worst


wrong: dict[str, float] = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    a, b = torch.randn(2, 3, 4).to(dtype), torch.randn(2, 3, 4).to(dtype)
    wrong |= off(dtype, REAL, a, b)
for dtype in (torch.int64, torch.int32):
    cases = WHOLE if dtype is torch.int64 else {name: case for name, case in WHOLE.items() if name != "large"}
    wrong |= off(dtype, cases, torch.randint(-50, 50, (2, 3, 4)).to(dtype), torch.randint(-50, 50, (2, 3, 4)).to(dtype))
report(
    cases=3 * len(REAL) + 2 * len(WHOLE) - 1,
    wrong=wrong,
    decoder={str(dtype): decoder_off(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)},
)
