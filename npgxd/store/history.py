"""What the catalog remembers of past compiles: estimates of their costs, and the keys that failed, each for as long as its reason holds.

A history, never the truth: it can be lost with the catalog, and what failed is then tried once more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from npgxd.store.catalog import Catalog

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A key that could not be compiled. Its fingerprint is in the key, so another toolchain never meets it.

    ``at`` and ``until`` are seconds since the epoch; ``until`` 0: until the toolchain changes.  ``job`` names the last run's logs.
    """

    key: str
    op_type: str
    fingerprint: str
    outcome: str
    reason: str
    attempts: int
    job: str
    at: float
    until: float = 0.0


class CompileHistory:
    """The tables of one catalog. ``clock`` is the wall clock: reasons that pass are forgotten by it, also over restarts."""

    def __init__(self, catalog: Catalog, *, clock: Callable[[], float] = time.time) -> None:
        self._catalog = catalog
        self._clock = clock
        with catalog.transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS estimates(name TEXT PRIMARY KEY, mean REAL NOT NULL, n INTEGER NOT NULL)")
            db.execute(
                "CREATE TABLE IF NOT EXISTS failed_keys(key TEXT PRIMARY KEY, op_type TEXT NOT NULL, fingerprint TEXT NOT NULL,"
                " outcome TEXT NOT NULL, reason TEXT NOT NULL, attempts INTEGER NOT NULL, job TEXT NOT NULL, at REAL NOT NULL,"
                " until REAL NOT NULL)"
            )

    # ---- costs -------------------------------------------------------------------------------------------------------

    def estimates(self) -> list[tuple[str, float, int]]:
        """(name, mean, how many measurements), of everything that was ever measured."""
        return [(str(name), float(mean), int(n)) for name, mean, n in self._catalog.read("SELECT * FROM estimates")]

    def keep_estimates(self, rows: Iterable[tuple[str, float, int]]) -> None:
        """Replace these."""
        with self._catalog.transaction(durable=False) as db:
            db.executemany("INSERT OR REPLACE INTO estimates VALUES (?, ?, ?)", rows)

    # ---- failures ----------------------------------------------------------------------------------------------------

    def remember(self, row: FailureRow) -> None:
        """Remember a key that could not be compiled."""
        with self._catalog.transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO failed_keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.key, row.op_type, row.fingerprint, row.outcome, row.reason, row.attempts, row.job, row.at, row.until),
            )

    def failures(self, keys: Sequence[str]) -> dict[str, FailureRow]:
        """Those of ``keys`` whose failure still holds. A clock that was set back by more than they last ends them, too."""
        found: dict[str, FailureRow] = {}
        now = self._clock()
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(part))
            for values in self._catalog.read(f"SELECT * FROM failed_keys WHERE key IN ({marks})", part):  # noqa: S608 -- marks
                row = FailureRow(*values)
                if _holds(row, now):
                    found[row.key] = row
        return found

    def latest_failures(self, limit: int) -> list[FailureRow]:
        """The newest failures that still hold."""
        now = self._clock()
        rows = self._catalog.read(
            "SELECT * FROM failed_keys WHERE until = 0 OR (until > ? AND at <= ?) ORDER BY at DESC LIMIT ?", (now, now, limit)
        )
        return [FailureRow(*values) for values in rows]

    def forget(self, *, keys: Sequence[str] | None = None, op_type: str | None = None) -> list[FailureRow]:
        """Forget failures: of these keys (each whole, or its first digits), of an op type, or without either all; what was forgotten."""
        rows = [FailureRow(*values) for values in self._catalog.read("SELECT * FROM failed_keys ORDER BY at DESC")]
        beginnings = tuple(keys) if keys is not None else ("",)
        gone = [row for row in rows if row.key.startswith(beginnings) and op_type in (None, row.op_type)]
        if gone:
            with self._catalog.transaction() as db:
                db.executemany("DELETE FROM failed_keys WHERE key = ?", ((row.key,) for row in gone))
        return gone

    def made(self, keys: Iterable[str]) -> None:
        """These have been compiled after all. Reasons that have passed go with them, so that the table does not grow."""
        with self._catalog.transaction(durable=False) as db:
            db.executemany("DELETE FROM failed_keys WHERE key = ?", ((key,) for key in keys))
            db.execute("DELETE FROM failed_keys WHERE until != 0 AND until <= ?", (self._clock(),))


def _holds(row: FailureRow, now: float) -> bool:
    return not row.until or row.at <= now < row.until
