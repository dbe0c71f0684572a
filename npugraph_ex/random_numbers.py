"""Which operators of a graph draw random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from torch.fx import Node

_OPERATORS: Final[Any] = torch._ops  # noqa: SLF001 -- torch has no public names for the classes of operators
_RATES: Final = ("dropout_p", "p", "dropout", "keep_prob")


def draws_random_numbers(node: Node) -> bool:
    """By the operator's tag, and by its dropout argument: with dropout 0 attention draws none, whatever its tag says.

    Some attention operators of an NPU draw without the tag; their rate, or ``keep_prob`` below 1, gives them away.
    """
    target = node.target
    if not isinstance(target, _OPERATORS.OpOverload):
        return False
    given = _arguments(node, target)
    if given.get("train") is False or given.get("training") is False:
        return False
    rates = {name: given[name] for name in _RATES if name in given and _is_rate(target, name)}
    if rates:
        return any(value != (1 if name == "keep_prob" else 0) for name, value in rates.items())
    return torch.Tag.nondeterministic_seeded in target.tags


def _is_rate(target: Any, name: str) -> bool:
    """``p`` is a norm's order elsewhere: it is a rate where the operator is tagged, or says dropout."""
    return name != "p" or torch.Tag.nondeterministic_seeded in target.tags or "dropout" in str(target)


def _arguments(node: Node, target: Any) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for place, argument in enumerate(target._schema.arguments):  # noqa: SLF001 -- torch has no public name for it
        if place < len(node.args):
            given[argument.name] = node.args[place]
        elif argument.name in node.kwargs:
            given[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
    return given
