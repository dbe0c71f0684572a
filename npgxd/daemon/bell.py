"""One thread wakes another that polls descriptors; rung many times before it is heard, it is heard once."""

from __future__ import annotations

import contextlib
import os


class Bell:
    """Rung in any thread, heard in one: ``hush``, then look at what it may have been rung for. Nothing that was left before is missed."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._rung = False

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._descriptor

    def ring(self) -> None:
        """Wake the other thread, if that is not done already."""
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._descriptor, 1)

    def hush(self) -> None:
        """It was heard."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        self._rung = False  # only now: what is left from here on rings anew

    def close(self) -> None:
        """Nobody rings it any more."""
        os.close(self._descriptor)
