"""Memory that connections take and no message accounts for: libzmq keeps a message until its last frame has come, however many there are.

Promise: while the daemon has more memory than ``MORE`` beyond what it had when all was well, whoever goes on sending and completes no message
is cut off; if that is nobody, every connection of which nothing has come whole meanwhile is ended, once: a client of ours makes a new one at
its next request.  Who has much to send sends it in parts of at most 17 MiB, and is not taken for one that does not end.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.wire import limits
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.serving.connections import Connections

log = logging.getLogger(__name__)

MORE: Final = 1024 * 1024 * 1024
LOOK_S: Final = 1.0
SAMPLE_S: Final = 0.02
SAMPLES: Final = 25
BUSY: Final = 3
"""Of so many samples so many find bytes of a message that is sent without a pause, and no message in between: libzmq reads fast."""
MESSAGE: Final = limits.MAX_HEADER_BYTES + limits.MAX_FRAMES * limits.MAX_FRAME_BYTES
ROUNDS: Final = 15
"""So many rounds of samples that find nobody, at a second each; what is still sent slowly, or not at all, is found by none."""


def resident() -> int:
    """The memory that this process has, in bytes (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


class MemoryGuard:
    """Looks once a second, if anybody is connected. ``resident`` tells the bytes that this process has."""

    def __init__(self, connections: Connections, *, resident: Callable[[], int] = resident) -> None:
        self._connections = connections
        self._resident = resident
        self._most = resident() + MORE
        self._samples = 0
        self._fruitless = 0
        self._next = -math.inf

    def tick(self, now: float) -> float:
        """Look, if it is time; when to do so again."""
        if not len(self._connections):
            return math.inf
        if now >= self._next:
            self._next = now + (SAMPLE_S if self._look() else LOOK_S)
        return self._next

    def _look(self) -> bool:
        """Whether samples are being taken."""
        if not self._samples and self._resident() <= self._most:
            self._fruitless = 0
            return False
        if not self._samples and not self._fruitless:
            self._connections.note_all()
        self._connections.sample()
        self._samples += 1
        if self._samples < SAMPLES:
            return True
        self._samples = 0
        busy = self._connections.take_busy(BUSY)
        # If each of them had a whole message under way, would that be all of it? A crowd that starts is busy, too.
        found = busy and self._resident() - (self._most - MORE) > len(busy) * MESSAGE
        if found:  # those who are busiest by far: the others may be about to end what they send
            self._connections.cut_off_each(each for often, each in busy if often * 2 >= max(busy)[0])
        self._fruitless = 1 if found else self._fruitless + 1
        if self._fruitless > ROUNDS:
            self._end_all()
        return False

    def _end_all(self) -> None:
        ended, has = self._connections.end_noted(), self._resident()
        log.warning(
            "the daemon has %d MB of memory: %s ended of which no whole message came for a while",
            has // 1_000_000,
            counted(ended, "connection is", "connections are"),
        )
        self._fruitless, self._most = 0, has + MORE
