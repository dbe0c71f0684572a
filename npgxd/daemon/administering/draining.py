"""How a daemon ends: nothing new is started, what runs may finish within its time, and ranks may lease what they were told last."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from npgxd.daemon.library.placing import unleased
from npgxd.daemon.notify import notify

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.config import Config
    from npgxd.daemon.compiling.dispatch import Dispatcher
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.daemon.serving.handlers import Handlers
    from npgxd.daemon.sessions import Sessions
    from npgxd.daemon.telling.status import StatusPage

log = logging.getLogger(__name__)

LEASE_GRACE_S: Final = 2.0
"""A daemon that stops waits this long for ranks to lease what they were told last."""
LINGER_POLL_S: Final = 0.05
ENDING_S: Final = 30.0
"""What an end may take beyond the drain: killing what did not finish, and closing."""


class Draining:
    """The end of one daemon. Times are monotonic seconds."""

    def __init__(
        self,
        config: Config,
        stores: Stores,
        sessions: Sessions,
        coordinator: Coordinator,
        dispatcher: Dispatcher,
        handlers: Handlers,
        page: StatusPage,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._stores = stores
        self._sessions = sessions
        self._coordinator = coordinator
        self._dispatcher = dispatcher
        self._handlers = handlers
        self._page = page
        self._clock = clock
        self.deadline = math.inf
        """When the daemon ends whatever still runs."""

    @property
    def under_way(self) -> bool:
        """Whether the daemon is ending."""
        return self._handlers.draining

    def begin(self, why: str, *, at_once: bool = False) -> None:
        """Start nothing new, let what runs finish within its time, and end; asked twice, or ``at_once``: end now."""
        if self.under_way or at_once:
            log.warning("%s: stopping now; what was compiling is compiled at the next start", why)
            self._stop_starting()
            self.deadline = self._clock()
            return
        running, drain_s = self._dispatcher.busy, self._config.daemon.drain_s
        compiles = f"; {running} {'compile runs' if running == 1 else 'compiles run'}, for {drain_s:g} s at most"
        log.info("%s: draining%s", why, compiles if running else "")
        # However short the unit's TimeoutStopSec is, [daemon] drain_s decides how long the drain may take.
        allowed = f"EXTEND_TIMEOUT_USEC={int((drain_s + ENDING_S) * 1e6)}"
        notify("STOPPING=1", allowed, f"STATUS=draining; {running} {'compile runs' if running == 1 else 'compiles run'}")
        self._stop_starting()
        self.deadline = self._clock() + drain_s

    def asked(self, why: str, *, at_once: bool) -> None:
        """As an administrator asks for it: a drain that is asked for again changes nothing, where a second signal ends what runs."""
        if at_once or not self.under_way:
            self.begin(why, at_once=at_once)

    def is_over(self) -> bool:
        """Whether the daemon may end now."""
        if not self.under_way:
            return False
        now = self._clock()
        # Also for kernels that are being put in place, or were told to somebody a moment ago who has not leased them yet.
        ending = self._dispatcher.busy or self._coordinator.settling or self._coordinator.placing.views
        busy = ending or self._unleased(since=now - LEASE_GRACE_S)
        return now >= self.deadline or not busy

    def tick(self, now: float) -> float:
        """While the daemon only lingers nothing else may happen: when to look whether it still has to."""
        return now + LINGER_POLL_S if self.under_way and not self._dispatcher.busy else math.inf

    def _stop_starting(self) -> None:
        self._handlers.draining = self._dispatcher.draining = self._page.draining = True

    def _unleased(self, since: float) -> bool:
        return unleased(self._coordinator.rounds.values(), self._sessions, self._stores.leases, since)
