"""The processes that the demo starts: each in a session of its own, all of them ended and reaped however the demo ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

MARKER = "NPGXD_DEMO_RUN"
"""Environment variable that every process of one demo carries, unless it was started with an environment of its own."""

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that should have ended."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Child:
    """One process started by the demo, its output in ``log``."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Also its process group and session."""
        return self.process.pid

    def ended(self) -> bool:
        """Whether it has ended; reaps it if so."""
        return self.process.poll() is not None

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None if it is still running after ``timeout_s``."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it alone; nothing happens if it has ended."""
        if not self.ended():
            self.process.send_signal(number)

    def tail(self, lines: int = 15) -> str:
        """The end of its output, for an error message."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


class Children:
    """All processes of one demo, as a context manager: none of them outlives it.

    While it is open, this process adopts its orphaned descendants, so that a grandchild whose parent was killed is still found.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._started: list[Child] = []
        self._others: set[psutil.Process] = set()

    def __enter__(self) -> Self:
        self._others = set(psutil.Process().children())
        _adopt_orphans(adopt=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end_all()
        _adopt_orphans(adopt=False)

    def start(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str], cwd: Path) -> Child:
        """Start ``command`` in a session of its own, with ``environment`` and the marker, its output appended to ``log``."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, MARKER: self.run},
                cwd=cwd,
                start_new_session=True,
            )
        child = Child(process, log)
        self._started.append(child)
        return child

    def left_behind(self) -> list[Leftover]:
        """Every live process that came from this demo: descendants since it was opened, and whatever carries its marker."""
        found: dict[int, psutil.Process] = {}
        for child in psutil.Process().children():
            if child not in self._others:
                found.update({process.pid: process for process in (child, *descendants(child.pid))})
        for process in psutil.process_iter():
            if process.pid != os.getpid() and _carries(process, self.run):
                found[process.pid] = process
        alive = [Leftover(process.pid, command) for process in found.values() if (command := _command(process)) is not None]
        self._reap()  # after looking, so that whatever is not alive in the answer is collected too
        return alive

    def settle(self, timeout_s: float = _GRACE_S) -> list[Leftover]:
        """Wait for processes that are about to end; gives those that do not within ``timeout_s``."""
        end = time.monotonic() + timeout_s
        while (left := self.left_behind()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def end_all(self) -> None:
        """End everything, by force where a request does not help."""
        for number, grace in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            for left in self.left_behind():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(left.pid, number)
            if not self.settle(grace):
                return

    def _reap(self) -> None:
        """Collect what has ended: the processes that were started here, and those that this process adopted."""
        for started in self._started:
            started.ended()
        own = {child.pid for child in self._started}
        for process in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if process not in self._others and process.pid not in own and process.status() == psutil.STATUS_ZOMBIE:
                    with suppress(ChildProcessError):
                        os.waitpid(process.pid, os.WNOHANG)


def descendants(pid: int) -> list[psutil.Process]:
    """The live processes that descend from ``pid``."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def arguments(process: psutil.Process) -> list[str]:
    """A process's command line; empty if it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return []


def _command(process: psutil.Process) -> str | None:
    """What a live process runs; None if it has ended."""
    try:
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return None
        return " ".join(process.cmdline()) or process.name()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _carries(process: psutil.Process, run: str) -> bool:
    try:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:  # ended, or another user's
        return False
    return f"{MARKER}={run}".encode() in environment.split(b"\0")


def _adopt_orphans(*, adopt: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
