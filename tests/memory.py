"""Where tests write: in memory where there is room for it, since what they look at is never how long an fsync takes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 2 << 30
"""Bytes; a run of all tests has a few hundred million at once."""


def room_in_memory() -> Path | None:
    """A place in memory where tests may write and run programs; None if there is none, and any directory will do.

    Every act on it is one on a file system all the same, also for a process that is killed; what a power loss may leave, no
    directory shows, and ``tests/crash`` has its own model of it.
    """
    if not os.access(MEMORY, os.W_OK | os.X_OK) or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return None  # a container's may be for data alone
    return MEMORY if shutil.disk_usage(MEMORY).free >= ROOM else None
