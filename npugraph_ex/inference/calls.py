"""The check of every call: quick where nothing changed, whole where something did.

Promise: a call for which ``CallCheck`` gives no reason fulfils every fact of its entry.  The quick check is a Python function that
is made from the facts alone, out of a closed set of phrases in which everything that is not a number or a name is a constant
bound at load; it says only whether to look closer, and ``fit.Misfits`` does that and has the last word.  Its cost is tools/bench's.
"""

from __future__ import annotations

import operator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch

from npugraph_ex.inference.calls_bound import Bound, bound_constants
from npugraph_ex.inference.calls_source import CHECK
from npugraph_ex.inference.facts_settings import asker
from npugraph_ex.inference.facts_tensors import storage_format
from npugraph_ex.inference.facts_values import Unencodable, encode
from npugraph_ex.inference.fit import Misfits, contains

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugraph_ex.inference.facts import Facts

FITS: Final = -1
LOOK_CLOSER: Final = -2
_MOST_BINDINGS: Final = 8
"""How often constants are taken anew from a call that fits after all: a model that swaps parts to and fro must not pay each time."""


class CallCheck:
    """Called as the function itself, self first: the reason why the entry does not fit this call, "" if it does.

    ``code`` is what ``calls_source.compiled`` made of the same facts. The first call is checked whole.
    """

    def __init__(self, facts: Facts, code: CodeType, function: FunctionType) -> None:
        self._facts = facts
        self._code = code
        self._function = function
        self._bindings = 0
        self._quick: Callable[..., int] = _look_closer

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """No exception leaves it for a call that the function itself would accept."""
        try:
            found = self._quick(*args, **kwargs)
        except TypeError:
            found = LOOK_CLOSER  # arguments that do not fit the function: the closer look says so
        return "" if found == FITS else self._closer(found, args, kwargs)

    def _closer(self, found: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The fact that the quick check stumbled over; if that one holds after all, every fact."""
        if found >= 0 and (reason := Misfits(self._facts, self._function, args, kwargs, only=found).first()):
            return reason
        checked = Misfits(self._facts, self._function, args, kwargs)
        reason = checked.first()
        if not reason and self._bindings < _MOST_BINDINGS:
            self._bindings += 1
            self._quick = self._bind(checked.values)
        return reason

    def _bind(self, values: list[Any]) -> Callable[..., int]:
        """The quick check, with what a whole check has just found to fit as its constants."""
        facts, function = self._facts, self._function
        data = [fact.data for fact in facts.facts]

        def differs(number: int, value: object) -> bool:
            try:
                return bool(encode(value) != data[number])
            except Unencodable:
                return True

        def keys_differ(number: int, value: Any) -> bool:
            try:
                return bool([encode(key) for key in value] != data[number])
            except Unencodable:
                return True

        def holds_otherwise(number: int, value: Any) -> bool:
            key, was = data[number]
            return contains(value, key) is not was

        bound = Bound(
            function=function,
            differs=differs,
            keys_differ=keys_differ,
            holds_otherwise=holds_otherwise,
            settings=_settings(facts),
            storages=_storages,
            format=storage_format,
        )
        constants = bound_constants(facts, values, bound)
        check = FunctionType(self._code, constants, CHECK, function.__defaults__)
        check.__kwdefaults__ = function.__kwdefaults__
        return check


def _look_closer(*_args: Any, **_kwargs: Any) -> int:
    return LOOK_CLOSER


_storage_of: Final = torch.Tensor.untyped_storage
_address_of: Final = operator.attrgetter("_cdata")


def _storages(tensors: tuple[Any, ...]) -> list[int]:
    return [*map(_address_of, map(_storage_of, tensors))]


def _settings(facts: Facts) -> Callable[[], bool]:
    """Whether any setting changed, or which device is the current one: facts name that one without its number."""
    pairs = [(asker(name), was) for name, was in facts.settings.items()]
    current = [
        ask for kind in facts.devices if (ask := getattr(getattr(torch, kind, None), "current_device", None)) and kind != "cpu"
    ]
    pairs += [(ask, ask()) for ask in current]
    return lambda: any(ask() != was for ask, was in pairs)
