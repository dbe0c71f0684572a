"""Who is at the far end of one connection of libzmq's, and ending just that connection: libzmq can do neither for one of a ROUTER's many.

Its monitor and its messages tell a connection's descriptor, and the kernel the rest.  Promise: nothing is ever done to a descriptor that is
not, at that moment, a connection that was accepted at the given path; by the time that an event is read its number can be another file's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.wire.credentials import PeerCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator

_UCRED: Final = struct.Struct("iII")
"""pid, uid, gid (unix(7), SO_PEERCRED)."""


def peer_at(descriptor: int, path: Path) -> PeerCredentials | None:
    """Who connected; None if this is no connection to ``path`` (any more)."""
    with _accepted(descriptor, path) as connection:
        return None if connection is None else _peer(connection)


def end(descriptor: int, path: Path, peer: PeerCredentials) -> bool:
    """End the connection, if it is one of ``peer``'s to ``path``; whether it was. libzmq reads an end of file, and closes it."""
    with _accepted(descriptor, path) as connection:
        if connection is None or _peer(connection) != peer:
            return False
        with contextlib.suppress(OSError):  # it has ended meanwhile
            connection.shutdown(socket.SHUT_RDWR)
        return True


def unread(descriptor: int) -> int:
    """The bytes that have come and are not read (unix(7), SIOCINQ); 0 if there is no such descriptor, or it has none to tell."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


@contextlib.contextmanager
def _accepted(descriptor: int, path: Path) -> Iterator[socket.socket | None]:
    """A duplicate, so that what was looked at is what is acted on, whoever gets the number meanwhile."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            yield None
            return
        duplicate = os.dup(descriptor)
        if not stat.S_ISSOCK(os.fstat(duplicate).st_mode):
            # Another file's within these two lines. It stays open: closing it would give up the locks of a database (fcntl(2)).
            yield None
            return
        connection = socket.socket(fileno=duplicate)
    except OSError:
        yield None
        return
    with connection:
        yield connection if _is_accepted(connection, path) else None


def _is_accepted(connection: socket.socket, path: Path) -> bool:
    """The listening socket itself has the same name."""
    if connection.family != socket.AF_UNIX:
        return False
    name = connection.getsockname()
    ours = isinstance(name, str) and Path(name) == path  # systemd may have written it in another way
    return ours and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _peer(connection: socket.socket) -> PeerCredentials:
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return PeerCredentials(uid, gid, pid)
