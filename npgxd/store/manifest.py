"""The manifest of a kernel: every member's digest and size, what it was compiled from and by, and the index entries it stands for.

A kernel's id is the digest of everything in the manifest that belongs to the result itself; when and how it was made is beside
that, so that two compiles with equal results are one kernel, and two with different results are two.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import StoreError
from npgxd.store.index import IndexEntry, check_op_type, check_stem, parse_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST_NAME: Final = "manifest.json"
MANIFEST_SCHEMA: Final = 1
MAX_MANIFEST_BYTES: Final = 4 * 1024 * 1024
_HEX: Final = frozenset("0123456789abcdef")
_DIGEST_DIGITS: Final = 64


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a kernel."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One index entry of a kernel: the stem of its two files (``<stem>.o``, ``<stem>.json``) and its facts."""

    stem: str
    facts: IndexEntry


@dataclass(frozen=True, slots=True)
class Origin:
    """What a kernel was compiled from: all of it is in its key, by digest."""

    key: str
    op_type: str
    record: str
    """The canonical record, as JSON text."""
    record_digest: str
    fingerprint: str
    soc: str
    family: str
    cann_version: str
    options: tuple[tuple[str, str], ...] = ()
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Making:
    """How a kernel was made; no part of its id."""

    package: str
    """sha256 of the run package that it came out of."""
    cost_s: float
    made_at: float
    """Seconds since the epoch, for people."""
    package_name: str = ""
    """The vendor's file name of the run package."""
    sequence: int = 0
    """Of two kernels for one key, the one published later has the higher number, whatever the clock says."""
    trusted: bool = False
    """Not compiled here: taken from a run package that an administrator trusted."""


@dataclass(frozen=True)  # no slots: what is computed from it is kept in it
class KernelManifest:
    """A stored kernel."""

    origin: Origin
    members: tuple[Member, ...]
    entries: tuple[ManifestEntry, ...]
    making: Making

    @cached_property
    def id(self) -> str:
        """sha256 over origin, members and entries."""
        text = json.dumps(_core(self), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def key(self) -> str:
        """The kernel key that it answers."""
        return self.origin.key

    @property
    def package(self) -> str:
        """The digest of its run package."""
        return self.making.package

    @cached_property
    def simplified_keys(self) -> tuple[str, ...]:
        """All names by which the runtime may find it."""
        return tuple(name for entry in self.entries for name in entry.facts.simplified_keys)

    @property
    def size(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members)

    def to_json(self) -> bytes:
        """The manifest file."""
        making = {
            "package": self.making.package,
            "cost_s": self.making.cost_s,
            "made_at": self.making.made_at,
            "package_name": self.making.package_name,
            "sequence": self.making.sequence,
            "trusted": self.making.trusted,
        }
        whole = {**_core(self), "making": making, "schema": MANIFEST_SCHEMA}
        # A line for each part: Python's own encoder, which indents all of it, takes ten times as long.
        lines = (f'"{name}": {json.dumps(part, sort_keys=True, ensure_ascii=False)}' for name, part in sorted(whole.items()))
        return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()


def _core(manifest: KernelManifest) -> dict[str, Any]:
    origin = manifest.origin
    return {
        "origin": {
            "key": origin.key,
            "op_type": origin.op_type,
            "record": origin.record,
            "record_digest": origin.record_digest,
            "fingerprint": origin.fingerprint,
            "soc": origin.soc,
            "family": origin.family,
            "cann_version": origin.cann_version,
            "options": [list(pair) for pair in origin.options],
            "flags": origin.flags,
        },
        "members": [{"name": m.name, "sha256": m.sha256, "size": m.size} for m in manifest.members],
        "entries": [entry.facts.to_json(f"{entry.stem}.o") for entry in manifest.entries],
    }


def parse_manifest(raw: bytes) -> KernelManifest:
    """Read a manifest file; StoreError says what is wrong with it."""
    try:
        return _parse(json.loads(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise StoreError(f"not a kernel manifest: {type(error).__name__}: {error}") from None


def _parse(whole: Mapping[str, Any]) -> KernelManifest:
    if whole["schema"] != MANIFEST_SCHEMA:
        raise StoreError(f"a kernel manifest of schema {whole['schema']!r}; this npgxd reads {MANIFEST_SCHEMA}")
    origin, making = whole["origin"], whole["making"]
    manifest = KernelManifest(
        origin=Origin(
            key=_digest(origin["key"]),
            op_type=check_op_type(origin["op_type"]),
            record=_text(origin["record"]),
            record_digest=_digest(origin["record_digest"]),
            fingerprint=_digest(origin["fingerprint"]),
            soc=_text(origin["soc"]),
            family=check_stem(origin["family"]),
            cann_version=_text(origin["cann_version"]),
            options=tuple((_text(name), _text(value)) for name, value in origin["options"]),
            flags=_text(origin["flags"]),
        ),
        members=tuple(Member(_text(m["name"]), _digest(m["sha256"]), _size(m["size"])) for m in whole["members"]),
        entries=tuple(
            ManifestEntry(check_stem(_text(e["binPath"]).removesuffix(".o")), parse_entry("a manifest", e))
            for e in whole["entries"]
        ),
        making=Making(
            package=_digest(making["package"]),
            cost_s=_seconds(making["cost_s"]),
            made_at=_seconds(making["made_at"]),
            package_name=_text(making["package_name"]),
            sequence=_size(making["sequence"]),
            trusted=making.get("trusted") is True,
        ),
    )
    wanted = sorted(f"{entry.stem}{suffix}" for entry in manifest.entries for suffix in (".o", ".json"))
    if not wanted or sorted(member.name for member in manifest.members) != wanted:
        raise StoreError("a kernel manifest whose members are not its entries' files")
    return manifest


def _digest(value: object) -> str:
    if not isinstance(value, str) or len(value) != _DIGEST_DIGITS or not _HEX.issuperset(value):
        raise ValueError(f"{value!r} is not a sha256")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    value.encode()  # JSON can spell half a surrogate pair, which is no text: UnicodeEncodeError, a ValueError
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
