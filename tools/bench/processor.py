"""How much of the time the threads of a process ran, and how much they could have run and waited for a processor, as the kernel counts.

What a client waits while its server waits for a processor is the machine's doing, not the server's.  Source:
``/proc/PID/task/TID/schedstat`` (the kernel's Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final, NamedTuple

_SOCKETS: Final = "ZMQbg/IO"
"""How libzmq names its thread that reads and writes all sockets."""


class _Had(NamedTuple):
    """Seconds of processor time that threads had, and that they waited for it."""

    ran: float = 0.0
    waited: float = 0.0

    def since(self, before: _Had, took: float) -> str:
        return f"ran {(self.ran - before.ran) / took:.0%}, waited for a processor {(self.waited - before.waited) / took:.0%}"


class Processor:
    """Counts from when it is made, for a process whose threads stay."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._began = time.monotonic()
        self._before = self._had(""), self._had(_SOCKETS)

    def told(self) -> str:
        """In parts of the time; all threads together may come to more than 100 %."""
        took = time.monotonic() - self._began
        whole, sockets = self._had("").since(self._before[0], took), self._had(_SOCKETS).since(self._before[1], took)
        return f"its threads {whole}; libzmq's for the sockets {sockets}"

    def _had(self, name: str) -> _Had:
        had = _Had()
        for task in self._tasks.iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                if (task / "comm").read_text().startswith(name):
                    ran, waited, _ = (int(count) / 1e9 for count in (task / "schedstat").read_text().split())
                    had = _Had(had.ran + ran, had.waited + waited)
        return had
