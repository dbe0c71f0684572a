"""Says that the disk does not answer: in the log, whoever waits for it, and in the status document, as long as the loop can be asked.

A disk that hangs is no error that anybody is told of: what waits for it just waits.  So a thread that never touches the disk looks at what
is asked of it, and has the time.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""How often the thread looks."""
SLOW_S: Final = 5.0
"""An act that takes so long is more than a busy disk's: then the disk does not answer."""
CALM_S: Final = 30.0
"""Without such an act for so long it answers again: a disk that is slow with each of many acts is told once."""


class DiskWatch:
    """Watches one state directory's disk. Times are monotonic seconds."""

    def __init__(self, state: StateDirectory, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._slow_since: float | None = None
        self._slow_at = 0.0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Look from now on, until ``close``; RuntimeError where no thread can be had."""
        thread = threading.Thread(target=self._work, name="disk watch", daemon=True)
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """Look no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Tell what is news: that the disk does not answer, or that it does again."""
        now, act = self._clock(), self._state.disk.under_way.longest()
        if act is not None and now - act.since >= SLOW_S:
            self._slow_at = now
            if self._slow_since is None:
                self._slow_since = act.since
                log.warning(
                    "the disk of %s does not answer: %s %s has taken %.0f s until now; what was compiled waits for it, and nothing of it "
                    "is lost (npgxctl doctor says what to do)",
                    self._state.path,
                    act.operation,
                    act.path,
                    now - act.since,
                )
        elif self._slow_since is not None and now - self._slow_at >= CALM_S:
            log.warning(
                "the disk of %s answers again: it was slow for %.0f s", self._state.path, self._slow_at - self._slow_since
            )
            self._slow_since = None

    @property
    def slow(self) -> bool:
        """Whether it does not answer, or did not a short while ago."""
        act = self._state.disk.under_way.longest()
        return self._slow_since is not None or (act is not None and self._clock() - act.since >= SLOW_S)

    def describe(self, now: float) -> dict[str, object]:
        """``disk`` in the status document."""
        act, told = self._state.disk.under_way.longest(), self._slow_since  # once: the thread may forget it meanwhile
        waits_s = 0.0 if act is None else max(0.0, now - act.since)
        slow = act is not None and waits_s >= SLOW_S
        begun = told if told is not None else act.since if act is not None and slow else now
        return {
            "slow": slow or told is not None,
            "slow_s": round(max(0.0, now - begun), 3),
            "waits_s": round(waits_s, 3),
            "waits_for": f"{act.operation} {act.path}" if act is not None and slow else "",
        }

    def _work(self) -> None:
        asked = self._clock()
        while not self._end.wait(LOOK_S):
            before, asked = asked, self._clock()
            if asked - before < SLOW_S:  # else this process was stopped, which says nothing of the disk
                self.look()
