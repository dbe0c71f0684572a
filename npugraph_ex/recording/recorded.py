"""What every recorder gives back, and the contract that recorders keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from npgxd.errors import NpgxError
from npugraph_ex.observe import Observer

if TYPE_CHECKING:
    from pathlib import Path

RecordFile = tuple[str, bytes]
"""One record: its file name (a label, no identity) and its JSON bytes."""
GraphRun = Callable[[tuple[Observer, ...]], object]
"""Runs the graph on the user's inputs, once, showing every node to the observers; returns the user's outputs."""


class DumpSwitchHeld(NpgxError):
    """Somebody else holds, or has asked for, this process's one operator dump switch."""

    code = "DUMP_SWITCH_HELD"

    def __init__(self, message: str, *, hint: str = "", holder: str = "", **data: object) -> None:
        super().__init__(message, hint=hint, holder=holder, **data)
        self.holder = holder


@dataclass(frozen=True, slots=True)
class Recorded:
    """The records of one run, in the three folders that a CANN dump has (docs/cann.md, "The dump").

    ``undescribed`` names operators that ran and are in no folder, each with how often and why.  ``problem`` is set where the
    records cannot be trusted to be whole, and says why.
    """

    target: tuple[RecordFile, ...] = ()
    debug: tuple[RecordFile, ...] = ()
    compilable: tuple[RecordFile, ...] = ()
    undescribed: tuple[tuple[str, int, str], ...] = ()
    problem: DumpSwitchHeld | None = None
    written: bool = False

    def selected(self) -> tuple[RecordFile, ...]:
        """The compilable records without repetitions: identity is the content, never the name."""
        seen: set[bytes] = set()
        chosen = []
        for name, raw in self.compilable:
            if raw not in seen:
                seen.add(raw)
                chosen.append((name, raw))
        return tuple(chosen)


class Recorder(Protocol):
    """One way to record a run."""

    def record(self, run: GraphRun, *, label: str, directory: Path | None) -> tuple[object, Recorded]:
        """Run once and say what ran. ``directory`` is where a dump may be written.

        Raises DumpSwitchHeld *before* the run if the switch is taken, and whatever the run itself raises.
        """
        ...


class RecordMemory(Protocol):
    """Where a compile cache keeps the records of its graphs for later starts."""

    def recorder(self, recorder: Recorder, made_for: Sequence[object], sizes: tuple[int, ...]) -> Recorder:
        """``recorder``, or one that knows already what it would record. ``made_for``: what else than ``sizes`` decides the records."""
        ...
