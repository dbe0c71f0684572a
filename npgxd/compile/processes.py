"""What runs on this node, by /proc: identities that survive pid reuse, families, and signals that cannot hit a stranger.

Read directly rather than through psutil: a worker is to start in a few milliseconds, and a process is identified by its raw start
time in clock ticks since boot, which no change of the wall clock moves.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GONE_STATES = frozenset("ZXx")
"""A zombie runs nothing any more; it only waits for its parent."""
_PATIENCE_MS = 20


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc/<pid>/stat shows it. ``started`` is in clock ticks since boot."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def runs(self) -> bool:
        """Whether it can still do something."""
        return self.state not in GONE_STATES

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, state {self.state})"


def boot_id() -> str:
    """What tells this boot of the kernel from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read(pid: int) -> Process | None:
    """The process ``pid``, or None if there is none (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name is in parentheses, and may itself hold spaces and parentheses.
    head, _, tail = stat.rpartition(b")")
    fields = tail.split()
    name = head.partition(b"(")[2].decode(errors="replace")
    return Process(pid, name, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def table() -> dict[int, Process]:
    """Every process that is visible here."""
    found = (read(int(name)) for name in (path.name for path in Path("/proc").iterdir()) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(roots: Iterable[int], processes: Mapping[int, Process]) -> dict[int, Process]:
    """All children of ``roots``, their children and so on; the roots themselves are not in it."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child.pid)
    return found


def carries(process: Process, assignment: str) -> bool:
    """Whether the process was started with this ``NAME=value`` in its environment."""
    try:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return False
    return assignment.encode() in environment.split(b"\0")


def works_in(process: Process, directory: Path) -> bool:
    """Whether the process's working directory is ``directory`` or below it."""
    try:
        where = Path(f"/proc/{process.pid}/cwd").readlink()
    except OSError:
        return False
    return where.is_relative_to(directory)


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process, never another one that got its pid; False if it has ended."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def wait_for_any(processes: Iterable[Process], timeout_s: float) -> None:
    """Return when one of them has ended, or after a short time, at most ``timeout_s``."""
    poller = select.poll()
    opened: list[int] = []
    try:
        for process in processes:
            with contextlib.suppress(OSError):
                opened.append(os.pidfd_open(process.pid))
                poller.register(opened[-1], select.POLLIN)
        poller.poll(max(0, min(_PATIENCE_MS, int(timeout_s * 1000))))
    finally:
        for pidfd in opened:
            os.close(pidfd)
