"""What is asked of the disk at this moment, by any thread: whoever waits for a disk that hangs cannot say so, but others can."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Act:
    """One act, and when it was begun (monotonic seconds)."""

    operation: str
    path: Path
    since: float


class UnderWay:
    """The acts of one process. Each thread does one at a time; every method may be called from any of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._acts: dict[int, Act] = {}

    @contextlib.contextmanager
    def act(self, operation: str, path: Path) -> Iterator[None]:
        """It is under way as long as this lasts."""
        thread = threading.get_ident()
        self._acts[thread] = Act(operation, path, self._clock())
        try:
            yield
        finally:
            self._acts.pop(thread, None)

    def longest(self) -> Act | None:
        """The one that was begun first; None if nothing is under way."""
        return min(self._acts.copy().values(), key=lambda act: act.since, default=None)
