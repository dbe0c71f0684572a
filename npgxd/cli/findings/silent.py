"""A daemon that is there and says nothing: what its process is at, as /proc tells it (proc(5))."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.wire.endpoint import listener

if TYPE_CHECKING:
    from collections.abc import Iterable

_STOPPED: Final = "T"
_TRACED: Final = "t"
_WAITS: Final = "D"
"""Uninterruptible: it waits for a disk, or for a file system that does not answer."""
_ENDED: Final = "ZX"
_KEPT: Final = "what it accepted is kept, and ranks run with dynamic kernels meanwhile"


def why(socket: Path, state_directories: Iterable[Path], proc: Path = Path("/proc")) -> tuple[str, str]:
    """What the process that listens at ``socket`` is at, and what to do about it; empty where it cannot be seen from here.

    ``state_directories``: where it may keep its state, and has written down its pid if the service manager made the socket.
    """
    pid = listener(socket)[0]
    if pid <= 1:
        pid = next((owner for place in state_directories if (owner := _owner(place)) > 1), 0)
    states = _states(proc / str(pid)) if pid > 1 else ""
    if not states or states[0] in _ENDED:
        return "", ""
    if states[0] == _STOPPED:
        return f"its process {pid} was stopped by a signal", f"kill -CONT {pid}"
    if _TRACED in states:
        return f"a debugger holds its process {pid}", f"end the debugger that TracerPid in {proc / str(pid)}/status names"
    if _WAITS in states:
        return (
            f"its process {pid} waits for a disk, or a file system, that does not answer",
            f"dmesg, and the state of the disk that holds its state directory; {_KEPT}",
        )
    return (
        f"its process {pid} runs, and is busy, stuck, or waits for its disk",
        f"its log says if that is the disk; else ask again in a minute, then systemctl restart npgxd: {_KEPT}",
    )


def _states(process: Path) -> str:
    """A letter for each thread, the first one's first."""
    try:
        threads = sorted((process / "task").iterdir(), key=lambda thread: int(thread.name))
    except (OSError, ValueError):
        return ""
    return "".join(_state(thread / "stat") for thread in threads)


def _state(stat: Path) -> str:
    try:
        return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _owner(place: Path) -> int:
    try:
        return int((place / "instance.lock").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
