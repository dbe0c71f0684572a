"""Submissions that come in several parts: put together in order, within bounds, and forgotten with their session."""

from __future__ import annotations

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


class TooMuch(ProtocolError):
    """A submission over a limit; refused whole, and nothing of it is kept."""

    code = "TOO_LARGE"


@dataclass(slots=True)
class _Upload:
    parts: int
    records: list[Record] = field(default_factory=list)
    taken: int = 0
    size: int = 0


class Uploads:
    """Unfinished submissions by (session, round)."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Upload] = {}

    def take(self, session: str, submit: Submit, frames: tuple[bytes, ...]) -> list[Record] | None:
        """Take one part; the records of the whole submission after the last, None before."""
        name = (session, submit.round)
        if submit.part == 0:
            self._open.pop(name, None)  # begun again: what came before is not continued
            if sum(owner == session for owner, _ in self._open) >= MAX_OPEN_PER_SESSION:
                raise TooMuch(f"{MAX_OPEN_PER_SESSION} submissions are open", hint="finish one first")
            self._open[name] = _Upload(submit.parts)
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
        if sum(other.size for other in self._open.values()) > MAX_OPEN_BYTES:
            raise TooMuch("too many unfinished submissions on this node", hint="try again in a moment")
        upload.records.extend(unpack_records(frames))
        if len(upload.records) > limits.MAX_ROUND_RECORDS:
            raise TooMuch(f"a round of more than {limits.MAX_ROUND_RECORDS} records", hint="submit fewer records at once")

    def forget(self, session: str) -> None:
        """Drop what a session left unfinished."""
        for name in [name for name in self._open if name[0] == session]:
            del self._open[name]
