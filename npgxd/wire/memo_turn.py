"""Taking turns at what several processes would else do at once: digesting the same tree.

Promise: whoever waits here waits for a process that is at work and shows it, and never beyond a bound; where there is nothing to
wait with (a directory that cannot be written, a file system without locks), nobody waits. The lock ends with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SILENCE_S: Final = 3.0
"""Whoever has the turn and shows nothing for so long is not waited for."""
LONGEST_S: Final = 30.0
"""Nobody waits for longer."""
SHOW_S: Final = 0.5
"""Whoever has the turn shows so often, at least between two files, that it is at work."""

_PAUSE_S: Final = (0.002, 0.05)
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Turn:
    """The work under way, by this process."""

    def __init__(self, lock: int | None) -> None:
        self._lock = lock
        self._shown = time.monotonic()

    def show(self) -> None:
        """Let those who wait know that this process is at work; cheap."""
        if self._lock is not None and time.monotonic() - self._shown >= SHOW_S:
            self._shown = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._lock)


@contextmanager
def turn(path: str, done: Callable[[], bool]) -> Iterator[Turn]:
    """For a ``with``: this process's turn, by a lock on the file ``path``; or the moment from which it need not wait any longer.

    That is when ``done`` is true, since another process did the work, or when the one that has the lock seems stuck.
    """
    try:
        fd = os.open(path, _OPEN, 0o600)
    except (OSError, ValueError):
        yield Turn(None)
        return
    try:
        held = os.fstat(fd).st_uid == os.geteuid() and _waited(fd, done)
        try:
            yield Turn(fd if held else None)
        finally:
            if held:  # by hand: a child that was forked meanwhile has the descriptor too
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _waited(fd: int, done: Callable[[], bool]) -> bool:
    """Whether the lock was had, at the end of the wait."""
    began = heard = time.monotonic()
    sign, pause = _sign(fd), _PAUSE_S[0]
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError:
            return False
        else:
            return True
        if done():
            return False
        now = time.monotonic()
        if (new := _sign(fd)) != sign:
            sign, heard = new, now
        if now - heard >= SILENCE_S or now - began >= LONGEST_S:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_S[1])


def _sign(fd: int) -> int:
    return os.fstat(fd).st_mtime_ns
