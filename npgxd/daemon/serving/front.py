"""The sockets of ranks, and the thread that answers look-ups of what is at hand while the loop is at something else.

Promise: whatever the loop is doing, also where it waits for the disk, such a look-up is answered at once, connections that flood are met, and
what comes for the loop waits in turns (``turns``), bounded for each user.  The loop answers all the rest, and is told, in the order in which
things happened, which connections have closed.

The sockets are used by both threads, by one at a time (with the lock, a full memory barrier, as zmq_socket(7) asks for).  Who has used
them looks at what they have before he lets go of them, since their descriptors tell only once (zmq_getsockopt(3), ZMQ_FD).

Everything that waits at the socket is read before anything of it is answered, since libzmq would give out one message of each connection
in turn: whoever has two hundred of them would be heard two hundred times as often.  What comes meanwhile is read after each answer.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import struct
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq

from npgxd.daemon.bell import Bell
from npgxd.daemon.refusals import refusal_of
from npgxd.daemon.serving.memory_guard import MemoryGuard
from npgxd.daemon.serving.turns import WAITING_BYTES, Room, Turns
from npgxd.errors import ProtocolError
from npgxd.wire.codec import encode
from npgxd.wire.credentials import peer_of
from npgxd.wire.messages import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npgxd.daemon.caching.at_hand import AtHand
    from npgxd.daemon.serving.connections import Connections
    from npgxd.daemon.serving.listening import Doors
    from npgxd.daemon.sessions import Sessions
    from npgxd.wire.credentials import PeerCredentials

log = logging.getLogger(__name__)

READ_AHEAD: Final = 256
"""Messages that are read at once, of which most may be those of one user who sends as fast as he can."""
READ_BETWEEN: Final = 16
"""The same between two answers."""
SERVE_S: Final = 0.002
"""For so long look-ups are answered before everything else is looked at again."""
SWITCH_S: Final = 0.00005
"""For so long the interpreter lets the loop compute before this thread has its turn (``sys.setswitchinterval``)."""
YIELD_S: Final = 0.00002
"""The loop waits for the lock: it has it after one or two of these."""
FAULT_S: Final = 1.0
"""After a fault of ours, so long until it goes on."""
DEAF_S: Final = 60.0
"""Between two lines of the log about processes that do not read, or send more than is taken."""
# As plain numbers: the enumerations cost more than the calls that they are given to.
_EVENTS: Final = int(zmq.EVENTS)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_READABLE: Final = int(zmq.POLLIN)
_NO_WAIT: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_HEADER_ONLY: Final = 2
"""Parts of a message without payload: who sent it, and the header."""
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


class Closed(NamedTuple):
    """The connection with this descriptor has closed."""

    connection: int


class Unreachable(NamedTuple):
    """There is no connection of this identity any more."""

    identity: bytes


class Given(NamedTuple):
    """What was at hand was given out, which is to be counted."""


Notice = Closed | Unreachable | Given


class Front:
    """The socket of ranks and its monitor. ``clock`` gives monotonic seconds.

    What is public is the loop's; it polls ``fileno`` and then calls ``hush``.
    """

    def __init__(
        self,
        doors: Doors,
        connections: Connections,
        sessions: Sessions,
        at_hand: AtHand,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._router, self._events = doors.ranks, doors.events
        self._connections = connections
        self._guard = MemoryGuard(connections)
        self._sessions = sessions
        self._at_hand = at_hand
        self._clock = clock
        self._loop, self._own = Bell(), Bell()
        self._lock = threading.Lock()
        """For the sockets, the connections and what waits."""
        self._wanted = False
        """Whether the loop waits for the lock."""
        self._turns: Turns[Came] = Turns()
        """What the loop is to answer."""
        self._quick: Turns[Came] = Turns()
        """What may be at hand."""
        self._more = False
        """Whether the socket was left with something to read."""
        self._notices: deque[Notice] = deque()
        self._next_deaf = -math.inf
        self._next_loud = -math.inf
        self._ending = False
        self._asked = self._lived = 0
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)

    # ---- for the loop ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread."""
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def end(self) -> None:
        """End it; from now on the sockets are the caller's."""
        self._ending = True
        self._own.ring()
        if self._thread.is_alive():
            self._thread.join()
        self._loop.close()
        self._own.close()

    def fileno(self) -> int:
        """What to poll for reading: there are notices, or messages to take."""
        return self._loop.fileno()

    def hush(self) -> None:
        """It was polled."""
        self._loop.hush()

    @property
    def waiting(self) -> bool:
        """Whether messages wait for the loop."""
        return bool(self._turns)

    def take(self) -> Came | None:
        """The message whose turn it is; None if none waits. Say ``spent`` when it was answered."""
        with self._for_the_loop():
            return self._turns.take()

    def spent(self, seconds: float) -> None:
        """What answering the message that was taken last has cost."""
        with self._for_the_loop():
            self._turns.spent(seconds)

    def notice(self) -> Notice | None:
        """What has happened next."""
        return self._notices.popleft() if self._notices else None

    def send(self, identity: bytes, parts: list[bytes]) -> bool:
        """Send a message: dropped where its reader does not read. False if he is gone."""
        with self._for_the_loop():
            reached = self._send(identity, parts)
            self._look(READ_BETWEEN)
        if self._more or self._quick:
            self._own.ring()
        return reached

    def lives(self) -> bool:
        """Whether the thread has done something since this was asked before."""
        lives, self._asked = self._lived == self._asked, self._asked + 1
        self._own.ring()
        return lives

    @contextlib.contextmanager
    def _for_the_loop(self) -> Iterator[None]:
        self._wanted = True
        with self._lock:
            self._wanted = False
            yield

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = select.poll()
        for source in (self._own.fileno(), self._events.fileno(), self._router.fileno()):
            poller.register(source, select.POLLIN)
        due = -math.inf
        while not self._ending:
            try:
                ready = poller.poll(0 if self._more or self._quick else _milliseconds(due - self._clock()))
                if (self._own.fileno(), select.POLLIN) in ready:
                    self._own.hush()
                due = self._step()
            except Exception:  # no fault of ours may leave the node without this thread
                log.exception("internal error at the ranks' socket")
                time.sleep(FAULT_S)

    def _step(self) -> float:
        """Do what is to be done; when to look again."""
        asked = self._asked
        with self._beside_the_loop():
            self._look(READ_BETWEEN if self._turns else READ_AHEAD)
        self._serve()
        self._lived = asked
        now = self._clock()
        with self._beside_the_loop():
            silent = self._connections.tick(now, lambda descriptor: self._sessions.by_connection(descriptor) is not None)
            return min(silent, self._guard.tick(now))

    @contextlib.contextmanager
    def _beside_the_loop(self) -> Iterator[None]:
        while self._wanted:  # a lock goes to whoever is faster, and this thread would always be
            time.sleep(YIELD_S)
        with self._lock:
            yield
        if self._turns or self._notices:
            self._loop.ring()

    def _serve(self) -> None:
        """Answer what is at hand, for a while; what turns out not to be is the loop's."""
        began = now = self._clock()
        while self._quick and now - began < SERVE_S:
            with self._beside_the_loop():
                came = self._quick.take()
            if came is None:
                return
            answer = self._at_hand.answer(came.identity, came.peer, came.message)
            before, now = now, self._clock()
            with self._beside_the_loop():
                self._quick.spent(now - before)
                if answer is None:
                    self._put(self._turns, came)
                elif not self._send(came.identity, answer):
                    self._notices.append(Unreachable(came.identity))
                if self._at_hand.uncounted == 1:
                    self._notices.append(Given())
                self._look(READ_BETWEEN)

    # ---- reading, with the lock --------------------------------------------------------------------------------------

    def _look(self, most: int) -> None:
        """Take what lies at the socket, up to ``most`` messages, and what connections came and went."""
        self._take_events()
        for _ in range(most):
            if not _readable(self._router):  # cheaper than an exception after each burst
                self._more = False
                return
            self._receive()
        self._more = _readable(self._router)

    def _receive(self) -> None:
        try:
            parts = self._router.recv_multipart(_NO_WAIT, copy=False)
        except zmq.Again:
            return
        identity = parts[0].bytes
        try:
            peer = peer_of(parts[-1])
        except ProtocolError as error:
            log.warning("refused a message: %s", error)
            self._send(identity, encode(refusal_of(error), 0))
            return
        self._take_events()  # of the connection that had this one's descriptor before
        came = Came(identity, peer, _descriptor(parts[-1]), parts)
        if self._connections.heard(came.connection, peer):
            self._keep(came)

    def _keep(self, came: Came) -> None:
        """Put a message where it is to wait; what a connection says is answered in its order."""
        uid, identity = came.peer.uid, came.identity
        quick = self._quick.waits(uid, identity)
        if not quick and len(came.parts) == _HEADER_ONLY and not self._turns.waits(uid, identity):
            quick = self._at_hand.may_answer(came.parts[1].bytes)
        self._put(self._quick if quick else self._turns, came)

    def _put(self, turns: Turns[Came], came: Came) -> None:
        size = sum(map(len, came.parts))
        room = turns.put(came.peer.uid, came.identity, size, came, sender=came.sender)
        if room is Room.TAKEN:
            return
        if room is Room.FLOOD:
            self._connections.cut_off(came.connection, came.peer)
            turns.discard(came.peer.uid, came.sender)
            return
        now = self._clock()
        if now >= self._next_loud:
            self._next_loud = now + DEAF_S
            log.warning("pid %d of uid %d sends more than is answered; it is dropped", came.peer.pid, came.peer.uid)
        if room is Room.REFUSED:
            why = f"{WAITING_BYTES // 2**20} MiB of this user's messages wait already: this one was dropped"
            self._send(came.identity, encode(Refusal("LIMIT", why, "wait for the answer to a request before the next"), 0))

    def _take_events(self) -> None:
        """Note what connections came and went, and tell the loop of the latter."""
        came: set[int] = set()
        while _readable(self._events):  # asked before each message, so cheaply
            event, descriptor = _EVENT.unpack(self._events.recv_multipart()[0])
            if event == _ACCEPTED:
                came.add(descriptor)
            else:
                came.discard(descriptor)  # one that goes as soon as it comes is nobody's
                self._connections.closed(descriptor)
                self._notices.append(Closed(descriptor))
        for descriptor in came:
            self._connections.accepted(descriptor)

    # ---- sending, with the lock --------------------------------------------------------------------------------------

    def _send(self, identity: bytes, parts: list[bytes]) -> bool:
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


def _milliseconds(seconds: float) -> int | None:
    return None if seconds == math.inf else math.ceil(max(0.0, seconds) * 1000)


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.get(_EVENTS)) & _READABLE)


def _descriptor(frame: zmq.Frame) -> int:
    """The descriptor of the connection that a frame came through, as libzmq tells it; -1 if it does not."""
    try:
        return int(frame.get("__fd"))
    except (zmq.ZMQError, ValueError, TypeError):
        return -1
