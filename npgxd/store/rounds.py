"""The journal: accepted rounds that are not settled yet, one file each. What ``accept`` returned for survives kill -9 and power loss."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import msgpack

from npgxd.errors import StoreError
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

SCHEMA = 1
SUFFIX = ".round"
_MAX_BYTES = 256 * 1024 * 1024


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
        packed = msgpack.packb({"schema": SCHEMA, **asdict(entry)}, use_bin_type=True)
        self._state.disk.write_file(self._state.rounds / f"{entry.round}{SUFFIX}", packed, 0o600)

    def settle(self, round_id: str) -> None:
        """The round has its result; its file goes. After a crash it may come back, and is settled again."""
        self._state.disk.unlink(self._state.rounds / f"{round_id}{SUFFIX}")

    def pending(self) -> list[RoundEntry]:
        """All unsettled rounds, the oldest first; a file that is none is moved to the quarantine, and named in the log."""
        entries: list[RoundEntry] = []
        for path in sorted(self._state.rounds.iterdir()):
            if path.suffix != SUFFIX:
                self._state.disk.remove_tree(path)  # a temporary file of a write that a crash cut off
                continue
            try:
                entries.append(_parse(read_plain(path, _MAX_BYTES)))
            except StoreError as error:
                log.warning("%s is not a round, and is set aside: %s", path.name, error)
                self._state.disk.move(path, self._state.quarantine / path.name)
        return sorted(entries, key=lambda entry: entry.accepted_at)


def _parse(raw: bytes) -> RoundEntry:
    try:
        facts = msgpack.unpackb(raw, raw=False)
        if facts.pop("schema") != SCHEMA:
            raise StoreError("a round of another schema")
        facts["records"] = tuple((str(name), bytes(canonical)) for name, canonical in facts["records"])
        return RoundEntry(**{field.name: facts[field.name] for field in fields(RoundEntry)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"not a journal file: {type(error).__name__}: {error}") from None
