"""The recorder for devices without CANN's dump: it watches the graph run and describes each aten call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugraph_ex.recording.describe import Describer, Surroundings
from npugraph_ex.recording.recorded import GraphRun, Recorded
from npugraph_ex.recording.switch import SWITCH, DumpSwitch

if TYPE_CHECKING:
    from pathlib import Path


class PortableRecorder:
    """Keeps the contract of ``Recorder`` on any device. It takes the same switch as a CANN dump, so both behave alike."""

    def __init__(self, surroundings: Surroundings, switch: DumpSwitch = SWITCH) -> None:
        self._surroundings = surroundings
        self._switch = switch

    def record(self, run: GraphRun, *, label: str, directory: Path | None) -> tuple[object, Recorded]:
        """Run once under a Describer; nothing is written to ``directory`` here."""
        del directory
        with self._switch.hold(label) as hold:
            describer = Describer(self._surroundings)
            outputs = run((describer,))
            problem = hold.problem()
        if problem is not None:
            return outputs, Recorded(problem=problem)
        return outputs, describer.recorded()
