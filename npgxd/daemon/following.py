"""Events: what those who follow a round, or wait for a compile-cache entry, are told, on change and at least every second."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npgxd.wire import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.coordinator import Coordinator
    from npgxd.daemon.lookups import Lookups
    from npgxd.daemon.progressing import Progresses
    from npgxd.wire.form import Event


class Following:
    """Sends events. ``followers``: which connections follow which round; ``tell`` sends one event to one connection."""

    def __init__(
        self,
        followers: dict[str, set[bytes]],
        coordinator: Coordinator,
        progresses: Progresses,
        lookups: Lookups,
        tell: Callable[[bytes, Event], None],
    ) -> None:
        self._followers = followers
        self._coordinator = coordinator
        self._progresses = progresses
        self._lookups = lookups
        self._tell = tell
        self._next_tell = math.inf

    def tick(self, now: float) -> float:
        """Send what is to be told; when to come back."""
        told, due = self._lookups.tick(now)
        for identity, event in told:
            self._tell(identity, event)
        return min(due, self._rounds(now))

    def _rounds(self, now: float) -> float:
        changed, self._coordinator.changed = self._coordinator.changed, set()
        due = now >= self._next_tell
        for name in list(self._followers):
            followed = self._coordinator.rounds.get(name)
            listeners = self._followers[name]
            if followed is None or not listeners:
                del self._followers[name]
                self._progresses.forget(name)
                continue
            if due or name in changed:
                progress = self._progresses.of(followed, now)
                for identity in list(listeners):
                    self._tell(identity, progress)
            if followed.result is not None:
                self._followers.pop(name, None)
        if not self._followers:
            self._next_tell = math.inf
        elif due or self._next_tell == math.inf:
            self._next_tell = now + limits.PROGRESS_INTERVAL_S
        return self._next_tell
