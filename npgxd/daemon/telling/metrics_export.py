"""Where the metrics go beside npgxctl: a text file for node_exporter, and GET /metrics on the loopback. Both beside the loop.

Promise: the file is always whole; whoever connects can neither stop nor slow the loop, and is answered or closed within a bound.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.config import address_of
from npgxd.daemon.telling.metrics_text import CONTENT_TYPE
from npgxd.errors import ConfigError, NpgxError
from npgxd.store.disk import DISK

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.config import MetricsSection

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
MAX_REQUEST: Final = 8192
PATIENCE_S: Final = 5.0
"""A connection that has not asked by then is closed."""
SEND_BUFFER: Final = 512 * 1024
"""A page is some ten kilobytes: the kernel takes it whole, so that nobody has to wait for a slow reader."""


class Textfile:
    """Writes the file now and then; each trouble is told once."""

    def __init__(self, settings: MetricsSection, text: Callable[[float], str]) -> None:
        self._settings = settings
        self._text = text
        self._due = -math.inf
        self._told = ""

    def reconfigured(self) -> None:
        """Perhaps it is another file now."""
        self._due, self._told = -math.inf, ""

    def tick(self, now: float) -> float:
        """Write it, if it is time; when to write it next."""
        path = self._settings.textfile
        if path is None:
            return math.inf
        if now >= self._due:
            self._due = now + self._settings.interval_s
            try:
                DISK.write_file(path, self._text(now).encode(), durable=False)
                self._told = ""
            except (NpgxError, OSError) as error:
                if str(error) != self._told:
                    log.error("the metrics are not written: %s", error)
                self._told = str(error)
        return self._due


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    until: float
    asked: bytes = b""


class Scrapes:
    """A listener on the loopback for GET /metrics, and nothing else."""

    def __init__(self, address: str, text: Callable[[float], str]) -> None:
        """``address`` as in ``[metrics] listen``; empty: there is none. ConfigError if it cannot be had."""
        self._text = text
        self._open: dict[int, _Connection] = {}
        self._listener: socket.socket | None = None
        found = address_of(address)
        if found is not None:
            try:
                self._listener = socket.create_server(found, family=socket.AF_INET6 if ":" in found[0] else socket.AF_INET)
                self._listener.setblocking(False)
            except OSError as error:
                raise ConfigError(
                    f"[metrics] listen: cannot listen on {address}: {error.strerror or error}",
                    hint="choose a free port; under the shipped unit a drop-in must allow it (docs/metrics.md)",
                ) from None

    def filenos(self) -> set[int]:
        """What to poll for reading."""
        return set(self._open) | ({self._listener.fileno()} if self._listener is not None else set())

    def serve(self, fileno: int, now: float) -> bool:
        """Something is to be read there; False: it is none of these descriptors."""
        if self._listener is not None and fileno == self._listener.fileno():
            self._accept(now)
            return True
        connection = self._open.get(fileno)
        if connection is None:
            return False
        try:
            self._read(connection, now)
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
        return True

    def tick(self, now: float) -> float:
        """Close who has not asked in time; when to look again."""
        for connection in [one for one in self._open.values() if now >= one.until]:
            self._close(connection)
        return min((connection.until for connection in self._open.values()), default=math.inf)

    def close(self) -> None:
        """The daemon ends."""
        for connection in list(self._open.values()):
            self._close(connection)
        if self._listener is not None:
            self._listener.close()

    def _accept(self, now: float) -> None:
        if self._listener is None:
            return
        try:
            accepted, _ = self._listener.accept()
        except OSError:  # gone again, or no descriptor is left: the loop goes on
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if len(self._open) >= MAX_CONNECTIONS:
            accepted.close()
            return
        self._open[accepted.fileno()] = _Connection(accepted, now + PATIENCE_S)

    def _read(self, connection: _Connection, now: float) -> None:
        data = connection.socket.recv(MAX_REQUEST)
        connection.asked += data
        if b"\r\n\r\n" in connection.asked:
            with contextlib.suppress(BlockingIOError):
                connection.socket.send(self._answer(connection.asked, now))
            self._close(connection)
        elif not data or len(connection.asked) > MAX_REQUEST:
            self._close(connection)

    def _answer(self, asked: bytes, now: float) -> bytes:
        words = asked.split(b"\r\n", 1)[0].split()
        method, target = (words[0], words[1].partition(b"?")[0]) if len(words) == 3 else (b"", b"")  # noqa: PLR2004 -- method, target, version
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed" if method else "400 Bad Request", b"", "text/plain")
        if target != b"/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n", "text/plain")
        body = self._text(now).encode()
        whole = _response("200 OK", body, CONTENT_TYPE)
        return whole if method == b"GET" else whole[: -len(body)]

    def _close(self, connection: _Connection) -> None:
        self._open.pop(connection.socket.fileno(), None)
        connection.socket.close()


def _response(status: str, body: bytes, kind: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
