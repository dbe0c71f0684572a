"""Whether an entry fits this process and this call: every recorded fact, one by one, with the first that fails in words.

Promise: no fact is skipped, nothing is changed, and no code runs but access to the user's own attributes.  This is the whole and
slow check, for the first call of a loaded entry and for the reason of a later misfit; ``calls`` is the quick one.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from npgxd.client.codes import class_described, class_name, code_digest, own_names
from npugraph_ex.inference.facts_paths import MISSING, Roots, follow, spoken, with_bases
from npugraph_ex.inference.facts_settings import settings_now, versions_now
from npugraph_ex.inference.facts_shapes import NoRange, holds
from npugraph_ex.inference.facts_tensors import TensorFact, aliases, tensor_misfit
from npugraph_ex.inference.facts_values import Unencodable, encode, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FunctionType

    from npugraph_ex.inference.facts import ClassFact, Fact, Facts


def unfit(facts: Facts, function: FunctionType, made_from: Mapping[str, Any]) -> str:
    """What differs in this process whatever the call: versions, options, the function's code. "" if nothing does.

    ``made_from`` is what ``facts_given.given`` says of the options and decompositions of now.
    """
    versions = versions_now(facts.devices)
    for name in sorted(facts.versions.keys() | versions.keys()):
        was, now = facts.versions.get(name, "absent"), versions.get(name, "absent")
        if was != now:
            return f"{name} was {was}, is {now}"
    if code_digest(function.__code__) != facts.code:
        return f"the code of {function.__qualname__} changed"
    return _given_misfit(facts.made_from, made_from)


def _given_misfit(was: Any, now: Any, place: str = "") -> str:
    if was == now:
        return ""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted(was.keys() | now.keys()):
            inner = _given_misfit(was.get(name), now.get(name), f"{place} {name}".strip())
            if inner:
                return inner
    return f"{place} was {told(was)}, is {told(now)}" if _is_value(was) and _is_value(now) else f"{place} changed"


def _is_value(given: Any) -> bool:
    """Whether it is a value that ``encode`` gave, and no code."""
    return not isinstance(given, (list, dict)) or (
        isinstance(given, list) and bool(given) and given[0] in ("int", "float", "tuple")
    )


class Misfits:
    """The facts of one entry against one call of one function."""

    def __init__(
        self, facts: Facts, function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any], *, only: int | None = None
    ) -> None:
        """For the call ``function(*args, **kwargs)``, self included; of all facts, or of number ``only``."""
        self._facts = facts
        self._chosen = facts.facts if only is None else facts.facts[only : only + 1]
        self._names = frozenset(facts.names)
        self.values: list[Any] = []
        """What was found at each node."""
        try:
            bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
        except TypeError as error:
            self._unbound = f"the arguments do not fit the function: {error}"
            return
        self._unbound = ""
        bound.apply_defaults()
        wanted = None if only is None else with_bases(facts.nodes, facts.facts[only].nodes)
        self.values = follow(facts.nodes, Roots(function, bound.arguments), wanted)

    def first(self) -> str:
        """The first fact that does not hold; "" if all do."""
        if self._unbound:
            return self._unbound
        known: dict[int, type] = {}
        checks: dict[type, bool] = {}
        for fact in self._chosen:
            try:
                reason = self._misfit(fact, known, checks)
            except (TypeError, AttributeError, ValueError, RuntimeError) as error:
                reason = self._end(fact, f"cannot be compared: {error}")
            if reason:
                return reason
        return self.settings()

    def settings(self) -> str:
        """The first setting of the process that is not as it was; "" if all are."""
        now = settings_now(self._facts.settings)
        for name, was in self._facts.settings.items():
            if now.get(name) != was:
                return f"{name}: was {was!r}, is {now.get(name)!r}"
        return ""

    def _misfit(self, fact: Fact, known: dict[int, type], checks: dict[type, bool]) -> str:
        if fact.node < 0:
            return self._several(fact)
        value = self.values[fact.node]
        if value is MISSING:
            return f"{self._spoken(fact.node)} is gone"
        reason = self._of_value(fact, value, known, checks)
        return self._end(fact, reason) if reason else ""

    def _of_value(self, fact: Fact, value: Any, known: dict[int, type], checks: dict[type, bool]) -> str:
        match fact.kind:
            case "type":
                return self._type(fact.data, type(value), known, checks)
            case "same":
                return "" if value is self.values[fact.data] else f"is no longer {self._spoken(fact.data)}"
            case "own":
                return self._own(fact.data, value)
            case "value" if isinstance(value, type) and (number := self._class_number(class_name(value))) is not None:
                return _value(fact.data, value) or self._class(number, value, checks)
        return _SIMPLE[fact.kind](fact.data, value)

    def _own(self, was: Sequence[str], value: Any) -> str:
        changed = sorted(set(was) ^ set(own_names(value, self._names)))
        return f"{'no longer has' if changed[0] in was else 'now has'} its own {changed[0]}" if changed else ""

    def _end(self, fact: Fact, reason: str) -> str:
        return f"{self._spoken(fact.node)} {reason}" if fact.node >= 0 else reason

    def _spoken(self, node: int) -> str:
        return spoken(self._facts.nodes, node, self._facts.module, self._facts.own)

    def _class_number(self, name: str) -> int | None:
        return next((number for number, item in enumerate(self._facts.classes) if item.name == name), None)

    def _type(self, number: int, kind: type, known: dict[int, type], checks: dict[type, bool]) -> str:
        expected: ClassFact = self._facts.classes[number]
        if class_name(kind) != expected.name:
            return f"was a {expected.name}, is a {class_name(kind)}"
        if known.setdefault(number, kind) is not kind:
            return f"is of another class {expected.name}"
        return self._class(number, kind, checks)

    def _class(self, number: int, kind: type, checks: dict[type, bool]) -> str:
        expected = self._facts.classes[number]
        if checks.get(kind):
            return ""
        now = class_described(kind, self._names) if expected.described else []
        checks[kind] = _as_lists(now) == _as_lists(expected.described)
        return "" if checks[kind] else f"is a {expected.name}, and {_changed(expected.described, now)}"

    def _several(self, fact: Fact) -> str:
        match fact.kind:
            case "distinct":
                return self._one_object(fact.data)
            case "storage":
                nodes, groups = fact.data
                now = aliases([self.values[node] for node in nodes])
                return "" if now == list(groups) else f"{self._sharing(nodes, groups, now)} memory"
            case "range":
                return self._range_misfit(*fact.data)
        return f"{fact.kind} is not known"

    def _one_object(self, nodes: Sequence[int]) -> str:
        seen: dict[int, int] = {}
        for node in nodes:
            other = seen.setdefault(id(self.values[node]), node)
            if other != node:
                return f"{self._spoken(node)} and {self._spoken(other)} are one object"
        return ""

    def _sharing(self, nodes: Sequence[int], was: Sequence[int], now: Sequence[int]) -> str:
        place = next(place for place in range(len(nodes)) if was[place] != now[place])
        other = was[place] if now[place] == place else now[place]
        verb = "no longer share" if now[place] == place else "now share"
        return f"{self._spoken(nodes[place])} and {self._spoken(nodes[other])} {verb}"

    def _range_misfit(self, text: str, places: Sequence[tuple[int, str, int | None]]) -> str:
        numbers = {}
        for place, (node, part, axis) in enumerate(places):
            value = self.values[node]
            if value is None:
                return f"{self._spoken(node)} is None"
            numbers[place] = value if part == "value" else _part(value, part, axis)
        try:
            fits = holds(text, numbers)
        except (NoRange, TypeError, ValueError, ArithmeticError) as error:
            return f"{text} cannot be judged: {error}"
        return "" if fits else f"{self._ranged(text, places)} does not hold for {', '.join(map(str, numbers.values()))}"

    def _ranged(self, text: str, places: Sequence[tuple[int, str, int | None]]) -> str:
        for number, (node, part, axis) in enumerate(places):
            name = self._spoken(node)
            text = text.replace(f"S[{number}]", name if part == "value" else f"{name}.{part}({'' if axis is None else axis})")
        return text


def _part(value: Any, part: str, axis: int | None) -> Any:
    found = getattr(value, part)()
    return found if axis is None else found[axis]


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _changed(was: Sequence[Any], now: Sequence[Any]) -> str:
    """Which base or method of a class differs."""
    if [base for base, _body in was] != [base for base, _body in now]:
        return "its bases changed"
    for (base, before), (_base, after) in zip(was, now, strict=True):
        old, new = ({name: _as_lists(found) for name, found in body} for body in (before, after))
        for name in sorted(old.keys() | new.keys()):
            if name not in old or name not in new:
                return f"{base.rpartition(':')[2]} {'now defines' if name in new else 'no longer defines'} {name}"
            if old[name] != new[name]:
                return f"the code of {base.rpartition(':')[2]}.{name} changed"
    return "its code changed"


# ---- facts about one value: what differs, as the end of a sentence --------------------------------------------------------


def _value(data: Any, value: Any) -> str:
    try:
        now = encode(value)
    except Unencodable:
        return f"was {told(data)}, is an object of {class_name(type(value))}"
    if _as_lists(now) == _as_lists(data):
        return ""
    was, has = told(data), told(now)
    if isinstance(data, list) and data[0] in {"function", "method", "code", "callable"}:
        return "has other code"
    if was == has and _kind(data) == "enum":
        return f"was {was}, whose value is another one now"
    return f"was {was}, is {has}" if was != has else f"was {was} ({_kind(data)}), is {has} ({_kind(now)})"


def _kind(encoded: Any) -> str:
    return str(encoded[0]) if isinstance(encoded, list) else type(encoded).__name__


def _tensor(data: Any, value: Any) -> str:
    return tensor_misfit(TensorFact.parse(data), value)


def _len(data: Any, value: Any) -> str:
    return "" if len(value) == data else f"had {data} items, has {len(value)}"


def _keys(data: Any, value: Any) -> str:
    try:
        now = [encode(key) for key in value]
    except Unencodable as error:
        return f"has other keys: {error}"
    return "" if _as_lists(now) == _as_lists(data) else "has other keys"


def _has(data: Any, value: Any) -> str:
    name, was = data
    return "" if hasattr(value, name) == was else f"{'lacks' if was else 'now has'} {name}"


def _absent(data: Any, value: Any) -> str:
    return f"now has its own {data}" if data in value.__dict__ else ""


def _contains(data: Any, value: Any) -> str:
    key, was = data
    return "" if contains(value, key) == was else f"{'lacks' if was else 'now has'} {told(key)}"


def contains(container: Any, key: Any) -> bool:
    """Whether a dictionary or a set has the key that ``encode`` gave ``key`` for."""
    if isinstance(key, str):
        return key in container
    return any(_encodes_to(item, key) for item in container)


def _encodes_to(value: Any, encoded: Any) -> bool:
    try:
        return bool(_as_lists(encode(value)) == encoded)
    except Unencodable:
        return False


def _empty(_data: Any, value: Any) -> str:
    return "is no longer empty" if value else ""


def _some(_data: Any, value: Any) -> str:
    return "is None" if value is None else ""


_SIMPLE: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "value": _value,
    "tensor": _tensor,
    "len": _len,
    "keys": _keys,
    "has": _has,
    "absent": _absent,
    "contains": _contains,
    "empty": _empty,
    "some": _some,
}
