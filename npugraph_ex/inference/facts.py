"""What an entry relies on: everything that was so when its graph was traced, and must still be so for it to be used.

Promise: plain data of a closed vocabulary, the same bytes for the same model in every process, whatever the hash seed, the rank,
the paths or the order of imports.  ``facts_collect`` writes it down, ``fit`` compares it with a process and a call, ``calls`` turns
it into a quick check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from npugraph_ex.inference.facts_paths import ROOTS, STEPS, Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS: Final = frozenset(
    {
        "value",  # it equals what was recorded, type included; functions by their code, classes and modules by name
        "type",  # it is exactly of that class (a number in ``Facts.classes``)
        "tensor",  # TensorFact
        "len",
        "keys",  # the keys of a dictionary, in order
        "has",  # [attribute, whether it is there]
        "absent",  # no such name in the instance's own dictionary
        "own",  # which of ``Facts.names`` are in the instance's own dictionary
        "contains",  # [key, whether it is there]
        "empty",
        "some",  # not None
        "same",  # it is the very object at another node
        "distinct",  # no two of these tensors are one object
        "storage",  # which of these tensors share a storage
        "range",  # an expression over sizes, strides, offsets and numbers, and where those are
    }
)


class Fact(NamedTuple):
    """``data`` depends on ``kind``; ``node`` is a number in ``Facts.nodes``, -1 for facts about several."""

    kind: str
    node: int
    data: Any

    @property
    def nodes(self) -> list[int]:
        """Every node that it is about."""
        match self.kind:
            case "distinct":
                return list(self.data)
            case "storage":
                return list(self.data[0])
            case "range":
                return [node for node, _part, _axis in self.data[1]]
            case "same":
                return [self.node, self.data]
        return [self.node]


@dataclass(frozen=True, slots=True)
class ClassFact:
    """A class that some value is of: its name, and the code that the trace could have reached by ``Facts.names``."""

    name: str
    described: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """``module`` and ``own`` are the function's module and the name of its first parameter, for sentences.

    ``made_from`` is what the user gave beside the model (options, decompositions); ``devices`` the device types of its tensors.
    """

    module: str
    own: str
    code: str
    nodes: Sequence[Node]
    facts: Sequence[Fact]
    classes: Sequence[ClassFact]
    names: Sequence[str]
    devices: Sequence[str]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    made_from: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """For msgpack or JSON: lists, dicts, text, integers, booleans and None only."""
        return {
            "module": self.module,
            "own": self.own,
            "code": self.code,
            "nodes": [list(node) for node in self.nodes],
            "facts": [list(fact) for fact in self.facts],
            "classes": [[item.name, list(item.described)] for item in self.classes],
            "names": list(self.names),
            "devices": list(self.devices),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "made_from": dict(self.made_from),
        }

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Facts:
        """The opposite of ``plain``. ValueError for anything outside the vocabulary."""
        try:
            nodes = [_node(place, *node) for place, node in enumerate(plain["nodes"])]
            facts = [_fact(len(nodes), *fact) for fact in plain["facts"]]
            return cls(
                module=str(plain["module"]),
                own=str(plain["own"]),
                code=str(plain["code"]),
                nodes=nodes,
                facts=facts,
                classes=[ClassFact(str(name), described) for name, described in plain["classes"]],
                names=[str(name) for name in plain["names"]],
                devices=[str(device) for device in plain["devices"]],
                settings=dict(plain["settings"]),
                versions=dict(plain["versions"]),
                made_from=dict(plain["made_from"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the facts are not of this format: {error!r}") from None


def _node(place: int, base: int, step: str, key: Any) -> Node:
    if not (-1 <= base < place) or step not in (ROOTS if base < 0 else STEPS):
        raise ValueError(f"no such step in a path: {step}")
    if not (key is None or isinstance(key, (str, int))):
        raise ValueError(f"no such key in a path: {key!r}")
    return base, step, key


def _fact(nodes: int, kind: str, node: int, data: Any) -> Fact:
    if kind not in KINDS or not -1 <= node < nodes:
        raise ValueError(f"no such kind of fact: {kind}")
    return Fact(kind, node, data)
