"""Why a worker must stop now: it was cancelled, its daemon ended, or it got a signal; and whether its program is taken to be stuck."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from npgxd.compile.channel import Channel

CANCEL = b"cancel "
STUCK = b"stuck "
"""The frames that a daemon sends: one of these, and why."""


class Stopped(Exception):
    """The worker was asked to stop between two steps."""


class Stop:
    """Watches the daemon's socket and the signals that mean stop."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._reason = ""
        self._stuck = ""
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)  # a poll that Python restarts after a signal is woken by this pipe
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def filenos(self) -> tuple[int, int]:
        """Readable when ``reason`` may have changed."""
        return self._channel.fileno(), self._wake

    def reason(self) -> str:
        """Why to stop; empty as long as there is none."""
        if not self._reason:
            for frame in self._channel.receive():
                if frame.startswith(CANCEL):
                    self._reason = frame[len(CANCEL) :].decode(errors="replace") or "cancelled"
                elif frame.startswith(STUCK):
                    self._stuck = frame[len(STUCK) :].decode(errors="replace")
            if self._channel.closed and not self._reason:
                self._reason = "the daemon has ended"
        return self._reason

    def stuck(self) -> str:
        """Why the program that runs now is taken to be stuck, told once; empty if it is not."""
        said, self._stuck = self._stuck, ""
        return said

    def check(self) -> None:
        """Raise Stopped if there is a reason to stop."""
        if reason := self.reason():
            raise Stopped(reason)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._reason = self._reason or f"the worker got {signal.Signals(number).name}"
