"""The compile cache's entries: staged as their parts arrive, published by one rename, read and checked part by part, never looked into.

Publishing order: stage -> the seal -> fsync -> one rename -> fsync the parent -> catalog.  Files are 0600 in directories of 0700: no process
but the daemon opens them, and it hands an entry only to whom it belongs.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.store.artifact_file import MODE, ArtifactFacts, Stat, artifact_id, read_facts, read_part, sealed
from npgxd.store.artifact_memory import ArtifactMemory
from npgxd.store.artifact_rows import ArtifactRow, ArtifactRows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from npgxd.store.catalog import Catalog
    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

SHELF_DIGITS: Final = 2
_RECENT: Final = 128
"""Entries of which it is kept in memory what was read of them: those used last."""
_SMALL: Final = 64 * 1024
"""An entry of at most so many bytes is kept in memory with its bytes, as long as it is among the recent ones."""
_PAGE: Final = 64


@dataclass(slots=True)
class StagedArtifact:
    """An entry that is being written; nobody can see it yet."""

    path: Path
    size: int = 0
    parts: list[str] = field(default_factory=list)
    whole: hashlib._Hash = field(default_factory=hashlib.sha256)


@dataclass(slots=True)
class _Read:
    """An entry that was read in this life: which of its parts were compared with their digests, and the file's stat then."""

    path: str
    facts: ArtifactFacts
    checked: dict[int, Stat] = field(default_factory=dict)
    whole: bytes | None = None
    """The bytes of a small one."""


