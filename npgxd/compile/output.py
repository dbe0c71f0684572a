"""What a program prints, kept within a bound: the beginning and the end of it, and the lines that matter as they pass."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TAIL_BYTES = 4096
"""How much of the end is told with a result."""
_MAX_LINE = 8192
_CHUNK = 65536


class BoundedLog:
    """Writes a stream to a file: its first half-``limit`` bytes as they come, and its last half-``limit`` when it is closed."""

    def __init__(self, path: Path, limit: int, on_line: Callable[[str], None] | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._half = max(limit // 2, 1)
        self._head = 0
        self._tail = bytearray()
        self._left_out = 0
        self._recent = bytearray()
        self._line = bytearray()
        self._on_line = on_line

    def drain(self, fd: int) -> bool:
        """Take what can be read from ``fd`` without waiting, at most a few chunks; False at its end."""
        for _ in range(16):
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.write(data)
        return True

    def write(self, data: bytes) -> None:
        """Take ``data``."""
        self._recent = (self._recent + data)[-TAIL_BYTES:]
        self._lines(data)
        room = self._half - self._head
        if room > 0:
            os.write(self._fd, data[:room])
            self._head += len(data[:room])
            data = data[room:]
        self._tail += data
        extra = len(self._tail) - self._half
        if extra > 0:
            del self._tail[:extra]
            self._left_out += extra

    def tail(self) -> str:
        """The end of what was printed."""
        return self._recent.decode(errors="replace")

    def close(self) -> None:
        """Write the end of the stream, and close the file."""
        if self._line and self._on_line is not None:
            self._on_line(self._line.decode(errors="replace"))
            self._line.clear()
        if self._left_out:
            os.write(self._fd, f"\n[npgxd: {self._left_out} bytes left out here]\n".encode())
        os.write(self._fd, self._tail)
        os.close(self._fd)

    def _lines(self, data: bytes) -> None:
        if self._on_line is None:
            return
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._line += line[:_MAX_LINE]
            self._on_line(self._line[:_MAX_LINE].decode(errors="replace"))
            self._line.clear()
        self._line = (self._line + rest)[:_MAX_LINE]
