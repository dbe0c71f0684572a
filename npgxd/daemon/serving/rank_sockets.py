"""The sockets of ranks as they lie there: messages with who sent them, connections that came and went, and sending.

Promise: by the time that a message is given out it is known which connections closed before it came, also where its descriptor was one of
theirs.  Two threads use these sockets, one at a time: with a lock of theirs, a full memory barrier, as zmq_socket(7) asks for.
"""

from __future__ import annotations

import logging
import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq

from npgxd.daemon.refusals import refusal_of
from npgxd.errors import ProtocolError
from npgxd.wire.codec import encode
from npgxd.wire.credentials import peer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.serving.connections import Connections
    from npgxd.daemon.serving.listening import Doors
    from npgxd.daemon.sessions import Sessions
    from npgxd.wire.credentials import PeerCredentials

log = logging.getLogger(__name__)

DEAF_S: Final = 60.0
"""Between two lines of the log about processes that do not read."""
# As plain numbers: the enumerations cost more than the calls that they are given to.
_EVENTS: Final = int(zmq.EVENTS)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_READABLE: Final = int(zmq.POLLIN)
_NO_WAIT: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENT: Final = struct.Struct("=HI")
"""The first frame of zmq_socket_monitor(3): what happened, and the descriptor."""


class Came(NamedTuple):
    """A message that waits for its turn. ``connection``: the descriptor that it came through, which is libzmq's."""

    identity: bytes
    peer: PeerCredentials
    connection: int
    parts: list[zmq.Frame]

    @property
    def sender(self) -> int | bytes:
        """The process, or, where it is not visible here, the connection."""
        return self.peer.pid or self.identity

    @property
    def message(self) -> list[bytes]:
        """Its header and payload frames."""
        return [part.bytes for part in self.parts[1:]]


class RankSockets:
    """``closed`` is told the descriptor of each connection that has closed; ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        doors: Doors,
        connections: Connections,
        sessions: Sessions,
        closed: Callable[[int], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._router, self._events = doors.ranks, doors.events
        self._connections = connections
        self._sessions = sessions
        self._closed = closed
        self._clock = clock
        self._next_deaf = -math.inf

    @property
    def filenos(self) -> tuple[int, int]:
        """What tells, once, that there is something to look at (zmq_getsockopt(3), ZMQ_FD): whoever uses the sockets is to look himself."""
        return self._events.fileno(), self._router.fileno()

    @property
    def readable(self) -> bool:
        """Whether a message lies there."""
        return _readable(self._router)  # cheaper than an exception after each burst

    def receive(self) -> Came | None:
        """The next message that counts; None if this one does not."""
        try:
            parts = self._router.recv_multipart(_NO_WAIT, copy=False)
        except zmq.Again:
            return None
        identity = parts[0].bytes
        try:
            peer = peer_of(parts[-1])
        except ProtocolError as error:
            log.warning("refused a message: %s", error)
            self.send(identity, encode(refusal_of(error), 0))
            return None
        self.take_events()  # of the connection that had this one's descriptor before
        came = Came(identity, peer, _descriptor(parts[-1]), parts)
        return came if self._connections.heard(came.connection, peer) else None

    def take_events(self) -> None:
        """Note what connections came and went, and tell of the latter."""
        came: set[int] = set()
        while _readable(self._events):  # asked before each message, so cheaply
            event, descriptor = _EVENT.unpack(self._events.recv_multipart()[0])
            if event == _ACCEPTED:
                came.add(descriptor)
            else:
                came.discard(descriptor)  # one that goes as soon as it comes is nobody's
                self._connections.closed(descriptor)
                self._closed(descriptor)
        for descriptor in came:
            self._connections.accepted(descriptor)

    def send(self, identity: bytes, parts: list[bytes]) -> bool:
        """Send a message: dropped where its reader does not read. False if he is gone."""
        try:
            self._router.send(identity, _MORE)
            for part in parts[:-1]:
                self._router.send(part, _MORE)
            self._router.send(parts[-1], _NO_WAIT)
        except zmq.Again:
            self._tell_deaf(identity)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _tell_deaf(self, identity: bytes) -> None:
        now = self._clock()
        if now >= self._next_deaf:  # each of them would fill the log
            self._next_deaf = now + DEAF_S
            session = self._sessions.by_identity(identity)
            pid = "?" if session is None else session.peer.pid
            log.warning("pid %s does not read its messages (is it stopped?); they are dropped", pid)


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.get(_EVENTS)) & _READABLE)


def _descriptor(frame: zmq.Frame) -> int:
    """The descriptor of the connection that a frame came through, as libzmq tells it; -1 if it does not."""
    try:
        return int(frame.get("__fd"))
    except (zmq.ZMQError, ValueError, TypeError):
        return -1
