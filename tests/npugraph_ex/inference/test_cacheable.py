"""What cannot be kept is refused with its reason; what only looks as if it could not is kept."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own habit
from torch import nn

from npugraph_ex.inference.cacheable import NotCacheable, Why, wants_backward
from tests.npugraph_ex.inference.facts_made import made

X = torch.ones(3, 8)
COUNT = 0


class Sentinel:
    pass


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: int


class Models(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.cache = None
        self.mark = Sentinel()
        self.register_buffer("steps", torch.zeros(8))
        self.drop = nn.Dropout(0.5)
        self.generator = torch.Generator()

    def noise(self, x):
        return x + torch.randn_like(x)

    def whole_numbers(self, x):
        return x + torch.randint(0, 9, (8,))

    def coin(self, x):
        return torch.bernoulli(x * 0.5)

    def drops(self, x):
        return self.drop(x)

    def leaky(self, x):
        return F.rrelu(x, training=True)

    def attends_and_drops(self, x):
        q = x.view(1, 1, 3, 8)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1)

    def with_generator(self, x):
        return torch.normal(x, 1.0, generator=self.generator)

    def counts(self, x):
        self.count += 1
        return x * self.count

    def counts_globally(self, x):
        global COUNT  # noqa: PLW0603 -- what is refused
        COUNT += 1
        return x * COUNT

    def remembers(self, x):
        y = x if self.cache is None else x + self.cache
        self.cache = y * 2
        return y

    def compares(self, x):
        return x + 1 if self.mark is SENTINEL else x

    # ---- kept

    def attends(self, x):
        q = x.view(1, 1, 3, 8)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.0)

    def drops_nothing(self, x):
        return F.dropout(x, 0.0, training=True) + F.dropout(x, 0.5, training=False) + F.rrelu(x)

    def counts_in_a_buffer(self, x):
        self.steps.add_(1)
        return x + self.steps

    def writes_only(self, x):
        self.last = x * 2
        return x

    def makes_another(self, x):
        return dataclasses.replace(Pair(x, 2), left=x * Pair(x, 3).right)

    def is_a_norm(self, x):
        return torch.norm(x, p=3) + torch.cdist(x, x, p=1.0).sum()


SENTINEL = Sentinel()

REFUSED = {
    "noise": (Why.RANDOM, "aten.randn_like"),
    "whole_numbers": (Why.RANDOM, "aten.randint"),
    "coin": (Why.RANDOM, "aten.bernoulli"),
    "drops": (Why.RANDOM, "dropout"),
    "leaky": (Why.RANDOM, "rrelu"),
    "attends_and_drops": (Why.RANDOM, "draws random numbers"),
    "counts": (Why.CHANGES_CONSTANT, "self.count"),
    "counts_globally": (Why.CHANGES_CONSTANT, "COUNT"),
    "remembers": (Why.CHANGES_CONSTANT, "self.cache"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_answer_wrongly_later_is_refused_fc05(name):
    why, words = REFUSED[name]
    with pytest.raises(NotCacheable) as refused:
        made(Models(), name, X)
    assert refused.value.why == why
    assert words in refused.value.message


def test_a_generator_of_this_process_is_refused():
    with pytest.raises(NotCacheable):
        made(Models(), "with_generator", X)


@pytest.mark.parametrize("name", ["attends", "drops_nothing", "counts_in_a_buffer", "writes_only", "makes_another", "is_a_norm"])
def test_what_draws_nothing_and_what_state_a_tensor_holds_is_kept(name):
    assert made(Models(), name, X).whole(X) == ""


def test_dropout_is_kept_once_the_model_is_in_eval():
    entry = made(Models().eval(), "drops", X)
    entry.instance.train()
    assert "training was False, is True" in entry.whole(X)


def test_two_objects_that_were_compared_must_stay_two():
    entry = made(Models(), "compares", X)
    assert entry.whole(X) == ""
    entry.instance.mark = SENTINEL
    assert "are one object" in entry.whole(X)


def test_an_argument_that_asks_for_a_gradient_is_refused_while_gradients_are_on():
    asking = torch.ones(3, 8, requires_grad=True)
    with pytest.raises(NotCacheable) as refused:
        made(Models(), "writes_only", asking)
    assert refused.value.why == Why.NEEDS_BACKWARD
    with torch.no_grad():
        assert made(Models(), "writes_only", asking).whole(asking) == ""


def test_gradients_are_looked_for_inside_arguments_but_not_in_the_model():
    asking = torch.ones(2, requires_grad=True)
    assert wants_backward({"x": torch.ones(2), "kv": [{"k": (torch.ones(2), asking)}]}) == "kv"
    assert wants_backward({"self": nn.Linear(2, 2), "x": torch.ones(2)}) == ""
    with torch.no_grad():
        assert wants_backward({"x": asking}) == ""


def test_a_function_that_dynamo_does_not_look_into_is_refused():
    @torch.compiler.allow_in_graph
    def opaque(x):
        return x * 2

    class Opaque(nn.Module):
        def run(self, x):
            return opaque(x)

    with pytest.raises(NotCacheable) as refused:
        made(Opaque(), "run", X)
    assert refused.value.why == Why.UNKNOWN_CODE


def test_an_operator_of_the_users_own_is_kept_by_its_name_and_refused_where_python_takes_it_apart():
    library = torch.library.Library("npgxd_test_cacheable", "DEF")
    library.define("kept(Tensor x) -> Tensor")
    library.define("taken_apart(Tensor x) -> Tensor")
    library.impl("kept", lambda x: x * 2, "CPU")
    library.impl("kept", torch.empty_like, "Meta")
    library.impl("taken_apart", lambda x: x * 2, "CompositeImplicitAutograd")

    class Own(nn.Module):
        def kept(self, x):
            return torch.ops.npgxd_test_cacheable.kept(x)

        def taken_apart(self, x):
            return torch.ops.npgxd_test_cacheable.taken_apart(x)

    assert made(Own(), "kept", X).whole(X) == ""
    with pytest.raises(NotCacheable) as refused:
        made(Own(), "taken_apart", X)
    assert refused.value.why == Why.UNKNOWN_CODE
    library._destroy()
