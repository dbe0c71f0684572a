"""Compile-cache entries on their way in: parts in order, written down as they come, digest and size right at the end, or nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.daemon.demand.uploads import TooMuch
from npgxd.errors import ProtocolError
from npgxd.wire.limits import ARTIFACT_PART_BYTES, MAX_ARTIFACT_BYTES

if TYPE_CHECKING:
    from npgxd.daemon.sessions import Session
    from npgxd.store.artifacts import ArtifactStore, StagedArtifact
    from npgxd.wire.artifact_messages import Publish

MAX_OPEN_PER_SESSION: Final = 2
MAX_OPEN_PER_UID: Final = 16
MAX_OPEN_BYTES_PER_UID: Final = 2 * MAX_ARTIFACT_BYTES
"""What one user's unfinished entries may take of the disk, as announced."""
AGAIN: Final = "send the entry again from part 0"


@dataclass(slots=True)
class _Open:
    uid: int
    digest: str
    size: int
    staged: StagedArtifact


class Publications:
    """Unfinished publications by (session, key)."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._open: dict[tuple[str, str], _Open] = {}

    def take(self, session: Session, publish: Publish, frames: tuple[bytes, ...]) -> StagedArtifact | None:
        """Take one part; what was staged after the last, None before.

        ProtocolError where it is not the next part of what was announced, or not its bytes; then nothing of the entry is kept.
        """
        name = (session.id, publish.key)
        if publish.part == 0:
            self.drop(session, publish.key)  # begun again: what came before is not continued
            self._check_room(session, publish.size)
            self._open[name] = _Open(session.peer.uid, publish.digest, publish.size, self._store.stage())
        known = self._open.get(name)
        try:
            if known is None or (known.digest, known.size) != (publish.digest, publish.size):
                raise ProtocolError("this part belongs to no entry that was begun", hint=AGAIN)
            whole = self._add(known, publish.part, frames)
        except BaseException:
            self.drop(session, publish.key)
            raise
        if not whole:
            return None
        del self._open[name]
        return known.staged

    def drop(self, session: Session, key: str) -> None:
        """Nothing of this entry is kept, if any of it was."""
        known = self._open.pop((session.id, key), None)
        if known is not None:
            self._store.discard(known.staged)

    def forget(self, session: Session) -> None:
        """Drop what a session left unfinished."""
        for owner, key in list(self._open):
            if owner == session.id:
                self.drop(session, key)

    def _check_room(self, session: Session, size: int) -> None:
        if sum(owner == session.id for owner, _ in self._open) >= MAX_OPEN_PER_SESSION:
            raise TooMuch(f"{MAX_OPEN_PER_SESSION} entries are being published by this process", hint="finish one first")
        if sum(known.uid == session.peer.uid for known in self._open.values()) >= MAX_OPEN_PER_UID:
            raise TooMuch(f"{MAX_OPEN_PER_UID} entries are being published by this user", hint="finish some of them first")
        if size + sum(known.size for known in self._open.values() if known.uid == session.peer.uid) > MAX_OPEN_BYTES_PER_UID:
            raise TooMuch("too many bytes are being published by this user", hint="finish some entries first")

    def _add(self, known: _Open, part: int, frames: tuple[bytes, ...]) -> bool:
        """Write a part down; whether it was the last."""
        staged = known.staged
        if part != len(staged.parts):
            raise ProtocolError(f"part {part} is out of order: {len(staged.parts)} is next", hint=AGAIN)
        wanted = min(ARTIFACT_PART_BYTES, known.size - staged.size)
        if len(frames) != 1 or len(frames[0]) != wanted:
            told = f"{sum(map(len, frames))} bytes in {len(frames)} frames"
            raise ProtocolError(f"part {part} of an entry of {known.size} bytes has {wanted} bytes, not {told}", hint=AGAIN)
        self._store.extend(staged, frames[0])
        if staged.size < known.size:
            return False
        if staged.whole.hexdigest() != known.digest:
            raise ProtocolError("the bytes that came are not those of the digest that was announced", hint=AGAIN)
        return True
