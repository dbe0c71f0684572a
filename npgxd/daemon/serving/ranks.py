"""Messages of ranks, answered by the loop in turns (``front`` reads them)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from npgxd.daemon.refusals import refusal_of
from npgxd.daemon.serving.front import Closed, Given
from npgxd.errors import NpgxError, ProtocolError
from npgxd.wire.artifact_messages import Artifact, ArtifactPart
from npgxd.wire.codec import decode, encode
from npgxd.wire.messages import Refusal
from npgxd.wire.parsing import parse_request
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.serving.front import Front, Notice
    from npgxd.daemon.serving.handlers import Handlers
    from npgxd.daemon.serving.rank_sockets import Came
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.wire.credentials import PeerCredentials
    from npgxd.wire.form import Message

log = logging.getLogger(__name__)

SERVE_S: Final = 0.002
"""For so long messages are answered before the loop looks at everything else again; the last one is not interrupted."""


class RankPort:
    """The loop's end of the front. ``end`` ends a session that is gone; ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        front: Front,
        sessions: Sessions,
        handlers: Handlers,
        end: Callable[[Session, str], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._front = front
        self._sessions = sessions
        self._handlers = handlers
        self._end = end
        self._clock = clock
        self._changed = False

    @property
    def waiting(self) -> bool:
        """Whether messages wait for an answer."""
        return self._front.waiting

    def take_notices(self) -> bool:
        """End the sessions of connections that have gone; whether there is a reason to look at everything.

        Their processes may live, and say hello on another one.
        """
        changed = False
        while (notice := self._front.notice()) is not None:
            changed |= self._note(notice)
        return changed

    def _note(self, notice: Notice) -> bool:
        if isinstance(notice, Given):
            return True
        if isinstance(notice, Closed):
            return self._gone(self._sessions.by_connection(notice.connection))
        return self._gone(self._sessions.by_identity(notice.identity))

    def _gone(self, session: Session | None) -> bool:
        if session is None:
            return False
        self._end(session, "disconnected")
        return True

    def serve(self) -> bool:
        """Answer what waits, for a while; whether anything may have changed by it. Giving out what is cached changes nothing."""
        self._changed = False
        began = now = self._clock()
        while now - began < SERVE_S and (came := self._front.take()) is not None:
            self._serve(came, now)
            before, now = now, self._clock()
            self._front.spent(now - before)
        return self._changed

    def _serve(self, came: Came, now: float) -> None:
        identity = came.identity
        self._changed |= self.take_notices()  # of the connection that had this one's descriptor before
        try:
            reply, frames, number = self._answer(identity, came.peer, came.message, now)
        except ProtocolError as error:
            log.warning("refused a message: %s", error)
            reply, frames, number = refusal_of(error), [], 0
        self.send(identity, reply, number, frames)
        session = self._sessions.by_identity(identity)
        if session is not None and session.connection < 0:  # it was answered, so the descriptor is not another's by now
            self._sessions.on_connection(session, came.connection)
            if self._front.has_closed(came.connection):  # before it had a session, so that nothing tells of it any more
                self._changed |= self._gone(session)
        given = isinstance(reply, Artifact) and reply.state is ArtifactState.HIT
        self._changed |= not (given or isinstance(reply, ArtifactPart))

    def _answer(self, identity: bytes, peer: PeerCredentials, parts: list[bytes], now: float) -> tuple[Message, list[bytes], int]:
        envelope = decode(parts)
        try:
            message = parse_request(envelope)
            reply, frames = self._handlers.handle(identity, peer, message, envelope.frames, now)
        except NpgxError as error:
            log.debug("uid %d pid %d: %s refused: %s", peer.uid, peer.pid, envelope.op, error)
            return refusal_of(error), [], envelope.id
        except Exception:  # one request's fault must not take the node's daemon down; it is logged whole and refused
            log.exception("internal error in %r of uid %d pid %d", envelope.op, peer.uid, peer.pid)
            return Refusal("INTERNAL", "the daemon failed at this request", "its log says more"), [], envelope.id
        return reply, frames, envelope.id

    def send(self, identity: bytes, message: Message, request_id: int = 0, frames: list[bytes] | None = None) -> None:
        """Send a reply, or an event (0): dropped where its reader does not read; where he is gone his session ends."""
        try:
            parts = encode(message, request_id, frames or [])
        except (ProtocolError, UnicodeEncodeError):
            log.exception("a message %r cannot be sent", message.op)
            parts = encode(Refusal("INTERNAL", "the daemon cannot send its answer", "its log says more"), request_id)
        if not self._front.send(identity, parts):
            self._changed |= self._gone(self._sessions.by_identity(identity))
