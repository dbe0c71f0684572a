"""What is remembered of compile-cache keys beside their entries: that one cannot be cached, that one was built anew, why one was compiled.

All of it is history in the catalog: bounded for each user, gone when the catalog is, and then learned again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.store.artifact_rows import matching

if TYPE_CHECKING:
    from npgxd.store.catalog import Catalog

MAX_VERDICTS: Final = 4096
"""Of one user; the oldest is forgotten first."""
MAX_NOTES: Final = 512
_TABLES: Final = (
    (
        "CREATE TABLE IF NOT EXISTS artifact_verdicts(id TEXT PRIMARY KEY, key TEXT NOT NULL, scope TEXT NOT NULL, uid INTEGER NOT NULL,"
        " label TEXT NOT NULL, code TEXT NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE IF NOT EXISTS artifact_notes(number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, uid INTEGER NOT NULL,"
        " label TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL)"
    ),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A key that cannot be cached, and why; with an empty ``code``, one whose entry went bad and is built once more."""

    id: str
    key: str
    scope: str
    uid: int
    label: str
    code: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Note:
    """What one process said of one wrapped function; ``at`` in seconds since the epoch."""

    key: str
    uid: int
    label: str
    outcome: str
    reason: str
    at: float


class ArtifactMemory:
    """Verdicts are on the disk when they are taken; notes reach it in batches."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        with catalog.transaction() as db:
            for table in _TABLES:
                db.execute(table)
        self._notes: list[Note] = []

    def remember(self, verdict: Verdict) -> None:
        """Remember a verdict, on the disk on return."""
        with self._catalog.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO artifact_verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    verdict.id,
                    verdict.key,
                    verdict.scope,
                    verdict.uid,
                    verdict.label,
                    verdict.code,
                    verdict.reason,
                    verdict.at,
                ),
            )
            db.execute(
                "DELETE FROM artifact_verdicts WHERE uid = ?1 AND id NOT IN"
                " (SELECT id FROM artifact_verdicts WHERE uid = ?1 ORDER BY at DESC LIMIT ?2)",
                (verdict.uid, MAX_VERDICTS),
            )

    def verdict(self, entry: str) -> Verdict | None:
        """What is remembered of an entry's id."""
        rows = self._catalog.read("SELECT * FROM artifact_verdicts WHERE id = ?", (entry,))
        return Verdict(*rows[0]) if rows else None

    def verdicts(self) -> list[Verdict]:
        """Everything that is remembered, the newest first."""
        return [Verdict(*row) for row in self._catalog.read("SELECT * FROM artifact_verdicts ORDER BY at DESC")]

    def listed(self, uid: int | None, match: str, limit: int) -> tuple[list[Verdict], int]:
        """Up to ``limit`` verdicts, as ``ArtifactRows.listed``, the newest first; and how many there are."""
        which, values = matching(uid, match)
        total = int(self._catalog.read(f"SELECT COUNT(*) FROM artifact_verdicts WHERE {which}", values)[0][0])  # noqa: S608 -- constants
        question = f"SELECT * FROM artifact_verdicts WHERE {which} ORDER BY at DESC LIMIT ?3"  # noqa: S608 -- constants
        return [Verdict(*row) for row in self._catalog.read(question, (*values, limit))], total

    def forget(self, entries: list[str]) -> int:
        """Forget verdicts; how many there were."""
        known = [entry for entry in entries if self.verdict(entry) is not None]
        if known:
            with self._catalog.transaction() as db:
                db.executemany("DELETE FROM artifact_verdicts WHERE id = ?", [(entry,) for entry in known])
        return len(known)

    # ---- notes -------------------------------------------------------------------------------------------------------

    def note(self, note: Note) -> None:
        """Take a note; it is written down with the next flush."""
        self._notes.append(note)
        del self._notes[:-MAX_NOTES]

    def notes(self, uid: int | None = None, match: str = "", limit: int = MAX_NOTES) -> list[Note]:
        """Up to ``limit`` notes, as ``ArtifactRows.listed``, the newest first."""
        which, values = matching(uid, match)
        question = f"SELECT key, uid, label, outcome, reason, at FROM artifact_notes WHERE {which} ORDER BY number DESC LIMIT ?3"  # noqa: S608 -- constants
        rows = [Note(*row) for row in self._catalog.read(question, (*values, limit))]
        fresh = [
            note
            for note in reversed(self._notes)
            if uid in {None, note.uid} and (note.key.startswith(match) or match in note.label)
        ]
        return (fresh + rows)[:limit]

    def flush(self) -> None:
        """Write notes down; StoreError leaves them for the next time."""
        if not self._notes:
            return
        with self._catalog.transaction(durable=False) as db:
            db.executemany(
                "INSERT INTO artifact_notes(key, uid, label, outcome, reason, at) VALUES (?, ?, ?, ?, ?, ?)",
                [(note.key, note.uid, note.label, note.outcome, note.reason, note.at) for note in self._notes],
            )
            for uid in {note.uid for note in self._notes}:
                db.execute(
                    "DELETE FROM artifact_notes WHERE uid = ?1 AND number NOT IN"
                    " (SELECT number FROM artifact_notes WHERE uid = ?1 ORDER BY number DESC LIMIT ?2)",
                    (uid, MAX_NOTES),
                )
        self._notes.clear()
