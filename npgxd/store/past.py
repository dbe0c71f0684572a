"""What was once there: for each key that ever had a kernel, of which record it was, and why the kernel went, if it did.

Only a history: it tells why something is missing, and never decides anything.  It is bounded, and lost with the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npgxd.store.catalog import Catalog

REMOVED: Final = "removed"
DAMAGED: Final = "damaged"
CHANGED: Final = "changed"
FIRST: Final = "first"
MOST: Final = 200_000
"""Keys that are remembered; the oldest are forgotten at a start."""
_CHUNK: Final = 400


class Past:
    """The table of one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        with catalog.transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS past(key TEXT PRIMARY KEY, record TEXT NOT NULL, gone TEXT NOT NULL)")
            db.execute("CREATE INDEX IF NOT EXISTS past_by_record ON past(record)")
            db.execute("DELETE FROM past WHERE rowid <= (SELECT MAX(rowid) FROM past) - ?", (MOST,))

    def made(self, kernels: Iterable[tuple[str, str]]) -> None:
        """These (key, digest of the record) have a kernel now."""
        with self._catalog.transaction(durable=False) as db:
            db.executemany("INSERT OR REPLACE INTO past(key, record, gone) VALUES (?, ?, '')", kernels)

    def gone(self, keys: Iterable[str], why: str) -> None:
        """The kernels of these keys went; one that went before keeps its first reason."""
        with self._catalog.transaction(durable=False) as db:
            db.executemany("UPDATE past SET gone = ? WHERE key = ? AND gone = ''", ((why, key) for key in keys))

    def why_missing(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """key -> why it has no kernel, for each key -> digest of its record in ``wanted``.

        ``removed``: it had one, and ``gone`` was told so; ``damaged``: it had one, which is not there any more; ``changed``: the same
        record had one, under another fingerprint or other options; ``first``: neither is known.
        """
        keys = list(wanted)
        told = dict.fromkeys(keys, FIRST)
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(part))
            records = [wanted[key] for key in part]
            known = {
                str(row[0])
                for row in self._catalog.read(f"SELECT DISTINCT record FROM past WHERE record IN ({marks})", records)  # noqa: S608 -- marks
            }
            told.update((key, CHANGED) for key in part if wanted[key] in known)
            for key, gone in self._catalog.read(f"SELECT key, gone FROM past WHERE key IN ({marks})", part):  # noqa: S608 -- marks
                told[str(key)] = str(gone) or DAMAGED
        return told
