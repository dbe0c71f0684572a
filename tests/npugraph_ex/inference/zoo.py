"""Models of many kinds, each with calls of the method that is cached: run as a script, it says for each where its graph came from.

``python zoo.py CACHE_DIR`` prints one JSON line: for each case the origin, and whether every call's outputs, mutated arguments and
buffers equal those of the same model run as it is; and whether Dynamo was imported.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import sys
import typing

from tests.uncollected import uncollected

with uncollected():
    import torch
    import torch.nn.functional as F  # noqa: N812 -- torch's own habit
    from torch import nn
    from torch.nn.utils import parametrizations, parametrize

SCALE = 3
TABLE = {"shift": 0.5, "names": ["a", "b"]}
BIAS = torch.full((4,), 0.25)


@dataclasses.dataclass
class InputMeta:
    data: torch.Tensor
    is_prompt: bool


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Seed(nn.Module):
    """The vendor's example."""

    def __init__(self):
        super().__init__()
        self.linear1 = nn.Linear(2, 1)

    def method(self, x, kv):
        return self.linear1(x.data) + self.linear1(kv[0])


class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.register_buffer("cache", torch.zeros(2, 4, length, width))

    def forward(self, x, position):
        batch, width = x.shape
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        self.cache[0, :batch, position] = key
        self.cache[1, :batch, position] = value
        keys, values = (side[:batch].view(batch, -1, self.heads, width // self.heads).transpose(1, 2) for side in self.cache)
        attended = F.scaled_dot_product_attention(query.view(batch, self.heads, 1, -1), keys, values)
        x = x + self.out(attended.reshape(batch, width))
        return x + self.down(F.silu(self.up(x)))


class Decoder(nn.Module):
    """A decode step with a KV cache that it updates in place, and a counter."""

    def __init__(self, layers=2, width=16, dtype=torch.float32):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, 4, 8) for _ in range(layers))
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.to(dtype)

    def method(self, tokens, position):
        self.steps.add_(1)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, position)
        return self.head(x)


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, stride=2)
        )
        self.eval()

    def method(self, image):
        return F.adaptive_avg_pool2d(self.body(image), 1).flatten(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.eval()

    def method(self, x, mask):
        return self.layers(x, src_key_padding_mask=mask)


class Mixture(nn.Module):
    """Experts whose routing is a table, so that no size depends on data."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3))
        self.gate = nn.Linear(8, 3)
        self.route = ((0, 1), (1, 2))

    def method(self, x):
        weights = self.gate(x).softmax(-1)
        mixed = torch.zeros_like(x)
        for half, chosen in zip(x.chunk(2), self.route, strict=True):
            for number in chosen:
                mixed = mixed + torch.cat([self.experts[number](half)] * 2) * weights[:, number : number + 1]
        return mixed


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.many = nn.ModuleDict({"x": self.first, "y": nn.Tanh()})

    def method(self, x):
        return self.many["y"](self.second(self.first(x))) + self.many["x"](x)


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


class Parametrised(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        parametrize.register_parametrization(self.linear, "weight", Halved())
        self.normed = parametrizations.weight_norm(nn.Linear(4, 4))
        self.eval()

    def method(self, x):
        return self.normed(self.linear(x))


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def method(self, x, *rest, scale=2.0, **named):
        return self.linear(x) * scale + sum(rest) + named.get("more", 0)


class Child(Parent):
    """super() makes the method a closure over its class."""

    def method(self, x, *rest, scale=2.0, **named):
        return super().method(x, *rest, scale=scale, **named) + BIAS


class Outputs(nn.Module):
    def method(self, x, flag):
        if flag:
            x = x * SCALE + TABLE["shift"]
        parts = [x, x.sum(), (x.shape[0], None), x.shape, x.dtype, x.device]
        return {
            "list": parts,
            "pair": Pair(x + 1, x - 1),
            "meta": InputMeta(x * 2, flag),
            "constant": torch.tensor([1.5, 2.5]),
            "name": "n",
        }


class Effects(nn.Module):
    """What a call does to its arguments and its model beside computing."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, 4))
        self.norm = nn.BatchNorm1d(4)  # in training mode: running statistics change

    def method(self, x, table, found):
        table["new"] = x + 1
        table["old"].add_(1)
        found.append(x * 2)
        self.last = self.norm(x)
        return len(found)


class Mutates(nn.Module):
    """What a graph must keep beyond values: which tensors are which."""

    def method(self, x, y, views):
        x.add_(1)
        first = x.view(-1)
        first.mul_(2)
        views[0].sub_(1)
        y.copy_(x.sum() + y)
        return x, first, views[0], y[0], x.t(), y


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))

    def method(self, x):
        return torch.view_as_real(torch.view_as_complex(x) * self.angles), torch.fft.fft(torch.view_as_complex(x)).abs()


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-100, 100, (4, 4), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(4))

    def method(self, x):
        levels = (x * 10).round().clamp(-128, 127).to(torch.int8)
        return (
            torch._int_mm(levels, self.weight) * self.scale
            if levels.shape[0] > 16
            else levels.to(torch.int32) @ self.weight.int()
        )


