"""One compile-cache entry as a file: its bytes, then what is known of them, then one line of fixed length that seals both.

The bytes come first, so that they can be written while they arrive; the digest of each part lies behind them, so that a part can be
read and checked alone.  Nothing here looks into the bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.store.plain import in_memory, open_plain, read_at
from npgxd.wire.limits import ARTIFACT_PART_BYTES, MAX_ARTIFACT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODE: Final = 0o600
_SEAL: Final = re.compile(rb"\nnpgxd-artifact 1 ([0-9]{8}) ([0-9a-f]{64})\n")
_SEAL_BYTES: Final = 92
Stat = tuple[int, int, int, int]
"""Inode, size, time of the last change of the bytes and of the inode."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """What is known of an entry. ``scope``: whose it is; ``parts``: sha256 of each part; ``made_at``: seconds since the epoch."""

    key: str
    scope: str
    uid: int
    label: str
    digest: str
    size: int
    parts: tuple[str, ...]
    meta: Mapping[str, str]
    made_at: float

    @property
    def id(self) -> str:
        """Its name in the store."""
        return artifact_id(self.scope, self.key)


def artifact_id(scope: str, key: str) -> str:
    """The name of what ``scope`` has under ``key``."""
    return hashlib.sha256(f"{scope}\0{key}".encode()).hexdigest()


def sealed(facts: ArtifactFacts) -> bytes:
    """What is written behind the bytes."""
    told = json.dumps(asdict(facts), sort_keys=True).encode()
    return told + b"\nnpgxd-artifact 1 %08d %s\n" % (len(told), hashlib.sha256(told).hexdigest().encode())


def read_facts(path: Path) -> ArtifactFacts:
    """What a file says of its entry; StoreError if it is none, or a torn one. The bytes are not looked at."""
    with open_plain(path) as fd:
        size = os.fstat(fd).st_size
        seal = read_at(fd, path, _SEAL_BYTES, max(0, size - _SEAL_BYTES))
        found = _SEAL.fullmatch(seal)
        if found is None:
            raise StoreError("it does not end as an entry does", path=str(path))
        length = int(found[1])
        told = read_at(fd, path, length, max(0, size - _SEAL_BYTES - length))
    if hashlib.sha256(told).hexdigest().encode() != found[2]:
        raise StoreError("what it says of itself is damaged", path=str(path))
    facts = _parse(told)
    if facts.size + length + _SEAL_BYTES != size or facts.id != path.name:
        raise StoreError("it is not the entry of its name and size", path=str(path))
    return facts


def read_part(
    path: Path | str, facts: ArtifactFacts, number: int, *, known: Stat | None = None, at_hand: bool = False
) -> tuple[bytes, Stat]:
    """One part of an entry's bytes, and the file's stat; StoreError if they are not those that were published.

    ``known``: the file's stat when this part was compared with its digest before; while that is the same it is not compared again.
    ``at_hand``: StoreError, too, where the disk would have to be waited for.
    """
    start = number * ARTIFACT_PART_BYTES
    count = min(ARTIFACT_PART_BYTES, facts.size - start)
    with open_plain(path) as fd:
        found = os.fstat(fd)
        if at_hand and not in_memory(fd, count, start):
            raise StoreError(f"part {number} is on the disk alone", path=str(path))
        data = read_at(fd, path, count, start)
    stat = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if stat != known and hashlib.sha256(data).hexdigest() != facts.parts[number]:
        raise StoreError(f"part {number} has other bytes than were published", path=str(path))
    return data, stat


def _parse(told: bytes) -> ArtifactFacts:
    # The bytes are ours, by their digest: only a fault of ours could make them wrong, and it must not stop a start.
    try:
        said = json.loads(told)
        values = {item.name: said[item.name] for item in fields(ArtifactFacts)}
        values["parts"] = tuple(str(part) for part in values["parts"])
        facts = ArtifactFacts(**values)
        whole = 0 < facts.size <= MAX_ARTIFACT_BYTES and len(facts.parts) == -(-facts.size // ARTIFACT_PART_BYTES)
        if not whole or not all(_DIGEST.fullmatch(text) for text in (facts.key, facts.digest, *facts.parts)):
            raise StoreError("what it says of itself cannot be")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from None
    return facts
