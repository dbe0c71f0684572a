"""The catalog's tables for the compile cache: which entries there are, when each was last used, what was said of it.

An index, never the truth: entries are files, and are listed again where this is lost.  What was said (proven, bad) is then said anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from npgxd.store.artifact_file import ArtifactFacts
    from npgxd.store.catalog import Catalog

_TABLE = """
CREATE TABLE IF NOT EXISTS artifacts(id TEXT PRIMARY KEY, key TEXT NOT NULL, scope TEXT NOT NULL, uid INTEGER NOT NULL,
  label TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL, made_at REAL NOT NULL, used INTEGER NOT NULL,
  proven INTEGER NOT NULL, bad INTEGER NOT NULL, bad_reason TEXT NOT NULL) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A listed entry. ``used``: a counter that goes up with each use; ``bad``: reports that it could not be loaded."""

    id: str
    key: str
    scope: str
    uid: int
    label: str
    digest: str
    size: int
    made_at: float
    used: int = 0
    proven: bool = False
    bad: int = 0
    bad_reason: str = ""

    @classmethod
    def of(cls, facts: ArtifactFacts) -> ArtifactRow:
        """As a newly found file is listed."""
        return cls(facts.id, facts.key, facts.scope, facts.uid, facts.label, facts.digest, facts.size, facts.made_at)


_NAMES = tuple(item.name for item in fields(ArtifactRow))
_COLUMNS = ", ".join(_NAMES)
_MOST_KNOWN = 1024
_MARKS = ", ".join("?" for _ in _NAMES)


def matching(uid: int | None, match: str) -> tuple[str, tuple[object, ...]]:
    """The condition for what one user (None: any) has under keys that begin with ``match``, or labels that hold it; and its values."""
    return "(?1 IS NULL OR uid = ?1) AND (instr(key, ?2) = 1 OR instr(label, ?2) > 0)", (uid, match)


class ArtifactRows:
    """All listed entries. Last uses reach the disk in batches: a kill loses the latest, and some entries seem older than they are.

    ``used`` is called with each entry that is used, in the order of uses; for what another thread has given out, as soon as that is noted.
    """

    def __init__(self, catalog: Catalog, used: Callable[[str], None]) -> None:
        self._catalog = catalog
        self._tell_used = used
        with catalog.transaction() as db:
            db.execute(_TABLE)
        self._number = int(catalog.read("SELECT COALESCE(MAX(used), 0) FROM artifacts")[0][0])
        self._used: dict[str, int] = {}
        self._known: dict[str, ArtifactRow] = {}
        self.glanced: deque[str] = deque()
        """Entries that another thread has given out, each time, since they were counted. Only this may be touched there."""
        self._glances = 0

    def get(self, entry: str) -> ArtifactRow | None:
        """An entry by id; ``used`` may be an earlier use."""
        known = self._known.get(entry)
        if known is None:
            known = next(iter(self._rows("WHERE id = ?", (entry,))), None)
            if known is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[entry] = known
        return known

    def at_hand(self, entry: str) -> ArtifactRow | None:
        """An entry by id, if it was asked for lately. It may be called in another thread."""
        return self._known.get(entry)

    def all(self) -> list[ArtifactRow]:
        """Every entry, the one used last first."""
        return sorted(self._rows(""), key=lambda row: (-row.used, row.id))

    def listed(self, uid: int | None, match: str, limit: int) -> tuple[list[ArtifactRow], int]:
        """Up to ``limit`` entries (of one user, or of all) whose keys begin with ``match`` or whose labels hold it; and how many."""
        which, values = matching(uid, match)
        total = int(self._catalog.read(f"SELECT COUNT(*) FROM artifacts WHERE {which}", values)[0][0])  # noqa: S608 -- constants
        return self._rows(f"WHERE {which} ORDER BY used DESC, id LIMIT ?3", (*values, limit)), total

    def ids(self) -> set[str]:
        """The ids of all entries."""
        return {str(row[0]) for row in self._catalog.read("SELECT id FROM artifacts")}

    def totals(self, uid: int | None = None) -> tuple[int, int]:
        """Number and bytes of all entries, or of one user's."""
        where, values = ("WHERE uid = ?", (uid,)) if uid is not None else ("", ())
        count, size = self._catalog.read(f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM artifacts {where}", values)[0]  # noqa: S608 -- a constant
        return int(count), int(size)

    def add(self, rows: Iterable[ArtifactRow]) -> None:
        """List entries; on the disk on return."""
        rows = list(rows)
        self._number += bool(rows)
        with self._catalog.transaction() as db:
            for row in rows:
                self._known.pop(row.id, None)
                values = [getattr(row, name) for name in _NAMES]
                values[_NAMES.index("used")] = row.used or self._number
                db.execute(f"INSERT OR REPLACE INTO artifacts({_COLUMNS}) VALUES ({_MARKS})", values)  # noqa: S608 -- constants

    def remove(self, entries: Collection[str]) -> None:
        """Forget entries."""
        with self._catalog.transaction() as db:
            db.executemany("DELETE FROM artifacts WHERE id = ?", [(entry,) for entry in entries])
        for entry in entries:
            self._used.pop(entry, None)
            self._known.pop(entry, None)

    def touch(self, entry: str) -> None:
        """An entry is used."""
        self._number += 1
        self._used[entry] = self._number
        self._tell_used(entry)

    def count_glances(self) -> int:
        """How many uses another thread has noted since this was asked; from now on they count like others."""
        self.note_glances()
        counted, self._glances = self._glances, 0
        return counted

    def note_glances(self) -> None:
        """What another thread has given out counts as used from now on."""
        for _ in range(len(self.glanced)):
            self.touch(self.glanced.popleft())
            self._glances += 1

    def prove(self, entry: str) -> None:
        """Somebody loaded it well."""
        self._known.pop(entry, None)
        with self._catalog.transaction() as db:
            db.execute("UPDATE artifacts SET proven = 1 WHERE id = ?", (entry,))

    def blame(self, entry: str, reason: str) -> int:
        """Somebody could not load it; how many have said so. The first reason is kept."""
        self._known.pop(entry, None)
        with self._catalog.transaction() as db:
            db.execute(
                "UPDATE artifacts SET bad = bad + 1, bad_reason = CASE bad WHEN 0 THEN ? ELSE bad_reason END WHERE id = ?",
                (reason, entry),
            )
        row = self.get(entry)
        return row.bad if row is not None else 0

    def oldest(self, limit: int, uid: int | None = None) -> list[ArtifactRow]:
        """The entries that were not used for longest."""
        self.flush()
        where, values = ("WHERE uid = ?", (uid,)) if uid is not None else ("", ())
        return self._rows(f"{where} ORDER BY used, id LIMIT ?", (*values, limit))

    def flush(self) -> None:
        """Write last uses down; StoreError leaves them for the next time."""
        self.note_glances()
        if self._used:
            with self._catalog.transaction(durable=False) as db:
                db.executemany(
                    "UPDATE artifacts SET used = ? WHERE id = ?", [(number, entry) for entry, number in self._used.items()]
                )
            self._used.clear()

    def _rows(self, which: str, values: Sequence[object] = ()) -> list[ArtifactRow]:
        found = self._catalog.read(f"SELECT {_COLUMNS} FROM artifacts {which}", values)  # noqa: S608 -- constants
        return [self._row(row) for row in found]

    def _row(self, found: tuple[object, ...]) -> ArtifactRow:
        """With the use that is not written down yet."""
        values = dict(zip(_NAMES, found, strict=True))
        values["used"] = max(int(str(values["used"])), self._used.get(str(values["id"]), 0))
        values["proven"] = bool(values["proven"])
        return ArtifactRow(**values)  # type: ignore[arg-type]  # SQLite's own types
