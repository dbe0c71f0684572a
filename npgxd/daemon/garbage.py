"""When Python looks for garbage in cycles: at moments when nothing else is to be done, and among what is new.

Left alone, Python goes through all that the daemon keeps, tens of milliseconds in the middle of anything.  Here what a search has left over
is put aside ("frozen"), so that the next one goes through what was made since; and once in a while, everything is gone through.  Memory
stays as flat as before: also a daemon that always has something to do searches, and whole searches come with the growth of what is kept.
"""

from __future__ import annotations

import gc
import math
from typing import Final

NEVER: Final = 1_000_000
YOUNG: Final = 6
"""Generations of young objects, each of some thousands that were made and kept, after which the next idle moment is used."""
TOO_MANY: Final = 30
"""The same, after which it is done whatever else waits: some milliseconds."""
GROWTH: Final = 1.25
"""What is kept has grown so much since everything was gone through: the next idle moment is used for that."""
TOO_MUCH: Final = 2.0
WHOLE_S: Final = 600.0
"""Everything is gone through after this long at the latest, if anything was made meanwhile."""


class Garbage:
    """The one that decides when garbage is collected in this process. Times are monotonic seconds, passed in."""

    def __init__(self) -> None:
        self._kept = 0
        self._whole_at = -math.inf

    def begin(self, now: float) -> None:
        """The daemon is ready: what it consists of is not gone through again before long."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)  # the youngest are still looked through as they come, a millisecond at the most
        gc.freeze()
        self._kept, self._whole_at = gc.get_freeze_count(), now

    @property
    def due(self) -> bool:
        """Whether an idle moment should be used."""
        return gc.get_count()[2] >= YOUNG

    @property
    def overdue(self) -> bool:
        """Whether there may not be an idle moment to wait for."""
        return gc.get_count()[2] >= TOO_MANY

    def collect(self, now: float, *, idle: bool) -> None:
        """Free what is garbage among what is new; and among everything, when that is due."""
        gc.collect()
        gc.freeze()
        kept = gc.get_freeze_count()
        self._kept = min(self._kept, kept)
        if kept > self._kept * (GROWTH if idle else TOO_MUCH) or (idle and now - self._whole_at >= WHOLE_S):
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._kept, self._whole_at = gc.get_freeze_count(), now
