"""Look-ups that are answered out of memory, in another thread than the loop's: a loop that waits for the disk holds none of them up.

Promise: what is given here is what ``Lookups`` would give, byte for byte, and nothing is changed by it; whatever is not plainly a HIT on an
entry that the loop has read before is left to the loop.  All that is shared is read by single operations on dictionaries of the loop's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.daemon.caching.lookups import hit
from npgxd.errors import NpgxError
from npgxd.store.artifact_file import artifact_id
from npgxd.wire.artifact_messages import ArtifactPart, Fetch, Lookup
from npgxd.wire.codec import decode, encode
from npgxd.wire.parsing import parse_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npgxd.daemon.caching.scopes import Scopes
    from npgxd.daemon.sessions import Sessions
    from npgxd.store.artifacts import ArtifactStore
    from npgxd.wire.credentials import PeerCredentials

_SIGNS: Final = tuple(b"\xa2op%c%s" % (0xA0 + len(op), op.encode()) for op in (Lookup.op, Fetch.op))
"""How msgpack writes these ops into a header. Only a hint: what has it is still decoded and checked."""
_MOST: Final = 1024
"""Headers of look-ups are shorter."""


class AtHand:
    """Entries that the loop has read before, for sessions that it knows."""

    def __init__(self, sessions: Sessions, scopes: Scopes, store: ArtifactStore) -> None:
        self._sessions = sessions
        self._scopes = scopes
        self._store = store

    @property
    def uncounted(self) -> int:
        """How many answers the loop has not counted yet."""
        return len(self._store.rows.glanced)

    def may_answer(self, header: bytes) -> bool:
        """Whether a message with this header, and nothing else, may be one to ``answer``."""
        return len(header) <= _MOST and any(sign in header for sign in _SIGNS)

    def answer(self, identity: bytes, peer: PeerCredentials, parts: Sequence[bytes]) -> list[bytes] | None:
        """The parts of the answer to one message of a connection; None leaves it to the loop, whatever is the matter with it."""
        may = len(parts) == 1 and self.may_answer(parts[0])
        scope, told = self._scope(identity, peer), _decoded(parts) if may else None
        if scope is None or told is None:
            return None
        asked = told.message
        part = asked.part if isinstance(asked, Fetch) else 0
        found = self._store.glance(artifact_id(scope, asked.key), part, used=isinstance(asked, Lookup))
        if found is None:
            return None
        row, data = found
        if isinstance(asked, Lookup):
            return encode(hit(row, asked.ticket), told.id, [data])
        return encode(ArtifactPart(key=asked.key, part=part), told.id, [data]) if asked.digest == row.digest else None

    def _scope(self, identity: bytes, peer: PeerCredentials) -> str | None:
        session = self._sessions.by_identity(identity)
        return None if session is None or session.peer != peer else self._scopes.known(session)


class _Asked(NamedTuple):
    id: int
    message: Lookup | Fetch


def _decoded(parts: Sequence[bytes]) -> _Asked | None:
    try:
        envelope = decode(parts)
        message = parse_request(envelope)
    except NpgxError:  # the loop says what is wrong
        return None
    return _Asked(envelope.id, message) if isinstance(message, Lookup | Fetch) else None
