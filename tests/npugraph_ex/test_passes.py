from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npugraph_ex.passes import remove_noop_ops

aten = torch.ops.aten


def traced(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs)


def operators(module):
    return [node.target.overloadpacket.__name__ for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


NOTHING = {
    "slice": lambda x: aten.slice(x + 1, 0, 0, 2**62) * 2,
    "view": lambda x: aten.view(x + 1, [3, 4]) * 2,
    "permute": lambda x: aten.permute(x + 1, [0, 1]) * 2,
    "expand": lambda x: aten.expand(x + 1, [3, 4]) * 2,
    "repeat": lambda x: aten.repeat(x + 1, [1, 1]) * 2,
    "constant_pad_nd": lambda x: aten.constant_pad_nd(x + 1, [0, 0], 3.5) * 2,
    "cat": lambda x: aten.cat([x + 1]) * 2,
    "pow": lambda x: aten.pow(x + 1, 1) * 2,
    "clone": lambda x: aten.clone(x + 1) * 2,
    "_to_copy": lambda x: aten._to_copy(x + 1, dtype=torch.float32) * 2,
    "convert_element_type": lambda x: torch.ops.prims.convert_element_type(x + 1, torch.float32) * 2,
}


@pytest.mark.parametrize("name", NOTHING)
def test_an_operator_that_changes_nothing_goes(name):
    x = torch.randn(3, 4)
    module = traced(NOTHING[name], x)
    assert operators(module) == ["add", name, "mul"]
    assert remove_noop_ops(module.graph) == 1
    module.recompile()
    assert operators(module) == ["add", "mul"]
    assert torch.equal(module(x), NOTHING[name](x))


SOMETHING = {
    "another slice": lambda x: aten.slice(x + 1, 0, 0, 2) * 2,
    "another step": lambda x: aten.slice(x + 1, 0, 0, 2**62, 2) * 2,
    "another order": lambda x: aten.permute(x + 1, [1, 0]) * 2,
    "another order of a square": lambda x: aten.permute((x @ x.mT), [1, 0]) * 2,
    "another dtype": lambda x: aten._to_copy(x + 1, dtype=torch.float64) * 2,
    "more copies": lambda x: aten.repeat(x + 1, [2, 1]) * 2,
    "another layout": lambda x: aten.clone((x + 1).mT, memory_format=torch.contiguous_format) * 2,
    "another power": lambda x: aten.pow(x + 1, 2) * 2,
    "a rounding of floats": lambda x: aten.floor(x + 1) * 2,
}


@pytest.mark.parametrize("name", SOMETHING)
def test_an_operator_that_changes_something_stays(name):
    assert remove_noop_ops(traced(SOMETHING[name], torch.randn(3, 4)).graph) == 0


def test_rounding_whole_numbers_changes_nothing():
    module = traced(lambda x: aten.floor(x + 1) * 2, torch.arange(3))
    assert remove_noop_ops(module.graph) == 1


@pytest.mark.parametrize(
    ("function", "shares"),
    [
        (aten.clone, False),
        (lambda x: aten.view(x, [3, 4]), True),
        (lambda x: aten.clone(x).view([4, 3]), False),
        (lambda x: aten.clone(x).split([1, 2])[1], False),
        (lambda x: aten.clone(x).mT, False),
    ],
)
def test_no_output_comes_to_share_memory_with_an_input(function, shares):
    x = torch.randn(3, 4)
    module = traced(function, x)
    remove_noop_ops(module.graph)
    module.recompile()
    result = module(x)
    assert (result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == shares
    assert result is not x


def test_no_output_comes_to_share_memory_with_another():
    def function(x):
        y = x + 1
        return y, aten.clone(y)

    module = traced(function, torch.randn(3))
    assert remove_noop_ops(module.graph) == 0


def test_a_copy_that_protects_from_a_change_stays():
    def function(x):
        before = aten.clone(x)
        aten.add_(x, 1)
        return before * 2

    module = traced(function, torch.randn(3))
    assert remove_noop_ops(module.graph) == 0


@pytest.mark.parametrize("on", [True, False])
def test_the_option_turns_the_pass_on_and_off(on):
    seen = []

    def look(module, example_inputs, options):
        seen.append((operators(module), options.remove_noop_ops, len(example_inputs)))

    options = {"remove_noop_ops": on, "post_grad_custom_post_pass": look}
    compiled = torch.compile(lambda x: (x + 1)[:].repeat(1, 1) * 2, backend="npugraph_ex", options=options, fullgraph=True)
    x = torch.randn(3, 4)
    assert torch.equal(compiled(x), (x + 1) * 2)
    assert seen == [(["add", "mul"] if on else ["add", "slice", "repeat", "mul"], on, 1)]


def test_the_users_passes_change_the_graph_before_and_after():
    order = []

    def pre(module, _inputs, _options):
        order.append(("pre", operators(module)))
        for node in module.graph.nodes:
            if node.target is aten.add.Tensor:
                node.target = aten.sub.Tensor

    def post(module, _inputs, _options):
        order.append(("post", operators(module)))

    options = {"post_grad_custom_pre_pass": pre, "post_grad_custom_post_pass": post}
    compiled = torch.compile(lambda x: (x + 1)[:] * 2, backend="npugraph_ex", options=options, fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), (x - 1) * 2)
    assert [word for word, _ in order] == ["pre", "post"]
    assert order[1][1] == ["sub", "mul"]


def test_an_error_in_a_users_pass_is_the_users():
    def broken(_module, _inputs, _options):
        raise RuntimeError("my pass is broken")

    compiled = torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"post_grad_custom_pre_pass": broken})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="my pass is broken"):
        compiled(torch.ones(2))
