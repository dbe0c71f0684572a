"""The engine of devices on which graphs run operator by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugraph_ex.observe import Observer, run_observed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npugraph_ex.engines._base import Runner
    from npugraph_ex.options import Options
    from npugraph_ex.program import Program
    from npugraph_ex.recording.describe import Surroundings
    from npugraph_ex.recording.recorded import Recorder


class EagerRunner:
    """Runs a graph's code; inputs are freed as soon as the graph needs them no more."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __call__(self, inputs: list[Any], observers: Sequence[Observer] = ()) -> object:
        """See ``Runner``."""
        if observers:
            return run_observed(self._program.module(), inputs, observers)
        return self._program.run(inputs)

    def renew(self) -> None:
        """Nothing is captured here: each call looks its kernels up."""


@dataclass(frozen=True, slots=True)
class EagerEngine:
    """CPU and whatever else torch knows: the portable recorder, and no runtime that would load a static kernel."""

    device: str = "cpu"
    capabilities: frozenset[str] = frozenset()

    def soc(self) -> str:
        """No Ascend SoC is visible here."""
        return ""

    def runner(self, program: Program, options: Options, *, name: str, training: bool) -> Runner:
        """The generated code of the graph."""
        del options, name, training
        return EagerRunner(program)

    def recorder(self, surroundings: Surroundings) -> Recorder:
        """The one that describes aten calls."""
        from npugraph_ex.recording.portable import PortableRecorder  # noqa: PLC0415 -- only a recorded run needs it

        return PortableRecorder(surroundings)

    def reselect(self, view: Path | None) -> str:
        """Nothing is loaded: no CANN runtime runs on this device."""
        del view
        return f"{self.device} runs its own kernels, so there is nothing to reselect"
