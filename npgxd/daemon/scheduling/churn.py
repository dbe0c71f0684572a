"""Churn: operators whose ``const_data`` or shapes keep changing are found, and no longer compiled for every new value.

A kernel for a value that never comes again is lost work for the process that waits for it, and for everybody behind it.  Pure state, no
I/O.  What tells churn from breadth is how new kernels come, not how many: a start-up asks for hundreds of kernels of one operator in one
round, and for some more in a few dozen later ones (one for each batch size that is captured); where a value changes all the time, round
after round brings a new kernel for the *same operator call*, that is for a record in which nothing else differs.  So rounds are counted:
for each such call of one graph of one process, and, since some callers name every round's graph anew, of all its graphs together,
which may have several times as many.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npgxd.config import LimitsSection
    from npgxd.daemon.sessions import Session
    from npgxd.toolchain.record import Record

MAX_CALLS: Final = 8192
"""Operator calls of one user that are watched; those that were not seen for longest are forgotten first."""
ALL_GRAPHS: Final = 4
"""All graphs of one process together may have so many times as many rounds as one graph."""
MAX_VALUES: Final = 1024
"""Values of one call that are remembered."""
MAX_ALL_VALUES: Final = 131_072
"""Values of all calls of one user; beyond them, too, the calls that were not seen for longest are forgotten."""
_SHOWN: Final = 50

# The canonical form of a record is compact JSON with sorted keys, and a quote inside of a text is escaped: names are found by their form.
_TEXT: Final = rb'"(?:[^"\\]|\\.)*+"'
_FLAT: Final = rb'\[(?:[^\[\]"]|' + _TEXT + rb")*+\]"
_LIST: Final = rb'\[(?:[^\[\]"]|' + _TEXT + rb"|" + _FLAT + rb")*+\]"
_CONSTANT: Final = re.compile(rb'"const_data":(?:' + _LIST + rb"|" + _TEXT + rb"|[^,}\]]*+)")
_SHAPE: Final = re.compile(rb'"(?:[a-z_]*shape|stride|offset)":(?:\[[^\]]*+\]|-?[0-9]+)')


class Changing(StrEnum):
    """What keeps changing in an operator call."""

    CONST_DATA = "const_data"
    SHAPES = "shapes"


_REMEDY: Final[Mapping[Changing, str]] = {
    Changing.CONST_DATA: "pass the value as a tensor that is no constant",
    Changing.SHAPES: "pad to a few sizes",
}


class Graph(NamedTuple):
    """Whose rounds are counted together: those of one graph in one process, whatever its sizes; without a name, of all its graphs."""

    uid: int
    job: str
    process: str
    name: str


def graph_of(session: Session, label: str) -> Graph:
    """The graph that a session's process submits for; a label may end with the sizes of a call, as in ``decode[8]``."""
    pid = session.peer.pid or session.hello.pid  # its own word where the kernel has none here
    return Graph(session.peer.uid, session.job, f"rank {session.rank.rank}, pid {pid}", label.partition("[")[0])


@dataclass(slots=True)
class _Call:
    """One operator call of one graph, or of all graphs of a process, but for what changes in it."""

    graph: Graph
    op_type: str
    what: Changing
    rounds: int = 0
    capped: int = 0
    known: bool = True
    values: dict[bytes, None] = field(default_factory=dict)
    """In the order in which they came; mostly one, for which an OrderedDict would take three times as much memory."""

    def remember(self, value: bytes) -> int:
        """Note a value; how many more there are now."""
        before = len(self.values)
        self.values[value] = None
        if len(self.values) > MAX_VALUES:
            del self.values[next(iter(self.values))]
        return len(self.values) - before


class _Seen(NamedTuple):
    key: str
    call: _Call
    value: bytes


