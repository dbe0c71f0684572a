"""One trace of a small model, judged and written down, for tests of the parts that say whether an entry fits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugraph_ex.inference import tracing
from npugraph_ex.inference.cacheable import refuse_unless_cacheable
from npugraph_ex.inference.calls import CallCheck
from npugraph_ex.inference.calls_source import compiled
from npugraph_ex.inference.facts import Facts
from npugraph_ex.inference.facts_collect import collect
from npugraph_ex.inference.facts_given import given
from npugraph_ex.inference.fit import Misfits
from npugraph_ex.options import Options

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Made:
    """Facts of one method, and the two checks that are made of them."""

    facts: Facts
    function: Any
    instance: torch.nn.Module

    def whole(self, *args: Any, **kwargs: Any) -> str:
        return Misfits(self.facts, self.function, (self.instance, *args), kwargs).first()

    def check(self) -> CallCheck:
        return CallCheck(self.facts, compiled(self.facts, self.function.__code__), self.function)


def made(instance: torch.nn.Module, name: str, *args: Any, dynamic: bool = True, **kwargs: Any) -> Made:
    """Facts as another process would read them: through JSON."""
    function = getattr(type(instance), name)
    capture = tracing.trace(function, instance, args, kwargs, dynamic=dynamic, decompositions={})
    refuse_unless_cacheable(capture)
    facts = collect(capture, tracing.ranges(capture), given(Options(), {}, dynamic=dynamic))
    return Made(Facts.parse(json.loads(json.dumps(facts.plain()))), function, instance)
