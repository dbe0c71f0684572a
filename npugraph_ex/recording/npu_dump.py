"""Recording on an NPU: CANN's own operator dump, through torch_npu's ``_aclop_start_dump`` and ``_aclop_stop_dump``.

Both functions ignore CANN's return code, and a second start fails (docs/cann.md, "The dump").  So they are wrapped: whoever else
starts or stops the dump goes through the process's DumpSwitch, and cannot end a recording by stopping what it never started.
"""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npgxd.client import read_dump
from npugraph_ex.recording.recorded import DumpSwitchHeld, GraphRun, Recorded
from npugraph_ex.recording.switch import PROFILER_HINT, DumpSwitch

if TYPE_CHECKING:
    from collections.abc import Callable

_OTHER = "another user of CANN's operator dump (a profiler with record_op_args=True)"


class NpuDump:
    """The two functions, and the same two wrapped for everybody else. Wrapping twice changes nothing."""

    def __init__(self, functions: Any, switch: DumpSwitch) -> None:
        self.switch = switch
        self.start: Callable[[str], object] = _original(functions._aclop_start_dump)  # noqa: SLF001 -- CANN's only way
        self.stop: Callable[[], object] = _original(functions._aclop_stop_dump)  # noqa: SLF001 -- same
        if functions._aclop_start_dump is self.start:  # noqa: SLF001 -- same
            functions._aclop_start_dump = _watched_start(self.start, switch)  # noqa: SLF001 -- same
            functions._aclop_stop_dump = _watched_stop(self.stop, switch)  # noqa: SLF001 -- same


def _original(function: Callable[..., object]) -> Callable[..., object]:
    return getattr(function, "_npugraph_ex_original", function)


def _watched_start(start: Callable[[str], object], switch: DumpSwitch) -> Callable[[str], object]:
    @functools.wraps(start)
    def watched(path: str) -> object:
        return start(path) if switch.ask(_OTHER) else None

    watched._npugraph_ex_original = start  # type: ignore[attr-defined]  # noqa: SLF001 -- our own mark
    return watched


def _watched_stop(stop: Callable[[], object], switch: DumpSwitch) -> Callable[[], object]:
    @functools.wraps(stop)
    def watched() -> object:
        mine = not switch.recording_here()
        return stop() if switch.give_back() or mine else None

    watched._npugraph_ex_original = stop  # type: ignore[attr-defined]  # noqa: SLF001 -- our own mark
    return watched


class NpuRecorder:
    """Keeps the contract of ``Recorder`` with CANN's dump.

    ``synchronize`` waits for the device: torch_npu launches from a thread of its own, so without it the dump would begin with what came
    before the run, and end before the run's last operators.
    """

    def __init__(self, dump: NpuDump, synchronize: Callable[[], object]) -> None:
        self._dump = dump
        self._synchronize = synchronize

    def record(self, run: GraphRun, *, label: str, directory: Path | None) -> tuple[object, Recorded]:
        """Run once under the dump, which writes its three folders into ``directory`` (or a temporary one) when it stops."""
        if directory is not None:
            return self._record(run, label, directory, kept=True)
        with tempfile.TemporaryDirectory(prefix="npugraph_ex-") as temporary:
            return self._record(run, label, Path(temporary), kept=False)

    def _record(self, run: GraphRun, label: str, directory: Path, *, kept: bool) -> tuple[object, Recorded]:
        with self._dump.switch.hold(label) as hold:
            self._synchronize()
            try:
                self._dump.start(str(directory))
            except (RuntimeError, OSError, ValueError) as error:
                raise DumpSwitchHeld(f"CANN's operator dump did not start: {error}", hint=PROFILER_HINT) from error
            try:
                outputs = run(())
                self._synchronize()
            finally:
                self._dump.stop()
            problem = hold.problem()
        return outputs, Recorded(problem=problem) if problem else _read(directory, kept=kept)


def _read(directory: Path, *, kept: bool) -> Recorded:
    pid = os.getpid()
    folders = [directory / f"{pid}{suffix}" for suffix in ("", "_debug", "_opcompile")]
    if not any(folder.is_dir() for folder in folders):
        return Recorded(
            problem=DumpSwitchHeld(
                "CANN's operator dump wrote nothing: the graph launches no operator, or somebody else holds the dump",
                hint=PROFILER_HINT,
            )
        )
    read = [read_dump(folder) if folder.is_dir() else ([], []) for folder in folders]
    refused = [(item.name, 1, item.reason) for _, rejected in read[2:] for item in rejected]
    target, debug, compilable = (tuple(files) for files, _ in read)
    return Recorded(target=target, debug=debug, compilable=compilable, undescribed=tuple(refused), written=kept)
