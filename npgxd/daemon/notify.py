"""Telling systemd how the service is: the datagram protocol of sd_notify(3). Silent where there is no systemd."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def notify(*lines: str) -> None:
    """Send ``lines`` such as ``READY=1`` to the service manager, if one asked for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or address[0] not in "/@":
        return
    target = "\0" + address[1:] if address[0] == "@" else address
    # A service manager that went away is its own trouble; the daemon goes on.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto("\n".join(lines).encode(), target)


class Watchdog:
    """A sign of life for systemd, twice in the time after which it takes the daemon for stuck; silent where it does not watch."""

    def __init__(self, environ: Mapping[str, str], lives: Callable[[], bool]) -> None:
        """WATCHDOG_USEC and WATCHDOG_PID as in sd_watchdog_enabled(3). ``lives``: whether everything beside the loop has moved since."""
        self._lives = lives
        microseconds = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every_s = int(microseconds) / 2e6 if ours and microseconds.isdecimal() and int(microseconds) else math.inf
        self._next = -math.inf

    def tick(self, now: float) -> float:
        """Say that the loop turns, and all the rest, if it is time; when to say it again (monotonic seconds)."""
        if self._every_s == math.inf:
            return math.inf
        if now >= self._next:
            if self._lives():
                notify("WATCHDOG=1")
            self._next = now + self._every_s
        return self._next
