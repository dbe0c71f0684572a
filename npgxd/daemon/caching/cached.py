"""What the compile cache holds, for people: the document behind ``npgxctl cache`` (schema 1), and its line in the status document."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import StoreError
from npgxd.wire import limits

if TYPE_CHECKING:
    from npgxd.config import CacheSection
    from npgxd.daemon.caching.lookups import Lookups
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.store.artifact_memory import Note, Verdict
    from npgxd.store.artifact_rows import ArtifactRow
    from npgxd.wire.credentials import PeerCredentials

SCHEMA: Final = 1
MAX_ENTRIES: Final = 1000
MAX_SHOWN: Final = 200
"""Verdicts, notes and builds that one document names at most. With the other limits, it fits into one message whatever clients say."""
MAX_SAID: Final = 500
DETAILED: Final = 20
"""With so few entries, each is told of in full."""


class CachePage:
    """Assembles the document."""

    def __init__(self, settings: CacheSection, stores: Stores, lookups: Lookups) -> None:
        self._settings = settings
        self._stores = stores
        self._lookups = lookups

    def frames(self, peer: PeerCredentials, match: str, now: float) -> list[bytes]:
        """The document for one peer as JSON, cut into payload frames."""
        text = json.dumps(self.document(peer, match, now), separators=(",", ":")).encode()
        size = limits.MAX_FRAME_BYTES
        return [text[start : start + size] for start in range(0, len(text), size)][: limits.MAX_FRAMES]

    def document(self, peer: PeerCredentials, match: str, now: float) -> dict[str, Any]:
        """docs/file-formats.md, "Cache document": what this peer's user has; root and the daemon's own user see all."""
        everyone = peer.uid in {0, os.geteuid()}
        uid = None if everyone else peer.uid
        store = self._stores.artifacts
        rows, rows_total = store.rows.listed(uid, match, MAX_ENTRIES)
        verdicts, verdicts_total = store.memory.listed(uid, match, MAX_SHOWN)
        return {
            "schema": SCHEMA,
            "everyone": everyone,
            "summary": self.summary(),
            "entries": [self._entry(row, detailed=rows_total <= DETAILED) for row in rows],
            "entries_total": rows_total,
            "not_cacheable": [_verdict(verdict) for verdict in verdicts],
            "not_cacheable_total": verdicts_total,
            "building": [build for build in self._lookups.builds.describe(now) if _shown(build, uid, match)][:MAX_SHOWN],
            "notes": [_note(note) for note in store.memory.notes(uid, match, MAX_SHOWN)],
        }

    def summary(self) -> dict[str, object]:
        """Numbers for the status document."""
        count, size = self._stores.artifacts.rows.totals()
        return {
            "entries": count,
            "bytes": size,
            "max_bytes": int(self._settings.max_gb * 1e9),
            "building": len(self._lookups.builds),
            "waiting": self._lookups.builds.waiting,
            **self._stores.artifact_counters(),
        }

    def _entry(self, row: ArtifactRow, *, detailed: bool) -> dict[str, Any]:
        told: dict[str, Any] = {
            "key": row.key,
            "label": row.label,
            "uid": row.uid,
            "scope": row.scope,
            "digest": row.digest,
            "size": row.size,
            "made_at": row.made_at,
            "used": row.used,
            "state": "bad" if row.bad else "proven" if row.proven else "unproven",
            "bad": row.bad,
            "bad_reason": row.bad_reason[:MAX_SAID],
        }
        if detailed:
            try:
                told["meta"] = dict(self._stores.artifacts.facts(row).meta)
            except StoreError as error:
                told["problem"] = error.message[:MAX_SAID]
        return told


def _shown(build: dict[str, object], uid: int | None, match: str) -> bool:
    return uid in {None, build["uid"]} and (str(build["key"]).startswith(match) or match in str(build["label"]))


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "key": verdict.key,
        "label": verdict.label,
        "uid": verdict.uid,
        "code": verdict.code,
        "reason": verdict.reason[:MAX_SAID],
        "at": verdict.at,
    }


def _note(note: Note) -> dict[str, Any]:
    return {
        "key": note.key,
        "label": note.label,
        "uid": note.uid,
        "outcome": note.outcome,
        "reason": note.reason[:MAX_SAID],
        "at": note.at,
    }
