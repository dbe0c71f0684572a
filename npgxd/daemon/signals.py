"""Signals for the loop: caught at any time, and taken when the loop looks at their descriptor."""

from __future__ import annotations

import signal
import socket
from typing import Final

CAUGHT: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """SIGTERM, SIGINT and SIGHUP of this process, in the order in which they came."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._caught: list[int] = []
        self._catching = False

    def catch(self) -> None:
        """From now on they are taken here. Main thread only."""
        self._catching = True
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in CAUGHT:
            signal.signal(number, lambda caught, _frame: self._caught.append(caught))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(CAUGHT))  # whoever started this may have blocked them

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._read.fileno()

    def take(self) -> list[signal.Signals]:
        """What has come since the last look."""
        try:
            self._read.recv(4096)
        except BlockingIOError:
            return []
        taken, self._caught = self._caught, []
        return [signal.Signals(number) for number in taken]

    def close(self) -> None:
        """They are still caught, and nobody looks. Main thread only, if they are caught."""
        if self._catching:
            signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()
