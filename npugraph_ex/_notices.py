"""Saying a thing once: the process's memory of what its user has been told already."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

logger = logging.getLogger("npugraph_ex")

_told: set[Hashable] = set()
_lock = threading.Lock()


def once(key: Hashable, level: int, message: str) -> bool:
    """Log ``message`` at ``level``, unless something was logged for ``key`` in this process. True if it was logged now."""
    with _lock:
        if key in _told:
            return False
        _told.add(key)
    logger.log(level, "npugraph_ex: %s", message)
    return True


def forget() -> None:
    """Say everything again; for tests."""
    with _lock:
        _told.clear()
