"""What each rank wrote about itself, as ``examples/serve_decoder.py --report`` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from npgxd.toolchain.record import parse_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of one rank."""

    name: str
    batch: int
    state: str
    reason: str
    detail: str
    records: int
    unique: int
    hits: int
    compiled: int
    view: str | None
    outputs: str | None
    submitted: Mapping[str, bytes]
    """Each different record that was submitted, by the digest of its content: whatever its file's name."""

    @property
    def digests(self) -> frozenset[str]:
        """The different records that were submitted."""
        return frozenset(self.submitted)

    @classmethod
    def parse(cls, batch: int, facts: dict[str, Any]) -> Self:
        """One entry of a batch size's ``graphs``."""
        return cls(
            name=facts["graph"],
            batch=batch,
            state=facts["state"],
            reason=facts["reason"],
            detail=facts["detail"],
            records=facts["records"],
            unique=facts["unique"],
            hits=facts["hits"],
            compiled=facts["compiled"],
            view=facts["view"],
            outputs=facts["outputs"],
            submitted={parse_record(name, text.encode()).digest: text.encode() for name, text in facts["submitted"]},
        )


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's whole run."""

    rank: int
    local_rank: int
    pid: int
    local_world_size: str | None
    equal: bool
    max_difference: float
    graphs: tuple[Graph, ...]
    reader_problems: tuple[str, ...]
    """What the reader found wrong with the union of this rank's views; empty: they select exactly what was submitted."""
    reader_selected: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one report file."""
        facts = json.loads(path.read_bytes())
        batches = facts["batches"]
        reader = facts["reader"] or {"selected": 0, "problems": ["the reader was not asked"]}
        return cls(
            rank=facts["rank"],
            local_rank=facts["local_rank"],
            pid=facts["pid"],
            local_world_size=facts["local_world_size"],
            equal=all(batch["equal"] for batch in batches),
            max_difference=max(batch["max_difference"] for batch in batches),
            graphs=tuple(Graph.parse(batch["batch"], graph) for batch in batches for graph in batch["graphs"]),
            reader_problems=tuple(reader["problems"]),
            reader_selected=reader["selected"],
        )

    @property
    def installed(self) -> bool:
        """Whether every graph of this rank has all its static kernels."""
        return bool(self.graphs) and all(graph.state == "INSTALLED" for graph in self.graphs)

    @property
    def records(self) -> int:
        """Records that this rank submitted."""
        return sum(graph.records for graph in self.graphs)

    @property
    def digests(self) -> frozenset[str]:
        """The distinct records that this rank submitted."""
        return frozenset[str]().union(*(graph.digests for graph in self.graphs))
