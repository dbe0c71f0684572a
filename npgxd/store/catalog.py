"""The catalog: which kernel answers which key, and a history. An index over files, never the truth; it can be deleted.

SQLite in WAL mode with synchronous=FULL, so that what is committed survives power loss.  A catalog that is missing, damaged or of
another schema is set aside and made anew from the kernels' manifests.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import StoreError
from npgxd.store.disk import DISK, Disk, explained
from npgxd.store.plain import digest_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

log = logging.getLogger(__name__)

SCHEMA = 1
_CHUNK = 500
_FULL: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC}
)
"""What SQLite calls it when there is no room for the catalog's log, or for the index of that log (sqlite.org/rescode.html)."""
_SCARCE: Final = frozenset({sqlite3.SQLITE_IOERR_NOMEM, sqlite3.SQLITE_IOERR_SHMMAP})
"""What it calls it when there is no memory; for want of descriptors it has no word of its own."""
_PASSING: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, *_FULL, *_SCARCE})
"""Troubles at opening that say nothing about the file: it is not made anew for them."""
_DESCRIPTORS: Final = 4
"""SQLite opens the file, its log, the index of that, and the directory."""
_TABLES = """
CREATE TABLE kernels(
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL, op_type TEXT NOT NULL,
  size INTEGER NOT NULL, package TEXT NOT NULL, cost_s REAL NOT NULL, made_at REAL NOT NULL);
CREATE INDEX kernels_by_key ON kernels(key, sequence);
CREATE TABLE packages(digest TEXT PRIMARY KEY, name TEXT NOT NULL, size INTEGER NOT NULL);
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
    sequence: int = 0
    """Its place in the order of publication; 0 takes the next."""


class Catalog:
    """One connection, used by one thread."""

    def __init__(
        self,
        path: Path,
        *,
        rebuild: Callable[[], Iterable[KernelRow]] | None = None,
        disk: Disk = DISK,
        busy_s: float = 5.0,
    ) -> None:
        self._path = path
        self._busy_s = busy_s
        self._disk = disk
        self.was_rebuilt = False
        try:
            self._db = self._open_twice()
        except sqlite3.DatabaseError as error:
            log.warning("the catalog %s cannot be used (%s): it is made anew from the kernels", path, error)
            self._set_aside()
            try:
                self._db = self._open()
            except sqlite3.DatabaseError as again:
                raise _trouble("make", path, again, hint="free space on its disk, or set another state_dir") from again
        if self.was_rebuilt and rebuild is not None:
            self.add_kernels(sorted(rebuild(), key=lambda row: (row.sequence, row.id)))

    def close(self) -> None:
        """Close the file."""
        with self._disk.under_way.act("write", self._path):  # what is in its log goes into it
            self._db.close()

    # ---- kernels -----------------------------------------------------------------------------------------------------

    def add_kernels(self, rows: Sequence[KernelRow]) -> None:
        """List kernels; for each key the one with the highest sequence is the one that answers."""
        with self._commit():
            for row in rows:
                # Listed again is newest again: what was compiled last answers, also when it has the bytes of an older one.
                self._db.execute("DELETE FROM kernels WHERE id = ?", (row.id,))
                taken = self._db.execute("SELECT 1 FROM kernels WHERE sequence = ?", (row.sequence,)).fetchone()
                sequence = None if taken or row.sequence <= 0 else row.sequence
                self._db.execute(
                    "INSERT INTO kernels(sequence, id, key, op_type, size, package, cost_s, made_at)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (sequence, row.id, row.key, row.op_type, row.size, row.package, row.cost_s, row.made_at),
                )

    def next_sequence(self) -> int:
        """The number after the highest that any kernel was ever listed with."""
        rows = self._read("SELECT seq FROM sqlite_sequence WHERE name = 'kernels'")
        return int(rows[0][0]) + 1 if rows else 1

    def all_kernel_ids(self) -> set[str]:
        """Every listed kernel."""
        return {row[0] for row in self._read("SELECT id FROM kernels")}

    def kernel_ids(self, keys: Sequence[str]) -> dict[str, str]:
        """key -> kernel id, for those keys that have a kernel."""
        found: dict[str, str] = {}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(part))
            found.update(self._read(f"SELECT key, id FROM kernels WHERE key IN ({marks}) ORDER BY sequence", part))
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
        """Note a run package's vendor file name: on the disk with the kernels that came out of it, and without them of no use."""
        with self._commit(durable=False):
            self._db.execute("INSERT OR IGNORE INTO packages VALUES (?, ?, ?)", (digest, name, size))

    def package_name(self, digest: str) -> str:
        """The vendor's file name of a package; empty if it is not known."""
        rows = self._read("SELECT name FROM packages WHERE digest = ?", (digest,))
        return str(rows[0][0]) if rows else ""

    def package_count(self) -> int:
        """How many packages are noted."""
        return int(self._one("SELECT COUNT(*) FROM packages"))

    # ---- history -----------------------------------------------------------------------------------------------------

    def count(self, counts: Mapping[str, int], *, durable: bool = True) -> None:
        """Add to counters that survive restarts."""
        with self._commit(durable=durable):
            self._db.executemany(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value",
                counts.items(),
            )

    def counters(self) -> dict[str, int]:
        """All counters."""
        return dict(self._read("SELECT name, value FROM counters"))

    # ---- for tables that others keep here ----------------------------------------------------------------------------

    def read(self, question: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows that answer a SELECT."""
        return self._read(question, values)

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Several statements as one, on the disk afterwards; StoreError if they cannot be, and then none counts.

        Not ``durable``: on the disk with the next one that is. For histories, of which power loss may take the last moments: the loop
        does not wait for the disk for their sake.
        """
        with self._commit(durable=durable):
            yield self._db

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _open_twice(self) -> sqlite3.Connection:
        """Once more where it fails and can be read: for want of memory, say, SQLite calls a good file one that it cannot read.

        StoreError where that says nothing of the file. DatabaseError: the file is of no use.
        """
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if _says_nothing(self._path, code):
                hint = "free space on its disk, or memory, and end what locks it"
                raise _trouble("open", self._path, error, hint=hint) from error
            if not all(map(_can_be_read, _files(self._path))):
                raise
            return self._open()

    def _open(self) -> sqlite3.Connection:
        new = not self._path.exists()
        if new:
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self._path, isolation_level=None, timeout=self._busy_s)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT;")
                self.was_rebuilt = True
            elif version != SCHEMA:
                raise sqlite3.DatabaseError(f"schema {version}, not {SCHEMA}")
            # A few milliseconds at 10,000 kernels, and a damaged page is found now rather than by a look-up.
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        except BaseException:
            db.close()
            raise
        return db

    def _set_aside(self) -> None:
        place = self._path.parent / "quarantine"
        self._disk.make_directory(place, 0o700, exist_ok=True)
        mark = secrets.token_hex(4)
        for old in _files(self._path):
            self._disk.move(old, place / old.name.replace(self._path.name, f"{self._path.name}-{mark}", 1))

    def _one(self, question: str) -> int | float:
        return self._read(question)[0][0]  # type: ignore[no-any-return]  # SQLite's own types

    def _read(self, question: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._disk.under_way.act("read", self._path):  # also this writes: a mark in the shared memory, which is a file
                return self._db.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot read the catalog {self._path}: {error}", hint="a restart makes it anew from the kernels"
            ) from error

    @contextlib.contextmanager
    def _commit(self, *, durable: bool = True) -> Iterator[None]:
        try:
            if not durable:
                self._db.execute("PRAGMA synchronous=NORMAL")  # in WAL mode: no fsync at the commit (sqlite.org/pragma.html)
            with self._disk.under_way.act("write", self._path):
                self._db.execute("BEGIN IMMEDIATE")
            yield
            with self._disk.under_way.act("write", self._path):
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise _trouble("write", self._path, error, hint="free space on its disk") from error
        finally:
            if not durable and not self._db.in_transaction:
                self._db.execute("PRAGMA synchronous=FULL")


