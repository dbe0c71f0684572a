"""The total index of a shared root, kept byte for byte where it is not ours.

The vendor's installer and others write this file, too, with fields and spellings that this version need not know.  So it is taken
apart only as far as its entries, each of which stays the text that it was; what is ours is told by where its kernel lies.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import StoreError
from npgxd.store.index import IndexEntry, parse_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

OURS: Final = re.compile(r"npgxd_([0-9a-f]{16})")
"""The directories in ``ai_core/`` that are this project's: one for each kernel, named by the first digits of its id."""
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_LIST: Final = "staticList"


@dataclass(frozen=True, slots=True)
class TotalEntry:
    """One entry as it stands in the index. ``facts`` is None where this version cannot read them; ``keys`` may be empty then."""

    op_type: str
    raw: str
    keys: tuple[str, ...]
    bin_path: str
    facts: IndexEntry | None

    @property
    def ours(self) -> str:
        """The first digits of the id of our kernel that it names; "" for everybody else's."""
        first, _, rest = self.bin_path.partition("/")
        found = OURS.fullmatch(first)
        return found[1] if found and rest else ""

    @property
    def identity(self) -> tuple[str, str]:
        """What is equal for equal entries, however they are spelled."""
        return self.op_type, canonical(self.raw)


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of the index: an op type with its entries, or something that this version does not know (``entries`` None)."""

    name: str
    raw: str
    other: tuple[str, ...] = ()
    """Members of the op type's object beside the list, as text."""
    entries: tuple[TotalEntry, ...] | None = None


@dataclass(frozen=True, slots=True)
class TotalIndex:
    """A total index, taken apart."""

    members: tuple[_Member, ...] = ()

    @classmethod
    def parse(cls, raw: bytes) -> TotalIndex:
        """Take ``raw`` apart; StoreError if it is not one whole JSON object (somebody may be writing it just now)."""
        try:
            text = raw.decode()
            at = _skip(text, 0)
            if text[at : at + 1] != "{":
                raise ValueError("it is not a JSON object")
            found, end = _members(text, at)
            if _skip(text, end) != len(text):
                raise ValueError("there is something behind the JSON object")
            return cls(tuple(_member(name, text[start:stop]) for name, start, stop in found))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"the total index cannot be read: {error}") from None

    def entries(self) -> Iterator[TotalEntry]:
        """Every entry, in order."""
        for member in self.members:
            yield from member.entries or ()

    def ours(self) -> dict[str, list[TotalEntry]]:
        """Our entries, by the first digits of their kernels' ids."""
        found: dict[str, list[TotalEntry]] = {}
        for entry in self.entries():
            if entry.ours:
                found.setdefault(entry.ours, []).append(entry)
        return found

    def others(self) -> dict[tuple[str, str], TotalEntry]:
        """(op type, simplified key) -> the entry of another installer that has it; of two, the later one."""
        return {(entry.op_type, key): entry for entry in self.entries() if not entry.ours for key in entry.keys}

    def with_changes(self, base: TotalIndex, written: TotalIndex) -> TotalIndex:
        """This index after what somebody did who made ``written`` out of ``base``: their new entries in, those they removed out.

        As with the vendor's installer, a new entry takes the place of another installer's with one of its keys. Ours stay.
        """
        before = {entry.identity for entry in base.entries() if not entry.ours}
        after = {entry.identity: entry for entry in written.entries() if not entry.ours}
        added = [entry for identity, entry in after.items() if identity not in before]
        taken = {(entry.op_type, key) for entry in added for key in entry.keys}
        gone = before - after.keys()

        def stays(entry: TotalEntry) -> bool:
            return bool(entry.ours) or not (
                entry.identity in gone
                or entry.identity in after.keys() - before
                or any((entry.op_type, k) in taken for k in entry.keys)
            )

        left: dict[str, list[TotalEntry]] = {}
        for entry in added:
            left.setdefault(entry.op_type, []).append(entry)
        members = [
            m if m.entries is None else replace(m, entries=(*filter(stays, m.entries), *left.pop(m.name, ())))
            for m in self.members
        ]
        members += [_Member(op_type, "", entries=tuple(entries)) for op_type, entries in left.items()]
        return TotalIndex(tuple(members))

    def text(self) -> bytes:
        """The index as it is, ours included."""
        ours: dict[str, list[str]] = {}
        for entry in self.entries():
            if entry.ours:
                ours.setdefault(entry.op_type, []).append(entry.raw)
        return self.with_ours(ours)

    def with_ours(self, ours: Mapping[str, Sequence[str]]) -> bytes:
        """The index with everybody else's members and entries as they are, and exactly ``ours`` (op type -> entries as text)."""
        left = {op_type: list(entries) for op_type, entries in ours.items() if entries}
        parts: list[str] = []
        for member in self.members:
            if member.entries is None:
                parts.append(f"{json.dumps(member.name)}: {member.raw}")
                continue
            kept = [entry.raw for entry in member.entries if not entry.ours] + left.pop(member.name, [])
            if kept or member.other or not member.entries:
                parts.append(f"{json.dumps(member.name)}: {_listed(kept, member.other)}")
        parts += [f"{json.dumps(op_type)}: {_listed(entries)}" for op_type, entries in sorted(left.items())]
        return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def entry_text(facts: IndexEntry, bin_path: str) -> str:
    """Our entry as it is written: equal facts give equal text."""
    return json.dumps(facts.to_json(bin_path), sort_keys=True, ensure_ascii=False)


