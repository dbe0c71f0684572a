"""What the client says to the people who run the process: once for each cause, and visible without any logging set-up.

The logger ``npgxd`` has no handler of its own.  Where the program configures logging, the lines go there; where it does not,
Python's handler of last resort prints warnings to stderr.
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger("npgxd")

_said: set[tuple[int, str]] = set()


def warn_once(cause: str, message: str) -> bool:
    """Warn, unless this process did for this cause; True if it said so now."""
    if (os.getpid(), cause) in _said:
        log.debug("npgxd: %s", message)
        return False
    _said.add((os.getpid(), cause))
    log.warning("npgxd: %s", message)
    return True
