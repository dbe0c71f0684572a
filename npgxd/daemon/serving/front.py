"""The thread that answers look-ups of what is at hand while the loop is at something else, and what both do with the sockets of ranks.

Promise: whatever the loop is doing, also where it waits for the disk, such a look-up is answered at once, connections that flood are met, and
what comes for the loop waits in turns (``turns``), bounded for each user.  The loop answers all the rest, and is told, in the order in which
things happened, which connections have closed.  What one connection says is answered in its order, whoever answers it.

The sockets (``rank_sockets``) are used by both threads, by one at a time.  Who has used them looks at what they have before he lets go of
them, since their descriptors tell only once, and wakes the other one for what is his.

Everything that waits at the socket is read before anything of it is answered, since libzmq would give out one message of each connection
in turn: whoever has two hundred of them would be heard two hundred times as often.  What comes meanwhile is read after each answer.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.daemon.bell import Bell
from npgxd.daemon.serving.memory_guard import MemoryGuard
from npgxd.daemon.serving.rank_sockets import RankSockets
from npgxd.daemon.serving.turns import WAITING_BYTES, Room, Turns
from npgxd.wire.codec import encode
from npgxd.wire.messages import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npgxd.daemon.caching.at_hand import AtHand
    from npgxd.daemon.serving.connections import Connections
    from npgxd.daemon.serving.listening import Doors
    from npgxd.daemon.serving.rank_sockets import Came
    from npgxd.daemon.sessions import Sessions

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
"""The other thread waits for the lock: it has it after one or two of these."""
MANY: Final = 16
"""So many messages that wait for the loop are a flood, or a crowd that starts: two threads that read are in each other's way then."""
NAP_S: Final = 0.002
"""For so long the thread leaves everything to a loop that many messages wait for, if it answers one of them meanwhile."""
NAPS: Final = 25
"""After so many it does what is due, and shows that it lives."""
FAULT_S: Final = 1.0
"""After a fault of ours, so long until it goes on."""
LOUD_S: Final = 60.0
"""Between two lines of the log about processes that send more than is taken."""
END_S: Final = 10.0
"""How long an end waits for a look-up whose entry the disk does not give."""
_HEADER_ONLY: Final = 2
"""Parts of a message without payload: who sent it, and the header."""


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
        self._connections = connections
        self._sockets = RankSockets(doors, connections, sessions, self._closed, clock=clock)
        self._guard = MemoryGuard(connections)
        self._sessions = sessions
        self._at_hand = at_hand
        self._clock = clock
        self._loop, self._own = Bell(), Bell()
        self._lock = threading.Lock()
        """For the sockets, the connections and what waits."""
        self._wanted = False
        """Whether the loop waits for the lock."""
        self._waits = False
        """Whether the thread does."""
        self._turns: Turns[Came] = Turns()
        """What the loop is to answer."""
        self._quick: Turns[Came] = Turns()
        """What may be at hand."""
        self._naps = False
        """Whether the thread leaves everything to the loop."""
        self._taken = 0
        """How many messages the loop has taken."""
        self._more = False
        """Whether the socket was left with something to read, or by a fault."""
        self._due = -math.inf
        """When the thread is to look at the connections by itself."""
        self._notices: deque[Notice] = deque()
        self._next_loud = -math.inf
        self._ending = False
        self._asked = self._lived = 0
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)

    # ---- for the loop ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread."""
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def end(self, limit_s: float = END_S) -> None:
        """End it; from now on the sockets are the caller's. It does not wait for a disk that does not answer, beyond ``limit_s``."""
        self._ending = True
        self._own.ring()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        if self._thread.is_alive():
            log.warning("the disk did not give an entry of the compile cache within %.0f s", limit_s)
            return
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
            self._taken += 1
            while self._naps and (came := self._quick.take()) is not None:
                self._quick.spent(0.0)
                self._put(self._turns, came)
            return self._turns.take()

    def spent(self, seconds: float) -> None:
        """What answering the message that was taken last has cost."""
        with self._for_the_loop():
            self._turns.spent(seconds)

    def notice(self) -> Notice | None:
        """What has happened next."""
        return self._notices.popleft() if self._notices else None

    def has_closed(self, connection: int) -> bool:
        """Whether the connection that had this descriptor last has closed."""
        return self._connections.has_closed(connection)

    def send(self, identity: bytes, parts: list[bytes]) -> bool:
        """Send a message: dropped where its reader does not read. False if he is gone."""
        try:
            with self._for_the_loop():
                reached = self._sockets.send(identity, parts)
                self._look(READ_BETWEEN)
        finally:  # what was looked at here wakes nobody by itself any more
            if self._notices:
                self._loop.ring()
            if self._more or self._quick or (self._due == math.inf and len(self._connections)):
                self._own.ring()
        return reached

    def lives(self) -> bool:
        """Whether the thread has done something since this was asked before."""
        lives, self._asked = self._lived == self._asked, self._asked + 1
        self._own.ring()
        return lives

    @contextlib.contextmanager
    def _for_the_loop(self) -> Iterator[None]:
        if self._waits:  # the lock is free, and would be this thread's again before the other one has woken up
            time.sleep(YIELD_S)
        self._wanted = True
        with self._lock:
            self._wanted = False
            yield

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = select.poll()
        for source in (self._own.fileno(), *self._sockets.filenos):
            poller.register(source, select.POLLIN)
        while not self._ending:
            try:
                ready = poller.poll(0 if self._more or self._quick else _milliseconds(self._due - self._clock()))
                if (self._own.fileno(), select.POLLIN) in ready:
                    self._own.hush()
                self._nap()
                self._step()
            except Exception:  # no fault of ours may leave the node without this thread
                log.exception("internal error at the ranks' socket")
                self._due = -math.inf  # the descriptors may have told of what was not looked at
                time.sleep(FAULT_S)

    def _nap(self) -> None:
        """Leave everything to the loop while many messages wait for it, and it gets on with them."""
        taken = -1
        self._naps = True
        for _ in range(NAPS):
            if len(self._turns) < MANY or taken == self._taken or self._ending:
                break
            taken = self._taken
            time.sleep(NAP_S)
        self._naps = False

    def _step(self) -> None:
        """Do what is to be done."""
        asked = self._asked
        with self._beside_the_loop():
            self._look(READ_BETWEEN if self._turns else READ_AHEAD)
        self._serve()
        self._lived = asked
        now = self._clock()
        with self._beside_the_loop():
            silent = self._connections.tick(now, lambda descriptor: self._sessions.by_connection(descriptor) is not None)
            self._due = min(silent, self._guard.tick(now))

    @contextlib.contextmanager
    def _beside_the_loop(self) -> Iterator[None]:
        while self._wanted:  # a lock goes to whoever is faster
            time.sleep(YIELD_S)
        self._waits = True
        try:
            with self._lock:
                self._waits = False
                yield
        finally:
            if self._turns or self._notices:
                self._loop.ring()

    def _serve(self) -> None:
        """Answer what is at hand, for a while; what turns out not to be is the loop's."""
        began = now = self._clock()
        while self._quick and now - began < SERVE_S:
            with self._beside_the_loop():
                came = self._quick.take()
                behind = came is not None and self._turns.waits(came.peer.uid, came.identity)
            if came is None:
                return
            answer = None if behind else self._answer(came)
            before, now = now, self._clock()
            with self._beside_the_loop():
                if self._ending:  # the disk took so long that the sockets are not ours any more
                    return
                self._quick.spent(now - before)
                if answer is None:
                    self._put(self._turns, came)
                elif not self._sockets.send(came.identity, answer):
                    self._notices.append(Unreachable(came.identity))
                if self._at_hand.uncounted == 1:
                    self._notices.append(Given())
                self._look(READ_BETWEEN)

    def _answer(self, came: Came) -> list[bytes] | None:
        try:
            return self._at_hand.answer(came.identity, came.peer, came.message)
        except Exception:  # the loop answers it, or says that it cannot
            log.exception("internal error in a look-up of uid %d pid %d", came.peer.uid, came.peer.pid)
            return None

    # ---- reading, with the lock --------------------------------------------------------------------------------------

    def _look(self, most: int) -> None:
        """Take what lies at the socket, up to ``most`` messages, and what connections came and went."""
        self._more = True  # also after a fault
        self._sockets.take_events()
        for _ in range(most):
            if not self._sockets.readable:
                self._more = False
                return
            came = self._sockets.receive()
            if came is not None:
                self._keep(came)
        self._more = self._sockets.readable

    def _closed(self, connection: int) -> None:
        self._notices.append(Closed(connection))

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
            self._next_loud = now + LOUD_S
            log.warning("pid %d of uid %d sends more than is answered; it is dropped", came.peer.pid, came.peer.uid)
        if room is Room.REFUSED:
            why = f"{WAITING_BYTES // 2**20} MiB of this user's messages wait already: this one was dropped"
            self._sockets.send(
                came.identity, encode(Refusal("LIMIT", why, "wait for the answer to a request before the next"), 0)
            )


def _milliseconds(seconds: float) -> int | None:
    return None if seconds == math.inf else math.ceil(max(0.0, seconds) * 1000)
