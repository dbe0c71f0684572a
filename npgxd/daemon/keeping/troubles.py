"""What goes wrong again and again, for one cause: it is told in the log once, and once more when it has come back after it was over."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Troubles:
    """What several parts of one daemon keep trying, and cannot do just now: where they are kept from it by the same, one of them tells."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}
        """What cannot be done -> why."""

    def tell(self, what: str, why: object) -> None:
        """``what`` cannot be done, for this reason."""
        cause = str(why)
        known = cause in self._causes.values()
        self._causes[what] = cause
        log.log(logging.DEBUG if known else logging.ERROR, "%s: %s", what, cause)

    def over(self, what: str) -> None:
        """It could be done."""
        self._causes.pop(what, None)
