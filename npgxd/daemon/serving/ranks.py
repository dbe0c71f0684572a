"""npgxd.sock: messages of ranks, read ahead and answered in turns, and the connections that they come through.

Everything that waits at the socket is read before anything of it is answered, since libzmq would give out one message of each connection
in turn: whoever has two hundred of them would be heard two hundred times as often.  What comes meanwhile is read after each answer.
"""

from __future__ import annotations

import logging
import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq

from npgxd.daemon.refusals import refusal_of
from npgxd.daemon.serving.memory_guard import MemoryGuard
from npgxd.daemon.serving.turns import WAITING_BYTES, Room, Turns
from npgxd.errors import NpgxError, ProtocolError
from npgxd.wire.artifact_messages import Artifact, ArtifactPart
from npgxd.wire.codec import decode, encode
from npgxd.wire.credentials import peer_of
from npgxd.wire.messages import Refusal
from npgxd.wire.parsing import parse_request
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.serving.connections import Connections
    from npgxd.daemon.serving.handlers import Handlers
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.wire.credentials import PeerCredentials
    from npgxd.wire.form import Message

log = logging.getLogger(__name__)

READ_AHEAD: Final = 256
"""Messages that are read at once, of which most may be those of one user who sends as fast as he can."""
READ_BETWEEN: Final = 16
"""The same between two answers."""
SERVE_S: Final = 0.002
"""For so long messages are answered before the loop looks at everything else again; the last one is not interrupted."""
DEAF_S: Final = 60.0
"""Between two lines of the log about processes that do not read, or send more than is taken."""
# As plain numbers: the enumerations cost more than the calls that they are given to.
_EVENTS: Final = int(zmq.EVENTS)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_READABLE: Final = int(zmq.POLLIN)
_NO_WAIT: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENT: Final = struct.Struct("=HI")
"""The first frame of zmq_socket_monitor(3): what happened, and the descriptor."""


class _Came(NamedTuple):
    """A message that waits for its turn. ``connection``: the descriptor that it came through, which is libzmq's."""

    identity: bytes
    peer: PeerCredentials
    connection: int
    parts: list[zmq.Frame]

    @property
    def sender(self) -> int | bytes:
        """The process, or, where it is not visible here, the connection."""
        return self.peer.pid or self.identity


class RankPort:
    """The socket of ranks. ``end`` ends a session that is gone; ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        router: zmq.Socket[bytes],
        events: zmq.Socket[bytes],
        connections: Connections,
        sessions: Sessions,
        handlers: Handlers,
        end: Callable[[Session, str], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._router = router
        self._events = events
        self._connections = connections
        self._guard = MemoryGuard(connections)
        self._sessions = sessions
        self._handlers = handlers
        self._end = end
        self._clock = clock
        self._turns: Turns[_Came] = Turns()
        self._next_deaf = -math.inf
        self._next_loud = -math.inf
        self._changed = False

    @property
    def waiting(self) -> bool:
        """Whether messages were read that are not answered."""
        return bool(self._turns)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def read(self, most: int = READ_AHEAD) -> None:
        """Take what lies at the socket."""
        for _ in range(most):
            if not _readable(self._router):  # cheaper than an exception after each burst
                return
            try:
                parts = self._router.recv_multipart(_NO_WAIT, copy=False)
            except zmq.Again:
                return
            identity = parts[0].bytes
            try:
                peer = peer_of(parts[-1])
            except ProtocolError as error:
                log.warning("refused a message: %s", error)
                self.send(identity, refusal_of(error))
                continue
            came = _Came(identity, peer, _descriptor(parts[-1]), parts)
            if self._connections.heard(came.connection, peer):
                self._keep(came)

    def _keep(self, came: _Came) -> None:
        size = sum(map(len, came.parts))
        room = self._turns.put(came.peer.uid, came.identity, size, came, sender=came.sender)
        if room is Room.TAKEN:
            return
        if room is Room.FLOOD:
            self._connections.cut_off(came.connection, came.peer)
            self._turns.discard(came.peer.uid, came.sender)
            return
        now = self._clock()
        if now >= self._next_loud:
            self._next_loud = now + DEAF_S
            log.warning("pid %d of uid %d sends more than is answered; it is dropped", came.peer.pid, came.peer.uid)
        if room is Room.REFUSED:
            why = f"{WAITING_BYTES // 2**20} MiB of this user's messages wait already: this one was dropped"
            self.send(came.identity, Refusal("LIMIT", why, "wait for the answer to a request before the next"))

    def take_events(self) -> bool:
        """Note what connections came and went, and end the sessions of the latter; whether any was.

        Their processes may live, and say hello on another one.
        """
        came: set[int] = set()
        ended = False
        while _readable(self._events):  # asked before each message, so cheaply
            event, descriptor = _EVENT.unpack(self._events.recv_multipart()[0])
            if event == _ACCEPTED:
                came.add(descriptor)
            else:
                came.discard(descriptor)  # one that goes as soon as it comes is nobody's
                self._connections.closed(descriptor)
                ended |= self._gone(self._sessions.by_connection(descriptor))
        for descriptor in came:
            self._connections.accepted(descriptor)
        return ended

    def tick(self, now: float) -> float:
        """End connections that say nothing, or do not end what they say; when to look again."""
        silent = self._connections.tick(now, lambda descriptor: self._sessions.by_connection(descriptor) is not None)
        return min(silent, self._guard.tick(now))

    def _gone(self, session: Session | None) -> bool:
        if session is None:
            return False
        self._changed = True
        self._end(session, "disconnected")
        return True

    # ---- answering ---------------------------------------------------------------------------------------------------

    def serve(self) -> bool:
        """Answer what waits, for a while; whether anything may have changed by it. Giving out what is cached changes nothing."""
        self._changed = False
        began = now = self._clock()
        while now - began < SERVE_S and (came := self._turns.take()) is not None:
            self._serve(came, now)
            before, now = now, self._clock()
            self._turns.spent(now - before)
            self.read(READ_BETWEEN)
        return self._changed

    def _serve(self, came: _Came, now: float) -> None:
        identity = came.identity
        self.take_events()  # of the connection that had this one's descriptor before
        try:
            reply, frames, number = self._answer(identity, came.peer, [part.bytes for part in came.parts[1:]], now)
        except ProtocolError as error:
            log.warning("refused a message: %s", error)
            reply, frames, number = refusal_of(error), [], 0
        self.send(identity, reply, number, frames)
        session = self._sessions.by_identity(identity)
        if session is not None and session.connection < 0:  # it was answered, so the descriptor is not another's by now
            self._sessions.on_connection(session, came.connection)
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
        try:
            self._router.send(identity, _MORE)
            for part in parts[:-1]:
                self._router.send(part, _MORE)
            self._router.send(parts[-1], _NO_WAIT)
        except zmq.Again:
            now = self._clock()
            if now >= self._next_deaf:  # each of them would fill the log
                self._next_deaf = now + DEAF_S
                session = self._sessions.by_identity(identity)
                pid = "?" if session is None else session.peer.pid
                log.warning("pid %s does not read its messages (is it stopped?); they are dropped", pid)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._gone(self._sessions.by_identity(identity))


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.get(_EVENTS)) & _READABLE)


def _descriptor(frame: zmq.Frame) -> int:
    """The descriptor of the connection that a frame came through, as libzmq tells it; -1 if it does not."""
    try:
        return int(frame.get("__fd"))
    except (zmq.ZMQError, ValueError, TypeError):
        return -1
