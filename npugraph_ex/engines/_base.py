"""The contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npugraph_ex.observe import Observer
    from npugraph_ex.options import Options
    from npugraph_ex.program import Program
    from npugraph_ex.recording.describe import Surroundings
    from npugraph_ex.recording.recorded import Recorder


class ReselectFailed(NpgxError):
    """The device's runtime could not take a view of new static kernels into use."""

    code = "RESELECT_FAILED"


class Runner(Protocol):
    """One graph, ready to run on its device."""

    def __call__(self, inputs: list[Any], observers: Sequence[Observer] = ()) -> object:
        """The graph's outputs. ``inputs`` is emptied. With ``observers`` it runs node by node, never captured or replayed."""
        ...

    def renew(self) -> None:
        """New kernels were loaded: drop what was captured, so that the next run captures with them. Waits for no other rank."""
        ...


class Engine(Protocol):
    """A kind of device."""

    @property
    def device(self) -> str:
        """The device's word in torch: ``cpu``, ``npu``."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """Which of the needs in ``npugraph_ex.options`` this engine meets."""
        ...

    def soc(self) -> str:
        """The SoC's full name, "" where this process sees none (then the daemon's toolchain decides)."""
        ...

    def runner(self, program: Program, options: Options, *, name: str, training: bool) -> Runner:
        """Make ``program`` ready to run. A capturing engine captures at a later, unobserved run: after reselecting.

        ``name`` is the graph's for people; ``training``: it is part of a forward and backward pair, whose values outlive a call.
        """
        ...

    def recorder(self, surroundings: Surroundings) -> Recorder:
        """How this device's runs are recorded."""
        ...

    def reselect(self, view: Path | None) -> str:
        """Load the kernels of ``view``, or (None, CANN before 9.1.0) of the default root; a word on it. Raises ReselectFailed."""
        ...
