"""Whose message is served next: users take turns by the time that their messages cost, and connections of one user by their number.

Pure state, no I/O.  Promise: however much one user sends, another one's next message waits for what is being served, and for one turn of
each user who has something waiting; and what one user has waiting is bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Generic, TypeVar

T = TypeVar("T")

TURN_S: Final = 0.001
"""What a user's messages may cost of the loop's time before it is another user's turn; the last one of a turn is not interrupted."""
DEBT_S: Final = 0.1
"""A message that took longer than its turn is made up for by as much, at the most: one large round is no reason to be kept out."""
WAITING_BYTES: Final = 64 * 1024 * 1024
"""Of one user's messages that wait, beside the first of each connection: a client of ours sends one request at a time."""
OVERHEAD: Final = 1024
"""What a message takes beside its own bytes."""


class Room(Enum):
    """What became of a message that came."""

    TAKEN = auto()
    REFUSED = auto()  # there is no room for it; the sender is to be told
    DROPPED = auto()  # as before: it was told


@dataclass(slots=True)
class _Queue(Generic[T]):
    """What one connection has waiting."""

    messages: deque[tuple[T, int]] = field(default_factory=deque)
    told: bool = False


@dataclass(slots=True)
class _User(Generic[T]):
    """What one user has waiting. ``credit``: seconds that are left of the turn; below 0 they are owed."""

    credit: float = TURN_S
    size: int = 0
    queues: OrderedDict[bytes, _Queue[T]] = field(default_factory=OrderedDict)


class Turns(Generic[T]):
    """The messages that wait, of all users."""

    def __init__(self) -> None:
        self._users: OrderedDict[int, _User[T]] = OrderedDict()
        self._served: _User[T] | None = None

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._users)

    def put(self, uid: int, connection: bytes, size: int, message: T) -> Room:
        """A message of ``size`` bytes came; it waits, if there is room for it."""
        user = self._users.get(uid)
        if user is None:
            user = self._users[uid] = _User()
        queue = user.queues.get(connection)
        if queue is None:
            queue = user.queues[connection] = _Queue()
        elif user.size + size + OVERHEAD > WAITING_BYTES:
            told, queue.told = queue.told, True
            return Room.DROPPED if told else Room.REFUSED
        else:
            user.size += size + OVERHEAD
        queue.messages.append((message, size + OVERHEAD))
        return Room.TAKEN

    def take(self) -> T | None:
        """The message whose turn it is; None if none waits. Say ``spent`` when it was served."""
        while self._users:
            uid, user = next(iter(self._users.items()))
            if user.credit <= 0 and len(self._users) > 1:
                user.credit += TURN_S
                self._users.move_to_end(uid)
                continue
            self._served = user
            message = _first(user)
            if not user.queues:
                del self._users[uid]
            return message
        return None

    def spent(self, seconds: float) -> None:
        """What serving the message that was taken last has cost."""
        if self._served is not None:
            self._served.credit = max(self._served.credit - seconds, -DEBT_S)


def _first(user: _User[T]) -> T:
    """Take the next message of the connection whose turn it is; it is another connection's turn then."""
    connection, queue = next(iter(user.queues.items()))
    message, _ = queue.messages.popleft()
    if queue.messages:
        user.size -= queue.messages[0][1]  # the first of each connection does not count
        user.queues.move_to_end(connection)
    else:
        del user.queues[connection]
    return message
