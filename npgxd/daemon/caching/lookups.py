"""The compile cache at the daemon: what each of its messages does. Entries are opaque bytes here; nothing ever reads, let alone runs, them.

An entry goes to the scope that made it (``scopes``), also before anybody has loaded it: those who wait for it may owe its builder a
collective, and they run what the builder runs.  To other users it goes only from a publisher whom an administrator trusts, and only once
it is proven.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from npgxd.daemon.caching.builds import Builds, Told
from npgxd.daemon.caching.publications import Publications
from npgxd.daemon.caching.room import Room
from npgxd.daemon.caching.scopes import Scopes
from npgxd.daemon.demand.uploads import TooMuch
from npgxd.daemon.refusals import Refused
from npgxd.errors import NpgxError, ProtocolError, StoreError
from npgxd.store.artifact_file import artifact_id
from npgxd.store.artifact_memory import Note, Verdict
from npgxd.wire import artifact_messages as m
from npgxd.wire.messages import Done
from npgxd.wire.printable import one_line
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npgxd.config import CacheSection
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.sessions import Session
    from npgxd.store.artifact_rows import ArtifactRow
    from npgxd.store.artifacts import StagedArtifact
    from npgxd.wire.form import Message

log = logging.getLogger(__name__)

BAD_REPORTS: Final = 2
"""So many reports that an entry could not be loaded set it aside."""
LOAD_FAILED: Final = "LOAD_FAILED"
SAID: Final = 500
"""Characters of what a client says that are logged."""
FLUSH_S: Final = 10.0
"""So long last uses, counters and notes wait until they are written down: that takes a commit, for which look-ups wait."""
Reply = tuple["Message", list[bytes]]


def hit(row: ArtifactRow, ticket: int) -> m.Artifact:
    """What a look-up that found an entry is told, beside its first part."""
    return m.Artifact(
        key=row.key,
        state=ArtifactState.HIT,
        digest=row.digest,
        size=row.size,
        proven=row.proven,
        publisher=row.uid,
        ticket=ticket,
    )


class Lookups:
    """Look-ups, publications and what ranks say of entries."""

    def __init__(self, settings: CacheSection, min_free: int, stores: Stores) -> None:
        self._stores = stores
        self._store = stores.artifacts
        self._room = Room(settings, min_free, stores)
        self._publications = Publications(self._store)
        self.builds = Builds(build_s=settings.build_s)
        self.scopes = Scopes(settings.scope, settings.trusted_uids)
        self._next_flush = float("inf")
        self.by_kind: Mapping[type[Message], Callable[..., Reply]] = {
            m.Lookup: self._lookup,
            m.Fetch: self._fetch,
            m.Publish: self._publish,
            m.NotCacheable: self._not_cacheable,
            m.Release: self._release,
            m.Proven: self._proven,
            m.BadArtifact: self._bad,
            m.CacheNote: self._note,
        }

    def reconfigured(self, settings: CacheSection, min_free: int) -> None:
        """The configuration was reloaded: what is not read at its use is taken anew. ``min_free``: bytes."""
        self._room.min_free = min_free
        self.builds.build_s = settings.build_s

    def begin(self, session: Session) -> None:
        """A session has begun: whose its entries are is found out, so that they can be at hand for it."""
        self.scopes.of(session)

    def end(self, session: Session, now: float) -> None:
        """A session has ended: it builds nothing, waits for nothing and publishes nothing any more."""
        self._publications.forget(session)
        self.builds.ended(session, now)
        self.scopes.forget(session)

    def tick(self, now: float) -> tuple[list[Told], float]:
        """What those who wait are to be told now, and when to come back."""
        if now >= self._next_flush:
            self._next_flush = float("inf")
            self._stores.flush()
        if self._store.rows.glanced:  # also what came while the others were counted: nothing tells of that
            self._next_flush = min(self._next_flush, now + FLUSH_S)
        told, due = self.builds.tick(now)
        return told, min(due, self._next_flush)

    # ---- looking up --------------------------------------------------------------------------------------------------

    def _lookup(self, session: Session, lookup: m.Lookup, _frames: tuple[bytes, ...], now: float) -> Reply:
        self._next_flush = min(self._next_flush, now + FLUSH_S)
        for row in self._entries(session, lookup.key):
            try:
                first = self._store.read(row, 0)
            except StoreError:
                continue  # the log says why
            self._stores.tally(artifact_hits=1)
            return hit(row, lookup.ticket), [first]
        entry = artifact_id(self.scopes.of(session), lookup.key)
        verdict = self._store.memory.verdict(entry)
        if verdict is not None and verdict.code:
            self._stores.tally(artifact_not_cacheable=1)
            told = m.Artifact(key=lookup.key, state=ArtifactState.NOT_CACHEABLE, code=verdict.code, reason=verdict.reason)
            return told, []
        again = self.builds.is_builder(entry, session)
        answer = self.builds.ask(
            entry, session, key=lookup.key, label=lookup.label, wait_s=lookup.wait_s, ticket=lookup.ticket, now=now
        )
        if answer.state is ArtifactState.MISS:
            self._stores.tally(artifact_misses=not again)
            if verdict is not None and not answer.code:
                answer = m.Artifact(
                    key=lookup.key, state=ArtifactState.MISS, code="REBUILD", reason=verdict.reason, ticket=lookup.ticket
                )
        return answer, []

    def _fetch(self, session: Session, fetch: m.Fetch, _frames: tuple[bytes, ...], _now: float) -> Reply:
        row = self._named(session, fetch.key, fetch.digest)
        if row is None:
            raise Refused("UNKNOWN_ARTIFACT", "there is no such entry any more", hint="look the key up again")
        if fetch.part >= len(self._store.facts(row).parts):
            raise ProtocolError(f"the entry has no part {fetch.part}")
        return m.ArtifactPart(key=fetch.key, part=fetch.part), [self._store.read(row, fetch.part)]

    def _entries(self, session: Session, key: str) -> list[ArtifactRow]:
        """What this session may have under a key: its own, else what a trusted publisher has proven."""
        scope = self.scopes.of(session)
        own = self._store.find(scope, key)
        if own is not None:
            return [own]
        trusted = self.scopes.trusted(session)
        if not trusted or self._store.memory.verdict(artifact_id(scope, key)) is not None:  # theirs was no good for this user
            return []
        found = (self._store.find(other, key) for other in trusted)
        return [row for row in found if row is not None and row.proven]

    def _named(self, session: Session, key: str, digest: str) -> ArtifactRow | None:
        return next((row for row in self._entries(session, key) if row.digest == digest), None)

    # ---- building ----------------------------------------------------------------------------------------------------

    def _publish(self, session: Session, publish: m.Publish, frames: tuple[bytes, ...], _now: float) -> Reply:
        scope = self.scopes.of(session)
        entry = artifact_id(scope, publish.key)
        try:
            there = self._store.find(scope, publish.key)
            if there is not None:
                return self._came_first(session, there, publish)
            self._check(entry, publish)
            staged = self._publications.take(session, publish, frames)
            if staged is None:
                return m.PublishTaken(key=publish.key, part=publish.part), []
            row = self._keep(session, scope, publish, staged)
        except (Refused, TooMuch, StoreError) as error:
            self._publications.drop(session, publish.key)
            self._cannot_be_kept(entry, session, error)
            raise
        self.builds.settle(entry, ArtifactState.HIT)
        return m.Published(key=publish.key, digest=row.digest), []

    def _check(self, entry: str, publish: m.Publish) -> None:
        verdict = self._store.memory.verdict(entry)
        if verdict is not None and verdict.code:
            raise Refused(
                "NOT_CACHEABLE", f"{verdict.code}: {verdict.reason}", hint="npgxctl cache rm clears that, once its cause is gone"
            )
        if publish.part == 0:
            self._room.check(publish.size)

    def _keep(self, session: Session, scope: str, publish: m.Publish, staged: StagedArtifact) -> ArtifactRow:
        try:
            self._room.make(session.peer.uid, publish.size)
            row = self._store.publish(
                staged,
                key=publish.key,
                scope=scope,
                uid=session.peer.uid,
                label=publish.label,
                meta=publish.meta,
                made_at=time.time(),
            )
        except NpgxError:
            self._store.discard(staged)
            raise
        self._stores.count(artifact_published=1)
        log.debug("uid %d pid %d published %s (%d bytes)", session.peer.uid, session.peer.pid, publish.key[:16], row.size)
        return row

    def _came_first(self, session: Session, there: ArtifactRow, publish: m.Publish) -> Reply:
        """Another process was faster, or this one says it again: what was complete first counts."""
        if there.digest != publish.digest:
            log.warning(
                "uid %d pid %d published other bytes for %s than are there: %s stays, %s is dropped",
                session.peer.uid,
                session.peer.pid,
                publish.key[:16],
                there.digest[:16],
                publish.digest[:16],
            )
        self._publications.drop(session, publish.key)
        self.builds.settle(there.id, ArtifactState.HIT)
        return m.Published(key=publish.key, digest=there.digest), []

    def _cannot_be_kept(self, entry: str, session: Session, error: NpgxError) -> None:
        """Whoever waits for a builder whose entry cannot be kept builds alone at once, not one after the other."""
        if self.builds.is_builder(entry, session):
            code = error.refusal if isinstance(error, Refused) else error.code
            self.builds.settle(entry, ArtifactState.NOT_CACHEABLE, code=code, reason=error.message)

    def _not_cacheable(self, session: Session, told: m.NotCacheable, _frames: tuple[bytes, ...], _now: float) -> Reply:
        scope = self.scopes.of(session)
        entry = artifact_id(scope, told.key)
        self._remember(session, told.key, told.label, told.code, told.reason)
        if self._store.find(scope, told.key) is not None:
            self._store.set_aside(entry, f"{told.code}: {told.reason}")
        self.builds.settle(entry, ArtifactState.NOT_CACHEABLE, code=told.code, reason=told.reason)
        return Done(), []

    def _release(self, session: Session, release: m.Release, _frames: tuple[bytes, ...], now: float) -> Reply:
        self._publications.drop(session, release.key)
        self.builds.release(artifact_id(self.scopes.of(session), release.key), session, now)
        return Done(), []

    # ---- what loading came to ----------------------------------------------------------------------------------------

    def _proven(self, session: Session, proven: m.Proven, _frames: tuple[bytes, ...], _now: float) -> Reply:
        row = self._store.find(self.scopes.of(session), proven.key)
        if row is not None and row.digest == proven.digest and not row.proven:
            self._store.rows.prove(row.id)
            self._store.memory.forget([row.id])  # that it was built anew matters no more
        return Done(), []

    def _bad(self, session: Session, bad: m.BadArtifact, _frames: tuple[bytes, ...], _now: float) -> Reply:
        scope = self.scopes.of(session)
        row = self._named(session, bad.key, bad.digest)
        if row is None:
            return Done(), []
        self._store.doubt(row)
        if row.scope != scope:  # another user's: that is no reason to take it from the others
            self._remember(session, bad.key, row.label, "", f"the entry of uid {row.uid} could not be loaded: {bad.reason}")
            return Done(), []
        times = self._store.rows.blame(row.id, bad.reason)
        log.warning(
            "uid %d pid %d cannot load %s: %s", session.peer.uid, session.peer.pid, row.key[:16], one_line(bad.reason, SAID)
        )
        if times >= BAD_REPORTS:
            first = row.bad_reason or bad.reason
            again = self._store.memory.verdict(row.id) is not None
            self._store.set_aside(row.id, f"it was reported bad {times} times: {first}")
            self._stores.count(artifact_quarantined=1)
            why = "also the entry that was built anew could not be loaded" if again else "its entry could not be loaded"
            self._remember(session, row.key, row.label, LOAD_FAILED if again else "", f"{why}: {first}")
        return Done(), []

    def _remember(self, session: Session, key: str, label: str, code: str, reason: str) -> None:
        scope = self.scopes.of(session)
        verdict = Verdict(artifact_id(scope, key), key, scope, session.peer.uid, label, code, reason[:4000], time.time())
        self._store.memory.remember(verdict)
        if code:
            log.info("uid %d: %s cannot be cached: %s: %s", session.peer.uid, key[:16], code, one_line(reason, SAID))

    def _note(self, session: Session, note: m.CacheNote, _frames: tuple[bytes, ...], now: float) -> Reply:
        self._next_flush = min(self._next_flush, now + FLUSH_S)
        self._store.memory.note(Note(note.key, session.peer.uid, note.label, note.outcome, note.reason, time.time()))
        return Done(), []
