"""Whether an entry of the bundled compile cache is for this process and this call; and the name under which the daemon has it.

Promise: ``facts_of`` gives what ``misfit`` finds nothing against, in this and every equal process; ``misfit`` names the first thing
that differs. The key is what is known before a trace, and no proof of anything: an entry that it leads to is checked as a file is.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from npgxd.bridge.made_from import arguments, attributes_of, classes_of, place_now, settings_now, tensors_of, told, versions_now
from npgxd.bridge.sidecar import FORMAT
from npgxd.bridge.sources import changed, digest_of_plain, globals_in, names_in, sources_of, users
from npgxd.client.codes import described, source_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType, MethodType

_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Call:
    """The first call of one wrapped method. ``info``: the bundled name of model and options; ``bundled``: its file format's version."""

    torch: Any
    torch_npu: Any
    method: MethodType
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic: bool
    decompositions: Mapping[Any, Any] | None
    info: str
    bundled: str

    @property
    def label(self) -> str:
        """For people: which method of which model."""
        return self.method.__qualname__

    def around(self) -> dict[str, dict[str, Any]]:
        """What is compared name by name and depends on no trace."""
        return {
            "versions": versions_now(self.torch, self.torch_npu, self.bundled),
            "settings": settings_now(self.torch, self.decompositions),
            "place": place_now(self.torch, self.torch_npu),
            "model": {"info": self.info, "tensors": digest_of_plain(tensors_of(self.method.__self__))},
            "function": {f"{self.method.__module__}.{self.method.__qualname__}": digest_of_plain(described(self.method))},
        }


def key_of(call: Call) -> str:
    """The first key to ask the daemon for: 64 hexadecimal digits."""
    model: Any = call.method.__self__
    known = {
        "schema": ["bridge", FORMAT],
        "around": call.around(),
        "sources": source_digests(map(type, model.modules()), call.method.__module__),
        "training": [part.training for part in model.modules()],
        "arguments": arguments(call.args, call.kwargs, dynamic=call.dynamic),
        "dynamic": call.dynamic,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def facts_of(call: Call, traced: Iterable[CodeType]) -> dict[str, Any]:
    """Everything that must still hold, from what Dynamo looked into. UnknownSource if some of that could not be found again."""
    own = users(traced)
    names = names_in(own)
    values = {place: _global(place, names) for place in globals_in(own)}
    return {
        **call.around(),
        "names": sorted(names),
        "sources": sources_of(own),
        **_reached(call, names),
        "globals": {place: text for place, text in values.items() if text is not None},
        "closure": _closure(call, names),
    }


def _reached(call: Call, names: frozenset[str]) -> dict[str, Any]:
    model = call.method.__self__
    lines = arguments(call.args, call.kwargs, dynamic=call.dynamic, names=names)
    return {
        "classes": classes_of(model, names),
        "attributes": attributes_of(model, names),
        "arguments": {line.partition(" ")[0]: line.partition(" ")[2] for line in lines},
    }


def _global(place: str, names: frozenset[str]) -> str | None:
    module, _, name = place.partition(":")
    value = vars(sys.modules[module]).get(name, _MISSING) if module in sys.modules else _MISSING
    return None if value is _MISSING else told(value, names)


def _closure(call: Call, names: frozenset[str]) -> dict[str, str]:
    """What the method itself closes over, and its defaults."""
    function: Any = call.method.__func__
    found = {f"default {at}": told(value, names) for at, value in enumerate(function.__defaults__ or ())}
    found |= {f"default {name}": told(value, names) for name, value in (function.__kwdefaults__ or {}).items()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = told(cell.cell_contents, names)
        except ValueError:  # a cell without a value yet
            found[name] = None
    return {name: text for name, text in found.items() if text is not None}


def misfit(facts: Mapping[str, Any], call: Call) -> str:
    """Why an entry that was made from ``facts`` is not for this call in this process; "" if it is."""
    try:
        for kind, now in call.around().items():
            if reason := _difference(kind, facts[kind], now):
                return reason
        if reason := changed(facts["sources"]):
            return reason
        names = frozenset(facts["names"])
        for kind, now in (*_reached(call, names).items(), ("closure", _closure(call, names))):
            if reason := _difference(kind, facts[kind], now):
                return reason
        values = {place: _global(place, names) for place in facts["globals"]}
        return _difference("globals", facts["globals"], values)
    except Exception as error:  # noqa: BLE001 -- what cannot be compared is not known to fit
        return f"what it was made from cannot be compared: {error!r}"


_SPOKEN: Final[Mapping[str, str]] = {
    "versions": "version",
    "settings": "setting",
    "place": "this process's",
    "model": "the model's",
    "function": "the code of",
    "classes": "the code of class",
    "attributes": "the model's attribute",
    "arguments": "argument",
    "closure": "what the method holds:",
    "globals": "global",
}


def _difference(kind: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing that differs, in words."""
    for name in sorted({**was, **now}):
        before, after = was.get(name), now.get(name)
        if before != after:
            return f"{_SPOKEN[kind]} {name} was {before or 'not there'}, is {after or 'not there'}"
    return ""
