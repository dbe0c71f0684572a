"""A kill that always ends: ask, then force, look again until nobody is left, and name those that the kernel does not let go."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from npgxd.compile.processes import Process, send, wait_for_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""
FORCE_S = 5.0
"""After SIGKILL only a process in uninterruptible sleep is left; it is reported then, not waited for."""


def end_all(
    find: Callable[[], Iterable[Process]],
    *,
    grace_s: float = GRACE_S,
    force_s: float = FORCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Process, ...]:
    """End whatever ``find`` finds, however often it forks meanwhile; those that remain after ``grace_s + force_s`` seconds.

    ``find`` is asked again after every step, so children that were born in between are met too; two empty answers in a row end
    it, since a process can be born behind the back of one walk through /proc.
    """
    begun = clock()
    asked: set[int] = set()
    empty = 0
    while empty < 2:  # noqa: PLR2004 -- twice in a row
        alive = [process for process in find() if process.runs]
        empty = 0 if alive else empty + 1
        elapsed = clock() - begun
        if alive and elapsed >= grace_s + force_s:
            return tuple(alive)
        for process in alive:
            if elapsed >= grace_s:
                send(process, signal.SIGKILL)
            elif process.pid not in asked:
                asked.add(process.pid)
                send(process, signal.SIGTERM)
        if alive:
            wait_for_any(alive, grace_s + force_s - elapsed)
    return ()