def canonical(raw: str) -> str:
    """An entry's text in a form that does not depend on who wrote it."""
    return json.dumps(json.loads(raw), sort_keys=True, ensure_ascii=False)


def _listed(entries: Iterable[str], other: Sequence[str] = ()) -> str:
    listed = ",\n  ".join(entries)
    return "{" + ", ".join([*other, f'"{_LIST}": [' + (f"\n  {listed}\n ]" if listed else "]")]) + "}"


def _member(name: str, raw: str) -> _Member:
    """One member; what is not an object with a ``staticList`` stays the text that it is."""
    if not raw.startswith("{"):
        return _Member(name, raw)
    inner, _ = _members(raw, 0)
    places = {inside: (start, stop) for inside, start, stop in inner}
    if _LIST not in places or raw[places[_LIST][0]] != "[":
        return _Member(name, raw)
    listed = raw[slice(*places.pop(_LIST))]
    other = tuple(f"{json.dumps(inside)}: {raw[start:stop]}" for inside, (start, stop) in places.items())
    return _Member(name, raw, other, tuple(_entry(name, listed[start:stop]) for start, stop in _items(listed)))


def _entry(op_type: str, raw: str) -> TotalEntry:
    value: Any = json.loads(raw)
    keys: tuple[str, ...] = ()
    bin_path = ""
    facts: IndexEntry | None = None
    if isinstance(value, dict):
        named = value.get("simplifiedKey")
        listed = [named] if isinstance(named, str) else named
        if isinstance(listed, list) and all(isinstance(key, str) for key in listed):
            keys = tuple(listed)
        if isinstance(value.get("binPath"), str):
            bin_path = value["binPath"]
        try:
            facts = parse_entry(op_type, value)
        except StoreError:
            facts = None  # of a form that this version does not know: kept, and never taken for equal to ours
    return TotalEntry(op_type, raw, keys, bin_path, facts)


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _members(text: str, at: int) -> tuple[list[tuple[str, int, int]], int]:
    """The members of the object that begins at ``at``: name, and where the value's text is; and where the object ends."""
    found: dict[str, tuple[int, int]] = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return [], at + 1
    while True:
        if text[at : at + 1] != '"':
            raise ValueError(f"no name at character {at}")
        name, at = scanstring(text, at + 1)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"no ':' at character {at}")
        if name in found:
            raise ValueError(f"{name[:80]!r} occurs twice in one object")
        start = _skip(text, at + 1)
        _, stop = _DECODER.raw_decode(text, start)
        found[name] = (start, stop)
        at = _skip(text, stop)
        if text[at : at + 1] == "}":
            return [(name, *place) for name, place in found.items()], at + 1
        if text[at : at + 1] != ",":
            raise ValueError(f"no ',' at character {at}")
        at = _skip(text, at + 1)


def _items(text: str) -> Iterator[tuple[int, int]]:
    """Where the items of the array ``text`` are."""
    at = _skip(text, 1)
    while text[at : at + 1] != "]":
        _, stop = _DECODER.raw_decode(text, at)
        yield at, stop
        at = _skip(text, stop)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