def _says_nothing(path: Path, code: int) -> bool:
    """Whether a trouble at opening is none of the file's. StoreError where there are no descriptors left to tell."""
    with contextlib.ExitStack() as opened, explained("open", path):
        for _ in range(_DESCRIPTORS):
            opened.callback(os.close, os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    return code in _PASSING or (code == sqlite3.SQLITE_CANTOPEN and all(map(_can_be_read, _files(path))))


def _files(path: Path) -> list[Path]:
    """The catalog's file, its log and the index of that, as far as they are there."""
    return [each for suffix in ("", "-wal", "-shm") if os.path.lexists(each := Path(f"{path}{suffix}"))]


def _can_be_read(path: Path) -> bool:
    """Whether it is a plain file that the disk gives, whatever is in it. StoreError where there are no means to tell."""
    try:
        digest_plain(path)
    except StoreError as error:
        if error.no_means:
            raise
        return False
    return True


def _trouble(act: str, path: Path, error: sqlite3.Error, *, hint: str) -> StoreError:
    """What SQLite says, as every other trouble with the disk is told."""
    full = getattr(error, "sqlite_errorcode", None) in _FULL
    return StoreError(
        f"cannot {act} the catalog {path}: {error}", hint=hint, path=str(path), errno=errno.ENOSPC if full else None
    )
