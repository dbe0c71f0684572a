"""Loading leased views, in the order in which they were leased.

The view of a later round holds only what the process does not have by then, and counts what it has leased as had.  So before a view is
loaded, every one that was leased before it is, also where its own graph has not changed to it yet.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from npugraph_ex.engines import ReselectFailed

if TYPE_CHECKING:
    from npgxd.client import Outcome
    from npugraph_ex.engines import Engine

logger = logging.getLogger("npugraph_ex")


class Loads:
    """The leases of this process in their order, and what became of loading them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leased: list[Outcome] = []
        self._loaded = 0
        self._failed: dict[int, ReselectFailed] = {}

    def add(self, outcome: Outcome) -> int:
        """Note what was leased; its number."""
        with self._lock:
            self._leased.append(outcome)
            return len(self._leased)

    def load(self, number: int, engine: Engine) -> None:
        """Load everything up to ``number`` that is not loaded, by the thread that runs the device. ReselectFailed: that one failed."""
        with self._lock:
            while self._loaded < number:
                outcome, self._loaded = self._leased[self._loaded], self._loaded + 1
                if outcome.view is None and outcome.root is None:
                    continue
                try:
                    logger.debug("npugraph_ex: %s", engine.reselect(outcome.view))
                except ReselectFailed as error:
                    self._failed[self._loaded] = error
        if number in self._failed:
            raise self._failed[number]


LOADS = Loads()
"""This process's."""
