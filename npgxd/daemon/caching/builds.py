"""Single flight of the compile cache: which entries are being built, by which process, and who waits for each. Pure state, no I/O.

Promise: an entry has at most one builder at a time; whoever waits is told the end, or that it is the builder now, and hears a sign of life
each second until then; a builder that ends, gives up or takes too long is followed by exactly one of those who wait; a process never waits
for itself, nor do two for each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from npgxd.wire.artifact_messages import Artifact
from npgxd.wire.limits import PROGRESS_INTERVAL_S
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from npgxd.daemon.sessions import Session

MAX_BUILDS = 256
"""Of one process."""
HANDED_ON = "the process that built it ended, gave up or took too long"
CIRCLE = "its builder waits for what this process builds"


class Told(NamedTuple):
    """An event for one connection."""

    identity: bytes
    event: Artifact


@dataclass(slots=True)
class _Waiter:
    session: Session
    until: float
    ticket: int


@dataclass(slots=True)
class _Build:
    """One entry that is being built; ``waiting`` by session, in the order of asking."""

    key: str
    label: str
    builder: Session
    since: float
    until: float
    waiting: dict[str, _Waiter] = field(default_factory=dict)


class Builds:
    """All builds of a daemon, by the entry's id. Nothing of this is kept over a restart: those who wait ask again, and one of them builds."""

    def __init__(self, *, build_s: float) -> None:
        self.build_s = build_s
        self._builds: dict[str, _Build] = {}
        self._told: list[Told] = []
        self._next_sign = math.inf

    def __len__(self) -> int:
        return len(self._builds)

    @property
    def waiting(self) -> int:
        """How many processes wait."""
        return sum(len(build.waiting) for build in self._builds.values())

    def describe(self, now: float) -> list[dict[str, object]]:
        """For people: what is being built, by whom, for how long, and how many wait."""
        return [
            {
                "key": build.key,
                "label": build.label,
                "pid": build.builder.peer.pid,
                "uid": build.builder.peer.uid,
                "elapsed_s": round(now - build.since, 3),
                "waiting": len(build.waiting),
            }
            for build in self._builds.values()
        ]

    # ---- what processes ask and say ----------------------------------------------------------------------------------

    def ask(self, entry: str, session: Session, *, key: str, label: str, wait_s: float, ticket: int, now: float) -> Artifact:
        """There is no such entry: who asks builds it, or waits (no time: does not) for the one that does."""
        build = self._builds.get(entry)
        if build is None or build.builder.id == session.id:
            if build is None:
                self._bound(session, now)
                build = self._builds[entry] = _Build(key, label, session, now, now + self.build_s)
            return Artifact(key=key, state=ArtifactState.MISS, ticket=ticket)
        if wait_s > 0 and self._would_circle(session, build):
            return Artifact(key=key, state=ArtifactState.MISS, code="CIRCLE", reason=CIRCLE, ticket=ticket)
        if wait_s > 0:
            build.waiting[session.id] = _Waiter(session, now + wait_s, ticket)
            self._next_sign = min(self._next_sign, now + PROGRESS_INTERVAL_S)
        return self._sign(build, ticket, now)

    def is_builder(self, entry: str, session: Session) -> bool:
        """Whether this session builds the entry."""
        build = self._builds.get(entry)
        return build is not None and build.builder.id == session.id

    def settle(self, entry: str, state: ArtifactState, *, code: str = "", reason: str = "") -> None:
        """It has been published, or cannot be cached: whoever waits is told."""
        build = self._builds.pop(entry, None)
        if build is None:
            return
        for waiter in build.waiting.values():
            event = Artifact(key=build.key, state=state, code=code, reason=reason, ticket=waiter.ticket)
            self._told.append(Told(waiter.session.identity, event))

    def release(self, entry: str, session: Session, now: float) -> None:
        """A process neither builds the entry any more nor waits for it."""
        build = self._builds.get(entry)
        if build is None:
            return
        build.waiting.pop(session.id, None)
        if build.builder.id == session.id:
            self._hand_on(entry, build, now)

    def ended(self, session: Session, now: float) -> None:
        """A session has ended."""
        for entry in list(self._builds):
            self.release(entry, session, now)

    # ---- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> tuple[list[Told], float]:
        """What is to be sent now, and when to come back."""
        for entry, build in list(self._builds.items()):
            for name in [name for name, waiter in build.waiting.items() if now >= waiter.until]:
                del build.waiting[name]
            if now >= build.until:
                self._hand_on(entry, build, now)
        if now >= self._next_sign:
            for build in self._builds.values():
                self._told += [
                    Told(waiter.session.identity, self._sign(build, waiter.ticket, now)) for waiter in build.waiting.values()
                ]
            self._next_sign = now + PROGRESS_INTERVAL_S if self.waiting else math.inf
        told, self._told = self._told, []
        ends = [min([build.until, *(waiter.until for waiter in build.waiting.values())]) for build in self._builds.values()]
        return told, min([self._next_sign, *ends])

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _bound(self, session: Session, now: float) -> None:
        """A process that begins builds without end gives up those that it began first."""
        own = [entry for entry, build in self._builds.items() if build.builder.id == session.id]
        for entry in own[: max(0, len(own) + 1 - MAX_BUILDS)]:
            self._hand_on(entry, self._builds[entry], now)

    def _hand_on(self, entry: str, build: _Build, now: float) -> None:
        """The builder is gone: the one that waits for longest builds; where nobody does, whoever asks next."""
        if not build.waiting:
            del self._builds[entry]
            return
        chosen = build.waiting.pop(next(iter(build.waiting)))
        build.builder, build.since, build.until = chosen.session, now, now + self.build_s
        event = Artifact(key=build.key, state=ArtifactState.MISS, code="HANDED_ON", reason=HANDED_ON, ticket=chosen.ticket)
        self._told.append(Told(chosen.session.identity, event))

    def _sign(self, build: _Build, ticket: int, now: float) -> Artifact:
        return Artifact(key=build.key, state=ArtifactState.BUILDING, elapsed_s=max(0.0, now - build.since), ticket=ticket)

    def _would_circle(self, session: Session, wanted: _Build) -> bool:
        """Whether the builder of ``wanted`` waits, over any number of others, for something that ``session`` builds."""
        seen: set[str] = set()
        ahead = [wanted.builder.id]
        while ahead:
            name = ahead.pop()
            if name == session.id:
                return True
            if name not in seen:
                seen.add(name)
                ahead += [build.builder.id for build in self._builds.values() if name in build.waiting]
        return False
