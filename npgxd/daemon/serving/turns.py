"""Whose message is served next: users take turns by the time that their messages cost, and connections of one user by their number.

Pure state, no I/O.  Promise: however much one user sends, another one who had nothing waiting is served next but one, and else waits for one
turn of each user who has something waiting; what one user has waiting is bounded, and who sends far more than he is answered is told of.

Who comes is served before those who have been there, once, as in flow queues (RFC 8290, section 4.2): what is asked now and then does not
wait for what is asked without end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T")

TURN_S: Final = 0.001
"""What a user's messages may cost of the loop's time before it is another user's turn; the last one of a turn is not interrupted."""
DEBT_S: Final = 0.1
"""A message that took longer than its turn is made up for by as much, at the most: one large round is no reason to be kept out."""
WAITING_BYTES: Final = 64 * 1024 * 1024
"""Of one user's messages that wait, beside the first of each connection: a client of ours sends one request at a time."""
OVERHEAD: Final = 1024
"""What a message takes beside its own bytes."""
AHEAD: Final = 16
"""Messages that a connection may have unanswered, waiting or dropped, beside the first. A client of ours sends one request at a time: these
are those that it gave up (``npgxd.client.connection.GIVEN_UP``), also where the daemon stood for an hour."""
FLOOD: Final = 128
"""So many more, on all connections of a process together, are no client's."""


class Room(Enum):
    """What became of a message that came."""

    TAKEN = auto()
    REFUSED = auto()  # there is no room for it; the sender is to be told
    DROPPED = auto()  # as before: it was told
    FLOOD = auto()  # dropped, as its sender has FLOOD of them too many


@dataclass(slots=True)
class _Queue(Generic[T]):
    """What one connection has waiting. ``dropped``: how many were, since it last had nothing waiting; ``over``: how many are over AHEAD."""

    sender: Hashable
    messages: deque[tuple[T, int]] = field(default_factory=deque)
    dropped: int = 0
    over: int = 0


@dataclass(slots=True)
class _User(Generic[T]):
    """What one user has waiting. ``credit``: seconds that are left of the turn; below 0 they are owed. ``over``: of each sender."""

    credit: float = TURN_S
    size: int = 0
    queues: OrderedDict[bytes, _Queue[T]] = field(default_factory=OrderedDict)
    over: Counter[Hashable] = field(default_factory=Counter)

    def count(self, queue: _Queue[T]) -> None:
        """After any change of a queue."""
        over = max(0, len(queue.messages) - 1 + queue.dropped - AHEAD) if queue.messages else 0
        if over != queue.over:
            self.over[queue.sender] += over - queue.over
            queue.over = over
            if not self.over[queue.sender]:
                del self.over[queue.sender]


class Turns(Generic[T]):
    """The messages that wait, of all users."""

    def __init__(self) -> None:
        self._come: OrderedDict[int, _User[T]] = OrderedDict()
        self._there: OrderedDict[int, _User[T]] = OrderedDict()
        """Also those who have nothing waiting any more, until it would be their turn: they come as new ones only then."""
        self._waiting = 0
        self._served: _User[T] | None = None
        self._under_way: tuple[int, bytes] | None = None
        """The user and the connection of what was taken and is not ``spent`` yet."""

    def __len__(self) -> int:
        """How many messages wait."""
        return self._waiting

    def put(self, uid: int, connection: bytes, size: int, message: T, *, sender: Hashable = None) -> Room:
        """A message of ``size`` bytes came; it waits, if there is room for it. ``sender``: who connected; by default each is another's."""
        user = self._come.get(uid) or self._there.get(uid)
        if user is None:
            user = self._come[uid] = _User()
        queue = user.queues.get(connection)
        if queue is None:
            queue = user.queues[connection] = _Queue(sender or connection)
            queue.messages.append((message, size + OVERHEAD))
            self._waiting += 1
            return Room.TAKEN
        if user.over.get(queue.sender, 0) >= FLOOD:
            return Room.FLOOD
        if user.size + size + OVERHEAD > WAITING_BYTES:
            queue.dropped += 1
            user.count(queue)
            return Room.DROPPED if queue.dropped > 1 else Room.REFUSED
        user.size += size + OVERHEAD
        queue.messages.append((message, size + OVERHEAD))
        user.count(queue)
        self._waiting += 1
        return Room.TAKEN

    def waits(self, uid: int, connection: bytes) -> bool:
        """Whether anything of this connection waits, or is being served."""
        user = self._come.get(uid) or self._there.get(uid)
        return self._under_way == (uid, connection) or (user is not None and connection in user.queues)

    def take(self) -> T | None:
        """The message whose turn it is; None if none waits. Say ``spent`` when it was served."""
        while self._waiting:
            users = self._come or self._there
            uid, user = next(iter(users.items()))
            if user.queues and (user.credit > 0 or self._alone()):
                self._served = user
                self._waiting -= 1
                connection, message = _first(user)
                self._under_way = uid, connection
                if not user.queues and self._alone():
                    del users[uid]
                return message
            del users[uid]
            if user.credit <= 0:
                user.credit += TURN_S
                self._there[uid] = user
            elif users is self._come and self._there:
                self._there[uid] = user
        return None

    def spent(self, seconds: float) -> None:
        """What serving the message that was taken last has cost. Who is alone owes nobody."""
        self._under_way = None
        if self._served is not None:
            self._served.credit = max(self._served.credit - seconds, 0.0 if self._alone() else -DEBT_S)

    def _alone(self) -> bool:
        return len(self._come) + len(self._there) <= 1

    def discard(self, uid: int, sender: Hashable) -> None:
        """Drop what a sender has waiting."""
        user = self._come.get(uid) or self._there.get(uid)
        if user is None:
            return
        for connection, queue in list(user.queues.items()):
            if queue.sender == sender:
                del user.queues[connection]
                user.size -= sum(size for _, size in queue.messages) - queue.messages[0][1]
                self._waiting -= len(queue.messages)
        user.over.pop(sender, None)


def _first(user: _User[T]) -> tuple[bytes, T]:
    """Take the next message of the connection whose turn it is, and say which that is; it is another connection's turn then."""
    connection, queue = next(iter(user.queues.items()))
    message, _ = queue.messages.popleft()
    if queue.messages:
        user.size -= queue.messages[0][1]  # the first of each connection does not count
        user.queues.move_to_end(connection)
    else:
        del user.queues[connection]
    user.count(queue)
    return connection, message
