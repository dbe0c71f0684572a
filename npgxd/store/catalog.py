"""The catalog: which kernel answers which key, and a history. An index over files, never the truth; it can be deleted.

SQLite in WAL mode with synchronous=FULL, so that what is committed survives power loss.  A catalog that is missing, damaged or of
another schema is set aside and made anew from the kernels' manifests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.errors import StoreError
from npgxd.store.disk import DISK, Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

log = logging.getLogger(__name__)

SCHEMA = 1
_CHUNK = 500
_TABLES = """
CREATE TABLE kernels(
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL, op_type TEXT NOT NULL,
  size INTEGER NOT NULL, package TEXT NOT NULL, cost_s REAL NOT NULL, made_at REAL NOT NULL);
CREATE INDEX kernels_by_key ON kernels(key, sequence);
CREATE TABLE packages(digest TEXT PRIMARY KEY, name TEXT NOT NULL, size INTEGER NOT NULL);
CREATE TABLE costs(op_type TEXT PRIMARY KEY, mean_s REAL NOT NULL, n INTEGER NOT NULL);
CREATE TABLE failures(key TEXT PRIMARY KEY, op_type TEXT NOT NULL, fingerprint TEXT NOT NULL, reason TEXT NOT NULL,
  attempts INTEGER NOT NULL, at REAL NOT NULL);
CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel as the catalog lists it; ``made_at`` in seconds since the epoch."""

    key: str
    id: str
    op_type: str
    size: int
    package: str
    cost_s: float
    made_at: float


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A key that the compiler refused, remembered until the toolchain changes (its fingerprint is in the key)."""

    key: str
    op_type: str
    fingerprint: str
    reason: str
    attempts: int
    at: float


class Catalog:
    """One connection, used by one thread."""

    def __init__(self, path: Path, *, rebuild: Callable[[], Iterable[KernelRow]] | None = None, disk: Disk = DISK) -> None:
        self._path = path
        self._disk = disk
        self.was_rebuilt = False
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            log.warning("the catalog %s cannot be used (%s): it is made anew from the kernels", path, error)
            self._set_aside()
            self._db = self._open()
        if self.was_rebuilt and rebuild is not None:
            self.add_kernels(sorted(rebuild(), key=lambda row: (row.made_at, row.id)))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # ---- kernels -----------------------------------------------------------------------------------------------------

    def add_kernels(self, rows: Sequence[KernelRow]) -> None:
        """List kernels; for each key the one listed last is the one that answers."""
        with self._commit():
            for row in rows:
                # Listed again is newest again: what was compiled last answers, also when it has the bytes of an older one.
                self._db.execute("DELETE FROM kernels WHERE id = ?", (row.id,))
                self._db.execute(
                    "INSERT INTO kernels(id, key, op_type, size, package, cost_s, made_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (row.id, row.key, row.op_type, row.size, row.package, row.cost_s, row.made_at),
                )

    def kernel_ids(self, keys: Sequence[str]) -> dict[str, str]:
        """key -> kernel id, for those keys that have a kernel."""
        found: dict[str, str] = {}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(part))
            rows = self._db.execute(f"SELECT key, id FROM kernels WHERE key IN ({marks}) ORDER BY sequence", part)
            found.update(rows)
        return found

    def drop_kernel(self, kernel: str) -> None:
        """Forget a kernel; an older one of the same key answers again, if there is one."""
        with self._commit():
            self._db.execute("DELETE FROM kernels WHERE id = ?", (kernel,))

    def kernel_count(self) -> int:
        """How many kernels are listed."""
        return int(self._one("SELECT COUNT(*) FROM kernels"))

    def kernel_bytes(self) -> int:
        """Bytes of all listed kernels."""
        return int(self._one("SELECT COALESCE(SUM(size), 0) FROM kernels"))

    # ---- packages ----------------------------------------------------------------------------------------------------

    def add_package(self, digest: str, name: str, size: int) -> None:
        """Note a run package's vendor file name."""
        with self._commit():
            self._db.execute("INSERT OR IGNORE INTO packages VALUES (?, ?, ?)", (digest, name, size))

    def package_name(self, digest: str) -> str:
        """The vendor's file name of a package; empty if it is not known."""
        row = self._db.execute("SELECT name FROM packages WHERE digest = ?", (digest,)).fetchone()
        return "" if row is None else str(row[0])

    def package_count(self) -> int:
        """How many packages are noted."""
        return int(self._one("SELECT COUNT(*) FROM packages"))

    # ---- history -----------------------------------------------------------------------------------------------------

    def learn_costs(self, costs: Iterable[tuple[str, float]]) -> None:
        """Let (op type, seconds) flow into the running means."""
        with self._commit():
            self._db.executemany(
                "INSERT INTO costs VALUES (?, ?, 1) ON CONFLICT(op_type) DO UPDATE SET"
                " mean_s = mean_s + (excluded.mean_s - mean_s) / MIN(n + 1, 100), n = n + 1",
                costs,
            )

    def costs(self) -> dict[str, float]:
        """op type -> mean seconds of one kernel."""
        return dict(self._db.execute("SELECT op_type, mean_s FROM costs"))

    def remember_failure(self, row: FailureRow) -> None:
        """Remember that the compiler refuses a key."""
        with self._commit():
            self._db.execute(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?)",
                (row.key, row.op_type, row.fingerprint, row.reason, row.attempts, row.at),
            )

    def forget_failures(self, keys: Sequence[str]) -> None:
        """These keys are to be tried again, or have been compiled after all."""
        with self._commit():
            self._db.executemany("DELETE FROM failures WHERE key = ?", ((key,) for key in keys))

    def failures(self, keys: Sequence[str]) -> dict[str, str]:
        """key -> reason, for those keys that are known to fail."""
        found: dict[str, str] = {}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(part))
            found.update(self._db.execute(f"SELECT key, reason FROM failures WHERE key IN ({marks})", part))
        return found

    def latest_failures(self, limit: int) -> list[FailureRow]:
        """The newest remembered failures."""
        rows = self._db.execute("SELECT * FROM failures ORDER BY at DESC LIMIT ?", (limit,))
        return [FailureRow(*row) for row in rows]

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to counters that survive restarts."""
        with self._commit():
            self._db.executemany(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value",
                counts.items(),
            )

    def counters(self) -> dict[str, int]:
        """All counters."""
        return dict(self._db.execute("SELECT name, value FROM counters"))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        new = not self._path.exists()
        if new:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self._path, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT;")
                self.was_rebuilt = True
            elif version != SCHEMA:
                raise sqlite3.DatabaseError(f"schema {version}, not {SCHEMA}")
            db.execute("SELECT COUNT(*) FROM kernels").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def _set_aside(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            old = Path(f"{self._path}{suffix}")
            if old.exists():
                self._disk.move(old, Path(f"{self._path}.damaged-{int(time.time())}{suffix}"))

    def _one(self, question: str) -> int | float:
        return self._db.execute(question).fetchone()[0]  # type: ignore[no-any-return]  # SQLite's own types

    @contextlib.contextmanager
    def _commit(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise StoreError(f"cannot write the catalog {self._path}: {error}", hint="free space on its disk") from error
