"""Events: what those who follow a round, or wait for a compile-cache entry, are told, on change and at least every second."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from npgxd.daemon.slices import SLICE_S
from npgxd.wire import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.caching.lookups import Lookups
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.daemon.serving.followers import Followers
    from npgxd.daemon.serving.progressing import Progresses
    from npgxd.wire.form import Event

NEWS_S: Final = 0.1
"""Kernels of a large job land a few at a time, many times a second: its ranks are told this often. A result is told at once."""


class Following:
    """Sends events. ``followers``: which connections follow which round; ``tell`` sends one event to one connection.

    ``clock`` bounds what is told in one go; all other times are monotonic seconds, passed in.
    """

    def __init__(
        self,
        followers: Followers,
        coordinator: Coordinator,
        progresses: Progresses,
        lookups: Lookups,
        tell: Callable[[bytes, Event], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._followers = followers
        self._coordinator = coordinator
        self._progresses = progresses
        self._lookups = lookups
        self._tell = tell
        self._clock = clock
        self._next_tell = math.inf
        self._next_news = -math.inf
        self._changed: set[str] = set()
        """Rounds about which there is something new to tell, when it is time for that."""
        self._due: dict[str, None] = {}
        """Rounds that are to be told of now, in their order."""

    def tick(self, now: float) -> float:
        """Send what is to be told, for one slice; when to come back."""
        told, due = self._lookups.tick(now)
        for identity, event in told:
            self._tell(identity, event)
        return min(due, self._rounds(now))

    def tell_all(self, now: float) -> None:
        """Send all that is to be told, however long it takes."""
        self._next_news = -math.inf
        self.tick(now)
        while self._due:
            self._rounds(now)

    def _rounds(self, now: float) -> float:
        self._note(now)
        begun = self._clock()
        while self._due:
            name = next(iter(self._due))
            del self._due[name]
            self._tell_of(name, now)
            if self._due and self._clock() - begun >= SLICE_S:
                return now
        if not self._followers:
            self._next_tell = math.inf
        elif self._next_tell == math.inf:
            self._next_tell = now + limits.PROGRESS_INTERVAL_S
        return min(self._next_tell, self._next_news if self._changed else math.inf)

    def _note(self, now: float) -> None:
        """See who is to be told something, and forget whom nobody follows."""
        changed, self._coordinator.changed = self._coordinator.changed, set()
        self._changed |= {name for name in changed if name in self._followers}
        every, news = now >= self._next_tell, now >= self._next_news
        for name in self._followers:
            followed = self._coordinator.rounds.get(name)
            if followed is None or not self._followers[name]:
                self._followers.drop(name)
                self._progresses.forget(name)
                self._changed.discard(name)
            elif followed.result is not None:
                self._due = {name: None, **self._due}
            elif every or (news and name in self._changed):
                self._due.setdefault(name)
        if every:
            self._next_tell = now + limits.PROGRESS_INTERVAL_S
        if news and self._changed:
            self._next_news = now + NEWS_S

    def _tell_of(self, name: str, now: float) -> None:
        self._changed.discard(name)
        followed, listeners = self._coordinator.rounds.get(name), self._followers[name]
        if followed is None or not listeners:
            return
        progress = self._progresses.of(followed, now)
        for identity in listeners:
            self._tell(identity, progress)
        if followed.result is not None:
            self._followers.drop(name)
