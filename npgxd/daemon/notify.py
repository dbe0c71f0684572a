"""Telling systemd how the service is: the datagram protocol of sd_notify(3). Silent where there is no systemd."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*lines: str) -> None:
    """Send ``lines`` such as ``READY=1`` to the service manager, if one asked for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or address[0] not in "/@":
        return
    target = "\0" + address[1:] if address[0] == "@" else address
    # A service manager that went away is its own trouble; the daemon goes on.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto("\n".join(lines).encode(), target)