class ArtifactStore:
    """All entries of a state directory."""

    def __init__(self, state: StateDirectory, catalog: Catalog) -> None:
        self._state = state
        self._place = state.path / "artifacts"
        if state.disk.make_directory(self._place, 0o700, exist_ok=True):
            state.disk.fsync_directory(state.path)
        self.rows = ArtifactRows(catalog, self._used)
        self.memory = ArtifactMemory(catalog)
        self._recent: OrderedDict[str, _Read] = OrderedDict()
        """The one used last is the last; only the owner's thread changes it, also for what another one has given out."""

    def path(self, entry: str) -> Path:
        """Where an entry lies."""
        return self._place / entry[:SHELF_DIGITS] / entry

    # ---- publishing --------------------------------------------------------------------------------------------------

    def stage(self) -> StagedArtifact:
        """Begin an entry."""
        return StagedArtifact(self._state.staging / f"artifact-{secrets.token_hex(8)}")

    def extend(self, staged: StagedArtifact, part: bytes) -> None:
        """Write the next part; its digest is taken from what is written."""
        self._state.disk.append_staged(staged.path, part, MODE)
        staged.size += len(part)
        staged.parts.append(hashlib.sha256(part).hexdigest())
        staged.whole.update(part)

    def discard(self, staged: StagedArtifact) -> None:
        """Drop what was staged."""
        self._state.disk.unlink(staged.path)

    def publish(
        self, staged: StagedArtifact, *, key: str, scope: str, uid: int, label: str, meta: Mapping[str, str], made_at: float
    ) -> ArtifactRow:
        """Make a staged entry visible; durable on return. Where there is one of its key, that one stays, and is what is returned."""
        facts = ArtifactFacts(
            key, scope, uid, label, staged.whole.hexdigest(), staged.size, tuple(staged.parts), dict(meta), made_at
        )
        disk, final = self._state.disk, self.path(facts.id)
        disk.append_staged(staged.path, sealed(facts), MODE)
        disk.fsync_file(staged.path)
        if disk.make_directory(final.parent, 0o700, exist_ok=True):
            disk.fsync_directory(self._place)
        if not disk.publish(staged.path, final):
            facts = self._came_first(staged, final, facts)
        row = self.rows.get(facts.id)
        if row is None or row.digest != facts.digest:
            row = ArtifactRow.of(facts)
            self.rows.add([row])
        return row

    def _came_first(self, staged: StagedArtifact, final: Path, facts: ArtifactFacts) -> ArtifactFacts:
        """There is an entry of this key: it stays, unless it is damaged; the facts of the one that is there now."""
        disk = self._state.disk
        try:
            there = read_facts(final)
        except StoreError as error:
            if error.no_means:
                raise
            self.set_aside(facts.id, error.message)
            disk.publish(staged.path, final)
            return facts
        disk.unlink(staged.path)
        disk.fsync_directory(final.parent)  # to force it there may have failed
        return there

    # ---- questions ---------------------------------------------------------------------------------------------------

    def find(self, scope: str, key: str) -> ArtifactRow | None:
        """The entry that ``scope`` has under ``key``. Its bytes are looked at by ``read``."""
        return self.rows.get(artifact_id(scope, key))

    def facts(self, row: ArtifactRow) -> ArtifactFacts:
        """What an entry's file says of it; StoreError if it cannot be read, and where it is damaged or gone it is set aside."""
        return self._read_before(row).facts

    def read(self, row: ArtifactRow, part: int) -> bytes:
        """One part of an entry, checked; StoreError if it cannot be read, and where it is damaged or gone it is set aside."""
        before = self._read_before(row)
        if not part:
            self.rows.touch(row.id)
            if before.whole is not None:
                return before.whole
        try:
            data, before.checked[part] = self._part(before, part)
        except StoreError as error:
            self._judge(row, error)
            raise
        if before.facts.size <= _SMALL:
            before.whole = data
        return data

    def glance(self, entry: str, part: int, *, used: bool) -> tuple[ArtifactRow, bytes] | None:
        """As ``find`` and ``read``, for another thread: None where that takes more than what the owner of the store has read before.

        It takes more, too, where the system has the bytes no longer in memory, so that the disk would have to be waited for.  What is asked
        for is compared as ``read`` does it; with ``used`` the use is noted.
        """
        row, before = self.rows.at_hand(entry), self._recent.get(entry)
        if row is None or before is None or row.digest != before.facts.digest:  # another entry by now
            return None
        data = None if part else before.whole
        if data is None:
            if part not in before.checked:
                return None
            try:
                data, _ = self._part(before, part, at_hand=True)
            except StoreError:
                return None
        if used:
            self.rows.glanced.append(row.id)  # one text for all of them
        return row, data

    def doubt(self, row: ArtifactRow) -> None:
        """Compare the entry's bytes with their digests again when they are read next."""
        self._recent.pop(row.id, None)

    def _judge(self, row: ArtifactRow, error: StoreError) -> None:
        if error.no_means:
            log.error("compile-cache entry %s cannot be read now, and stays: %s", row.key[:16], error)
        else:
            self.set_aside(row.id, error.message)

    def _part(self, before: _Read, part: int, *, at_hand: bool = False) -> tuple[bytes, Stat]:
        with self._state.disk.under_way.act("read", Path(before.path)):
            return read_part(before.path, before.facts, part, known=before.checked.get(part), at_hand=at_hand)

    def _read_before(self, row: ArtifactRow) -> _Read:
        known = self._recent.get(row.id)
        if known is None:
            path = self.path(row.id)
            self.rows.note_glances()  # else what is looked up most, and never by way of here, would seem the oldest
            try:
                known = self._recent[row.id] = _Read(os.fspath(path), read_facts(path))
            except StoreError as error:
                self._judge(row, error)
                raise
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        return known

    def _used(self, entry: str) -> None:
        if entry in self._recent:
            self._recent.move_to_end(entry)

    # ---- ends --------------------------------------------------------------------------------------------------------

    def remove(self, entries: Collection[str]) -> None:
        """Remove entries. The catalog first: a crash before the files are gone leaves entries that are listed again.

        StoreError where a file cannot be removed: those that are left are listed.
        """
        self._forget(entries)
        try:
            for entry in entries:
                self._state.disk.unlink(self.path(entry))
        except StoreError:
            with contextlib.suppress(StoreError):
                for path in filter(os.path.lexists, map(self.path, entries)):
                    self.adopt(path)
            raise

    def set_aside(self, entry: str, reason: str) -> None:
        """An entry cannot be trusted: it goes to the quarantine with its reason, and is built anew when it is needed."""
        self._forget([entry])
        if os.path.lexists(self.path(entry)):
            self._state.set_aside(self.path(entry), f"compile-cache entry: {reason}")

    def flush(self) -> None:
        """Write last uses and notes down."""
        self.rows.flush()
        self.memory.flush()

    def _forget(self, entries: Collection[str]) -> None:
        self.rows.remove(entries)
        for entry in entries:
            self._recent.pop(entry, None)

    # ---- after a crash -----------------------------------------------------------------------------------------------

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every entry's id and file, as the names on the disk say."""
        for shelf in sorted(self._place.iterdir()):
            if len(shelf.name) == SHELF_DIGITS and shelf.is_dir() and not shelf.is_symlink():
                yield from ((path.name, path) for path in shelf.iterdir() if path.name.startswith(shelf.name))

    def adopt(self, path: Path) -> None:
        """List a file that the catalog does not know; StoreError if it is no entry."""
        self.rows.add([ArtifactRow.of(read_facts(path))])

    def reconcile(self) -> tuple[int, int]:
        """Make the catalog list exactly the files that are there; how many were adopted and forgotten. What is no entry is set aside."""
        there = dict(self.files())
        listed = self.rows.ids()
        gone = listed - there.keys()
        if gone:
            log.warning("%d compile-cache entries are gone from the disk; they are built again when they are needed", len(gone))
            self.rows.remove(gone)
        found: list[ArtifactRow] = []
        for entry in sorted(there.keys() - listed):
            try:
                found.append(ArtifactRow.of(read_facts(there[entry])))
            except StoreError as error:
                if error.no_means:
                    raise
                self._state.set_aside(there[entry], f"not a compile-cache entry: {error.message}")
        for shelf in sorted({self.path(row.id).parent for row in found}):
            self._state.disk.fsync_directory(shelf)  # they were renamed; whether that reached the disk nobody can tell
        self._state.disk.fsync_directory(self._place)
        for start in range(0, len(found), _PAGE):
            self.rows.add(sorted(found, key=lambda row: (row.made_at, row.id))[start : start + _PAGE])
        return len(found), len(gone)
