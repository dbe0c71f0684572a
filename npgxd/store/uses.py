"""When each kernel was last used, by a counter and not by a clock; and what removal needs to know of each kernel beside that.

The counter goes up with every round that finds or publishes kernels.  It reaches the catalog in batches, for which nobody waits: a kill loses
the last second's uses, power loss those since kernels were listed last, which makes some kernels seem older than they are, and nothing else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from npgxd.store.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Standing:
    """A listed kernel with its last use; ``used`` 0: not since anybody counts, ``fingerprint`` empty: not looked at yet."""

    sequence: int
    id: str
    key: str
    op_type: str
    size: int
    package: str
    used: int
    fingerprint: str


class Uses:
    """The last use of every kernel of a catalog."""

    def __init__(self, catalog: Catalog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._catalog = catalog
        self._clock = clock
        with catalog.transaction() as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS standing(id TEXT PRIMARY KEY, used INTEGER NOT NULL, fingerprint TEXT NOT NULL)"
                " WITHOUT ROWID"
            )
        self._number = int(catalog.read("SELECT COALESCE(MAX(used), 0) FROM standing")[0][0])
        self._latest: dict[str, int] = {}
        self._fingerprints: dict[str, str] = {}
        self._born: dict[str, float] = {}
        self._dirty: set[str] = set()

    @property
    def number(self) -> int:
        """The counter as it is now."""
        return self._number

    @property
    def dirty(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._dirty)

    def touch(self, kernels: Collection[str]) -> None:
        """One round uses these kernels."""
        if kernels:
            self._number += 1
            self._latest.update(dict.fromkeys(kernels, self._number))
            self._dirty.update(kernels)

    def published(self, fingerprints: Mapping[str, str]) -> None:
        """These kernels (id -> fingerprint of their op) were published now."""
        self._fingerprints.update(fingerprints)
        self._born.update(dict.fromkeys(fingerprints, self._clock()))
        self.touch(fingerprints.keys())

    def learned(self, kernel: str, fingerprint: str) -> None:
        """The fingerprint of a kernel that was published when nobody wrote it down."""
        self._fingerprints[kernel] = fingerprint
        self._dirty.add(kernel)

    def touched_since(self, kernel: str, number: int) -> bool:
        """Whether a round has used a kernel since the counter was at ``number``."""
        return self._latest.get(kernel, 0) > number

    def is_recent(self, kernel: str, within_s: float) -> bool:
        """Whether a kernel was published in this life, and less than ``within_s`` seconds ago."""
        born = self._born.get(kernel)
        if born is None or self._clock() - born < within_s:
            return born is not None
        del self._born[kernel]
        return False

    def flush(self) -> None:
        """Write down what is not written yet; StoreError leaves it for the next time."""
        rows = [(kernel, self._latest.get(kernel, 0), self._fingerprints.get(kernel, "")) for kernel in self._dirty]
        if rows:
            with self._catalog.transaction(durable=False) as db:
                db.executemany(
                    "INSERT INTO standing VALUES (?, ?, ?) ON CONFLICT(id) DO UPDATE SET used = MAX(used, excluded.used),"
                    " fingerprint = CASE excluded.fingerprint WHEN '' THEN fingerprint ELSE excluded.fingerprint END",
                    rows,
                )
        self._dirty.clear()
        self._fingerprints.clear()

    def page(self, after: int, limit: int) -> list[Standing]:
        """Up to ``limit`` listed kernels whose sequence is above ``after``, in that order."""
        rows = self._catalog.read(
            "SELECT k.sequence, k.id, k.key, k.op_type, k.size, k.package, COALESCE(s.used, 0), COALESCE(s.fingerprint, '')"
            " FROM kernels k LEFT JOIN standing s ON s.id = k.id WHERE k.sequence > ? ORDER BY k.sequence LIMIT ?",
            (after, limit),
        )
        return [self._now(Standing(*row)) for row in rows]

    def forget(self, kernels: Collection[str]) -> None:
        """Take kernels out of the catalog, in one transaction that is on the disk when this returns."""
        ids = [(kernel,) for kernel in kernels]
        with self._catalog.transaction() as db:
            db.executemany("DELETE FROM kernels WHERE id = ?", ids)
            db.executemany("DELETE FROM standing WHERE id = ?", ids)
        for kernel in kernels:
            self._latest.pop(kernel, None)
            self._born.pop(kernel, None)
            self._fingerprints.pop(kernel, None)
            self._dirty.discard(kernel)

    def forget_strays(self) -> None:
        """Drop what is written down of kernels that are not listed any more."""
        if self._catalog.read("SELECT 1 FROM standing WHERE id NOT IN (SELECT id FROM kernels) LIMIT 1"):
            with self._catalog.transaction() as db:
                db.execute("DELETE FROM standing WHERE id NOT IN (SELECT id FROM kernels)")

    def _now(self, row: Standing) -> Standing:
        """The row with what is not flushed yet."""
        used = max(row.used, self._latest.get(row.id, 0))
        fingerprint = self._fingerprints.get(row.id, row.fingerprint)
        if (used, fingerprint) == (row.used, row.fingerprint):
            return row
        return Standing(row.sequence, row.id, row.key, row.op_type, row.size, row.package, used, fingerprint)