class Symbolic(nn.Module):
    """``count`` is used as a number and must not become a constant."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def method(self, x, count):
        return self.linear(x) * count, torch.full((x.shape[0],), count), x.shape[0] * count


class Precise(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 2)).to(dtype)

    def method(self, x):
        return self.net(x), x.to(torch.float32).mean()


def local_model():
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def method(self, x):
            return self.linear(x).relu()

    return Local()


def shared_views(base):
    """Two arguments that overlap in memory."""
    return base[:3], base[2:]


@dataclasses.dataclass(frozen=True)
class Case:
    model: typing.Callable[[], nn.Module]
    calls: tuple[typing.Callable[[], tuple], ...]
    options: dict = dataclasses.field(default_factory=dict)
    named: dict = dataclasses.field(default_factory=dict)


def two(make):
    return (make, make)


CASES = {
    "seed": Case(Seed, (lambda: (InputMeta(torch.randn(2, 2), True), [torch.randn(2, 2)]),), {"dynamic": True}),
    "decoder": Case(Decoder, two(lambda: (torch.randint(0, 32, (4,)), 3)), {"dynamic": False}),
    "decoder dynamic": Case(
        Decoder, (lambda: (torch.randint(0, 32, (4,)), torch.tensor(3)), lambda: (torch.randint(0, 32, (3,)), torch.tensor(3)))
    ),
    "decoder bf16": Case(lambda: Decoder(dtype=torch.bfloat16), two(lambda: (torch.randint(0, 32, (4,)), 1)), {"dynamic": False}),
    "conv": Case(Conv, (lambda: (torch.randn(2, 3, 16, 16),), lambda: (torch.randn(3, 3, 16, 16),))),
    "encoder": Case(Encoder, two(lambda: (torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])))),
    "mixture": Case(Mixture, two(lambda: (torch.randn(4, 8),)), {"dynamic": False}),
    "shared": Case(Shared, two(lambda: (torch.randn(3, 4),))),
    "parametrised": Case(Parametrised, two(lambda: (torch.randn(3, 4),))),
    "closure": Case(Child, two(lambda: (torch.randn(3, 4), torch.randn(4), torch.randn(4))), named={"more": 2}),
    "outputs": Case(Outputs, two(lambda: (torch.randn(3, 4), True)), {"dynamic": False}),
    "effects": Case(Effects, two(lambda: (torch.randn(3, 4), {"old": torch.ones(2)}, [1]))),
    "mutates": Case(Mutates, two(lambda: (torch.randn(3, 3), torch.randn(5), [torch.randn(4)]))),
    "one tensor twice": Case(Mutates, two(lambda: ((x := torch.randn(3, 3)), torch.randn(5), [x]))),
    "overlapping": Case(Mutates, two(lambda: ((b := torch.randn(6, 3))[:3], b.view(-1)[3:8], [b[2:]]))),
    "not contiguous": Case(
        Mutates, two(lambda: (torch.randn(6, 6)[::2, ::2].contiguous(), torch.randn(5, 2)[:, 0], [torch.randn(4, 3).t()]))
    ),
    "complex": Case(Complex, two(lambda: (torch.randn(3, 4, 2),))),
    "quantised": Case(Quantised, two(lambda: (torch.randn(3, 4),))),
    "symbolic": Case(
        Symbolic,
        (lambda: (torch.randn(3, 4), 5), lambda: (torch.randn(7, 4), 9), lambda: (torch.randn(3, 4), 2)),
        {"dynamic": True},
    ),
    "fp16": Case(lambda: Precise(torch.float16), two(lambda: (torch.randn(3, 8, dtype=torch.float16),))),
    "bf16": Case(lambda: Precise(torch.bfloat16), two(lambda: (torch.randn(3, 8, dtype=torch.bfloat16),))),
    "fp64": Case(lambda: Precise(torch.float64), two(lambda: (torch.randn(3, 8, dtype=torch.float64),))),
    "local class": Case(local_model, two(lambda: (torch.randn(3, 4),))),
}


def same(one, other):
    """Equal, container by container, tensor by tensor."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    return one == other


def aliases(outputs, arguments):
    """Which tensors of a call share memory with which, by position: what an in-place model's callers rely on."""
    leaves = [item for item in torch.utils._pytree.tree_leaves((arguments, outputs)) if isinstance(item, torch.Tensor)]
    return [[one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in leaves] for one in leaves]


def run(case, cache_dir):
    from npugraph_ex.inference import cache_compile

    torch.manual_seed(0)
    model = case.model()
    eager = copy.deepcopy(model)
    cached = cache_compile(model.method, cache_dir=cache_dir, **case.options)
    equal = True
    for number, make in enumerate(case.calls):
        torch.manual_seed(number + 1)
        given = make()
        torch.manual_seed(number + 1)
        plain = make()
        with torch.no_grad():
            got = cached(*given, **case.named)
            expected = eager.method(*plain, **case.named)
        equal &= same(got, expected) and same(list(given), list(plain)) and aliases(got, given) == aliases(expected, plain)
        equal &= same(dict(model.named_buffers()), dict(eager.named_buffers()))
    return {"origin": cached.origin, "reason": cached.reason, "equal": bool(equal), "usual": cached._usual is not None}


def main(cache_dir, *chosen):
    told = {name: run(case, cache_dir) for name, case in CASES.items() if not chosen or name in chosen}
    print(json.dumps({"cases": told, "dynamo": "torch._dynamo" in sys.modules}))  # noqa: T201 -- what its test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
    gc.freeze()
