"""The journal: accepted rounds that are not settled yet, one file each. What ``accept`` returned for survives kill -9 and power loss.

A file is the line ``npgxd-round 1``, the line with the sha256 of the rest, and the rest: one msgpack map.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import msgpack

from npgxd.errors import StoreError
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npgxd.store.state import StateDirectory

SUFFIX: Final = ".round"
_MAGIC: Final = b"npgxd-round 1"
_MAX_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RoundEntry:
    """One accepted round. ``records`` are (name, canonical JSON); ``accepted_at`` is seconds since the epoch, for people."""

    round: str
    uid: int
    gid: int
    pid: int
    job: str
    rank: Mapping[str, Any]
    graph: str
    options: Mapping[str, Any]
    recompile: bool
    records: tuple[tuple[str, bytes], ...]
    accepted_at: float


class RoundJournal:
    """The unsettled rounds of a state directory."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state

    def accept(self, entry: RoundEntry) -> None:
        """Write one round; on the disk when this returns."""
        facts = {field.name: getattr(entry, field.name) for field in fields(entry)}  # asdict would copy every record
        packed: bytes = msgpack.packb(facts, use_bin_type=True)
        whole = b"\n".join((_MAGIC, hashlib.sha256(packed).hexdigest().encode(), packed))
        self._state.disk.write_file(self._state.rounds / f"{entry.round}{SUFFIX}", whole, 0o600, staging=self._state.staging)

    def settle(self, round_id: str) -> None:
        """The round has its result; its file goes. After a crash it may come back, and is settled again."""
        self._state.disk.unlink(self._state.rounds / f"{round_id}{SUFFIX}")

    def damaged(self) -> list[tuple[Path, str]]:
        """Files that are no rounds, with what is wrong; nothing is changed. StoreError if that cannot be told now."""
        found: list[tuple[Path, str]] = []
        for path in sorted(self._state.rounds.iterdir()):
            try:
                _parse(read_plain(path, _MAX_BYTES), path.name.removesuffix(SUFFIX))
            except StoreError as error:
                if error.no_means:
                    raise
                found.append((path, error.message))
        return found

    def pending(self) -> list[RoundEntry]:
        """All unsettled rounds, the oldest first; what is none is moved to the quarantine, and named in the log.

        StoreError if one cannot be read now, for want of descriptors or memory: it may be as good as any.
        """
        entries: list[RoundEntry] = []
        for path in sorted(self._state.rounds.iterdir()):
            try:
                entries.append(_parse(read_plain(path, _MAX_BYTES), path.name.removesuffix(SUFFIX)))
            except StoreError as error:
                if error.no_means:
                    raise
                self._state.set_aside(path, f"not a round: {error.message}")
        return sorted(entries, key=lambda entry: (entry.accepted_at, entry.round))


def _parse(raw: bytes, name: str) -> RoundEntry:
    """One journal file; StoreError if it is torn, damaged, or was not written by ``accept``."""
    magic, _, rest = raw.partition(b"\n")
    digest, _, packed = rest.partition(b"\n")
    if magic != _MAGIC:
        raise StoreError("it does not begin as one")
    if digest.decode("ascii", "replace") != hashlib.sha256(packed).hexdigest():
        raise StoreError("its bytes are not those that were written")
    # From here on the bytes are ours: only a fault of ours could make them wrong, and it must not stop a start.
    try:
        facts = msgpack.unpackb(packed, raw=False)
        facts["records"] = tuple((str(record), bytes(canonical)) for record, canonical in facts["records"])
        facts["accepted_at"] = float(facts["accepted_at"])
        entry = RoundEntry(**{field.name: facts[field.name] for field in fields(RoundEntry)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from None
    if entry.round != name:
        raise StoreError("it is another round's")
    return entry