class Churn:
    """The operator calls of all graphs, as their rounds bring kernels that nobody has."""

    def __init__(self, limits: LimitsSection) -> None:
        self._limits = limits
        self._calls: dict[int, OrderedDict[bytes, _Call]] = {}
        self._values: Counter[int] = Counter()
        """uid -> values of all its calls."""

    def take(self, graph: Graph, missing: Iterable[tuple[str, Record]]) -> dict[str, str]:
        """A round brings these keys, which have no kernel yet; key -> reason, for those that are not to be compiled."""
        capped: dict[str, str] = {}
        fresh: list[_Seen] = []
        for key, record in missing:
            seen = [one for one in self._look(graph, key, record) if one.value not in one.call.values]
            stopped = next((one.call for one in seen if 0 < self._limit(one.call) <= one.call.rounds), None)
            if stopped is None:
                fresh += seen
            else:
                stopped.capped += 1
                capped[key] = self._reason(stopped)
        for call in {id(one.call): one.call for one in fresh}.values():
            call.rounds += 1
        for one in fresh:
            self._remember(one)
        return capped

    def _remember(self, seen: _Seen) -> None:
        call, uid = seen.call, seen.call.graph.uid
        if call.known:
            self._values[uid] += call.remember(seen.value)
        while self._values[uid] > MAX_ALL_VALUES and len(self._calls[uid]) > 1:
            self._part(self._calls[uid].popitem(last=False)[1])

    def _part(self, call: _Call) -> None:
        """A call is not watched any more."""
        call.known = False
        self._values[call.graph.uid] -= len(call.values)

    def forget(self, op_type: str = "") -> int:
        """Count anew, for one operator or for all; how many calls had been capped."""
        found = 0
        for calls in self._calls.values():
            for name, call in [(name, call) for name, call in calls.items() if op_type in {"", call.op_type}]:
                found += call.capped > 0
                self._part(calls.pop(name))
        return found

    def describe(self) -> list[dict[str, object]]:
        """For the status document: what is capped, most of all first."""
        stopped = [call for calls in self._calls.values() for call in calls.values() if call.capped]
        stopped.sort(key=lambda call: -call.capped)
        return [
            {
                "op_type": call.op_type,
                "what": str(call.what),
                "uid": call.graph.uid,
                "job": call.graph.job,
                "process": call.graph.process,
                "graph": call.graph.name,
                "rounds": call.rounds,
                "not_compiled": call.capped,
                "limit": self._limit(call),
                "option": f"[limits] churn_{call.what}",
                "remedy": _REMEDY[call.what],
            }
            for call in stopped[:_SHOWN]
        ]

    def _look(self, graph: Graph, key: str, record: Record) -> list[_Seen]:
        without_constant = _CONSTANT.sub(b"", record.canonical)
        same = _digest(without_constant)
        rest = _digest(_SHAPE.sub(b"", without_constant))
        seen: list[_Seen] = []
        for scope in dict.fromkeys((graph, graph._replace(name=""))):
            seen.append(_Seen(key, self._call(scope, record.op_type, Changing.SHAPES, rest), same))
            if without_constant != record.canonical:
                call = self._call(scope, record.op_type, Changing.CONST_DATA, same)
                seen.append(_Seen(key, call, bytes.fromhex(record.digest[:32])))
        return seen

    def _call(self, graph: Graph, op_type: str, what: Changing, rest: bytes) -> _Call:
        calls = self._calls.setdefault(graph.uid, OrderedDict())
        name = _digest(f"{graph.job} {graph.process} {what} {graph.name} ".encode() + rest)
        call = calls.get(name)
        if call is None:
            call = calls[name] = _Call(graph, op_type, what)
            if len(calls) > MAX_CALLS:
                self._part(calls.popitem(last=False)[1])
        calls.move_to_end(name)
        return call

    def _most(self, what: Changing) -> int:
        return self._limits.churn_const_data if what is Changing.CONST_DATA else self._limits.churn_shapes

    def _limit(self, call: _Call) -> int:
        """How many rounds may bring new values; 0: any number."""
        return self._most(call.what) * (1 if call.graph.name else ALL_GRAPHS)

    def _reason(self, call: _Call) -> str:
        whose = "graph" if call.graph.name else "process"
        return (
            f"its {call.what} changed in {counted(call.rounds, 'round')} of this {whose}: no more of its values are compiled "
            f"([limits] churn_{call.what} = {self._most(call.what)}); {_REMEDY[call.what]}"
        )


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
