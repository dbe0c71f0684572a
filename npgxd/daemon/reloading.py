"""SIGHUP: the configuration is read again, and what can be applied is applied.

Promise: a configuration with an error is refused whole, in one line of the log, and the one in force stays; what needs a restart is named
in the log and in the status, until the daemon is started again or the configuration says again what is in force.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from npgxd.daemon.notify import notify
from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.config import Config, Settings

log = logging.getLogger(__name__)


class Reloading:
    """The reloads of one daemon. ``read`` reads the configuration anew; ``parts`` take what they do not read at its use."""

    def __init__(self, settings: Settings, read: Callable[[], Config], status: Callable[[], str]) -> None:
        self._settings = settings
        self._read = read
        self._status = status
        self.parts: list[Callable[[], None]] = []
        self._count = 0
        self._at: float | None = None
        self._problem = ""
        self._applied: tuple[str, ...] = ()
        self._restart: tuple[str, ...] = ()

    def reload(self) -> None:
        """Read it again, and apply it or refuse it."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._take(self._read())
        except (NpgxError, OSError) as error:
            self._problem = str(error)
            log.error("the configuration is not reloaded, the old one stays: %s", error)
        notify("READY=1", f"STATUS={self._status()}")

    def describe(self) -> dict[str, object]:
        """``reload`` in the status document."""
        return {
            "count": self._count,
            "at": self._at,
            "applied": list(self._applied),
            "restart_needed": list(self._restart),
            "problem": self._problem,
        }

    def _take(self, config: Config) -> None:
        change = self._settings.take(config)
        self._count, self._at, self._problem = self._count + 1, time.time(), ""
        self._applied, self._restart = change.applied, change.restart
        for part in self.parts:
            part()
        log.info("reloaded %s: %s", config.source, ", ".join(change.applied) or "nothing has changed that can be applied")
        if change.restart:
            log.warning("these need a restart, until which the old values count: %s", ", ".join(change.restart))
