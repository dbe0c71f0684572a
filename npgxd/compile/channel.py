"""The socket between the daemon and one worker: length-prefixed frames in both directions; the daemon never waits for one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

MAX_FRAME = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_CHUNK = 256 * 1024


class Frames:
    """Puts frames together from what arrives. A length beyond ``MAX_FRAME`` is a ValueError."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived; the frames that are complete now."""
        self._buffer += data
        frames: list[bytes] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return frames


class Channel:
    """One end. Receiving never waits; ``send`` does only if it is told to."""

    __slots__ = ("_frames", "_pending", "_socket", "closed")

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._frames = Frames()
        self._pending = bytearray()
        self.closed = False
        """The other end is gone."""

    def fileno(self) -> int:
        """For polling."""
        return self._socket.fileno()

    def receive(self) -> list[bytes]:
        """The frames that have arrived. After the other end is gone, and everything it sent is read, ``closed`` is true."""
        frames: list[bytes] = []
        while not self.closed:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            if not data:
                self.closed = True
            frames += self._frames.feed(data)
        return frames

    def offer(self, frame: bytes) -> bool:
        """Send as much as goes without waiting. False if an earlier frame has not gone yet: then this one is dropped."""
        self._push()
        if self._pending:
            return False
        self._queue(frame)
        self._push()
        return True

    def send(self, frame: bytes) -> None:
        """Send, and wait until it has gone or the other end is gone."""
        self._queue(frame)
        self._socket.setblocking(True)
        try:
            while self._pending and not self.closed:
                self._push()
        finally:
            self._socket.setblocking(False)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _queue(self, frame: bytes) -> None:
        self._pending += _LENGTH.pack(len(frame)) + frame

    def _push(self) -> None:
        try:
            while self._pending and not self.closed:
                del self._pending[: self._socket.send(self._pending)]
        except BlockingIOError:
            return
        except ConnectionError:
            self.closed = True
            self._pending.clear()
