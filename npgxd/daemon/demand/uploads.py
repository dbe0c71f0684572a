"""Submissions that come in several parts: put together in order, within bounds, and forgotten with their session."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npgxd.errors import ProtocolError
from npgxd.wire import limits
from npgxd.wire.codec import Record, unpack_records

if TYPE_CHECKING:
    from npgxd.wire.messages import Submit

MAX_OPEN_PER_SESSION = 4
MAX_OPEN_BYTES = 256 * 1024 * 1024
"""All unfinished submissions together."""
MAX_OPEN_BYTES_PER_UID = 128 * 1024 * 1024
"""Those of one user."""


class TooMuch(ProtocolError):
    """A submission over a limit; refused whole, and nothing of it is kept."""

    code = "TOO_LARGE"


@dataclass(slots=True)
class _Upload:
    parts: int
    uid: int = 0
    records: list[Record] = field(default_factory=list)
    taken: int = 0
    size: int = 0


class Uploads:
    """Unfinished submissions by (session, round)."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Upload] = {}

    def take(self, session: str, submit: Submit, frames: tuple[bytes, ...], *, uid: int = 0) -> list[Record] | None:
        """Take one part; the records of the whole submission after the last, None before."""
        name = (session, submit.round)
        if submit.part == 0:
            self._open.pop(name, None)  # begun again: what came before is not continued
            if sum(owner == session for owner, _ in self._open) >= MAX_OPEN_PER_SESSION:
                raise TooMuch(f"{MAX_OPEN_PER_SESSION} submissions are open", hint="finish one first")
            self._open[name] = _Upload(submit.parts, uid)
        upload = self._open.get(name)
        if upload is None or submit.parts != upload.parts or submit.part != upload.taken:
            self._open.pop(name, None)
            raise ProtocolError(f"part {submit.part} of {submit.parts} is out of order", hint="send the round again from part 0")
        try:
            self._add(upload, frames)
        except ProtocolError:
            del self._open[name]
            raise
        if upload.taken < upload.parts:
            return None
        return self._open.pop(name).records

    def _add(self, upload: _Upload, frames: tuple[bytes, ...]) -> None:
        upload.size += sum(map(len, frames))
        upload.taken += 1
        if upload.size > limits.MAX_ROUND_BYTES:
            raise TooMuch(f"a round of more than {limits.MAX_ROUND_BYTES} bytes", hint="submit fewer records at once")
        if sum(other.size for other in self._open.values() if other.uid == upload.uid) > MAX_OPEN_BYTES_PER_UID:
            raise TooMuch(f"too many unfinished submissions of user {upload.uid}", hint="finish some of them first")
        self._make_room(upload)
        for frame in frames:  # one at a time: a small frame can hold very many records
            upload.records.extend(unpack_records([frame]))
            if len(upload.records) > limits.MAX_ROUND_RECORDS:
                raise TooMuch(f"a round of more than {limits.MAX_ROUND_RECORDS} records", hint="submit fewer records at once")

    def _make_room(self, upload: _Upload) -> None:
        """One user's unfinished submissions keep no other's out: over the common limit the largest user's oldest one is dropped."""
        while sum(other.size for other in self._open.values()) > MAX_OPEN_BYTES:
            users: Counter[int] = Counter()
            for other in self._open.values():
                users[other.uid] += other.size
            largest = users.most_common(1)[0][0]
            name, found = next((name, other) for name, other in self._open.items() if other.uid == largest)
            if found is upload:
                raise TooMuch("too many unfinished submissions on this node", hint="try again in a moment")
            del self._open[name]

    def forget(self, session: str) -> None:
        """Drop what a session left unfinished."""
        for name in [name for name in self._open if name[0] == session]:
            del self._open[name]
