"""One connection to one daemon instance: requests with their replies, events, and the ways in which it ends.

A connection never reconnects by itself and never queues for a daemon that is not there (libzmq's ``RECONNECT_IVL`` -1 and
``IMMEDIATE``): a DEALER that did would silently replay its queue to a restarted daemon.  It does not block for longer than it is
told, and closing it is immediate.  Not thread-safe; not to be used in another process than the one that made it.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import zmq

from npgxd.errors import DaemonUnavailable, ProtocolError, RequestRefused
from npgxd.wire import limits
from npgxd.wire.codec import decode, encode
from npgxd.wire.endpoint import SILENT_HINT, probe
from npgxd.wire.form import Event
from npgxd.wire.messages import Refusal
from npgxd.wire.parsing import parse_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from npgxd.wire.form import Message

Context = zmq.Context[zmq.Socket[bytes]]

GIVEN_UP = 16
"""Requests whose answers were given up and have not come: beyond these nothing is sent, since a daemon ends a connection that floods it."""
_SLICE_S = 0.2
"""How long one poll may take before the connection is looked at again."""


class ConnectionLost(DaemonUnavailable):
    """The daemon that this connection was made to has gone, or no longer knows it. Another may come."""


class DaemonSilent(DaemonUnavailable):
    """The daemon is there and says nothing."""


class Reply(NamedTuple):
    """A checked reply and its payload frames."""

    message: Message
    frames: tuple[bytes, ...]


class Connection:
    """A DEALER without identity, connected to the daemon at ``path``."""

    def __init__(self, context: Context, path: Path, *, handshake_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Connect; DaemonUnavailable if nobody listens, DaemonSilent if the handshake takes longer than ``handshake_s``.

        libzmq's own thread in the daemon shakes hands, so a daemon whose loop is busy does so at once and a stopped one does not.
        """
        problem = probe(path)
        if problem:
            raise DaemonUnavailable(f"no daemon answers at {path}: {problem}", hint="see npgxctl status")
        self.path = path
        self._clock = clock
        self._ids = itertools.count(1)
        self._events: dict[str, Event] = {}
        self._given_up: set[int] = set()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max(limits.MAX_HEADER_BYTES, limits.MAX_FRAME_BYTES))
        try:
            self._shake_hands(handshake_s)
        except zmq.ZMQError as error:
            self.close()
            raise DaemonUnavailable(f"cannot connect to {path}: {error.strerror}", hint="see npgxctl status") from error
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, within_s: float) -> None:
        self._socket.connect(f"ipc://{self.path}")
        if not self._socket.poll(max(1, math.ceil(within_s * 1000)), zmq.POLLOUT):
            raise DaemonSilent(f"the daemon at {self.path} does not answer the connection", hint=SILENT_HINT)

    def close(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._socket.close(linger=0)

    def __del__(self) -> None:
        """Nobody has it any more: a thread of a client that is gone may have made it last. In a forked child pyzmq leaves it alone."""
        if hasattr(self, "_socket"):  # not where nobody listened
            self.close()

    def request(self, message: Message, frames: Sequence[bytes] = (), *, timeout_s: float) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            RequestRefused: the daemon's refusal.
            ConnectionLost: the daemon has gone. DaemonSilent: nothing came for ``timeout_s``.
            ProtocolError: what came is not of this protocol.
        """
        until = self._clock() + timeout_s
        while len(self._given_up) >= GIVEN_UP:
            if self._receive(until) is None:
                raise self._silent(timeout_s)
        number = next(self._ids)
        try:
            self._socket.send_multipart(encode(message, number, frames), zmq.NOBLOCK)
        except zmq.Again:
            raise self._gone() from None
        while True:
            received = self._receive(until)
            if received is None:
                self._given_up.add(number)
                raise self._silent(timeout_s)
            number_of, reply = received
            if number_of != number:
                continue  # the late answer to a request that was given up
            if isinstance(reply.message, Refusal):
                refused = reply.message
                raise RequestRefused(refused.message, hint=refused.hint, refusal=refused.code)
            return reply

    def event(self, topic: str, *, timeout_s: float) -> Event | None:
        """The latest event of a topic that has not been taken yet; None if none comes in time. Raises as ``request`` does."""
        until = self._clock() + timeout_s
        while topic not in self._events:
            if self._receive(until) is None:
                return None
        return self._events.pop(topic)

    def _receive(self, until: float) -> tuple[int, Reply] | None:
        """The next message that is a reply, or None at ``until`` or when an event has come; events are put aside."""
        while True:
            left = until - self._clock()
            if self._socket.poll(max(0, math.ceil(min(left, _SLICE_S) * 1000)), zmq.POLLIN):
                envelope = decode(self._socket.recv_multipart())
                message = parse_reply(envelope)
                if envelope.id:
                    self._given_up.discard(envelope.id)
                    return envelope.id, Reply(message, envelope.frames)
                self._put_aside(message)
                return 0, Reply(message, ())
            if not int(self._socket.get(zmq.EVENTS)) & zmq.POLLOUT:
                raise self._gone()
            if left <= 0:
                return None

    def _put_aside(self, event: Message) -> None:
        if isinstance(event, Refusal):
            raise ProtocolError(f"the daemon could not read a message: {event.message}", hint=event.hint)
        if not isinstance(event, Event):
            raise ProtocolError(f"an event {event.op!r} that nobody asked for")
        if len(self._events) < limits.MAX_ROUND_PARTS or event.topic in self._events:
            self._events[event.topic] = event

    def _silent(self, timeout_s: float) -> DaemonSilent:
        return DaemonSilent(f"the daemon at {self.path} said nothing for {timeout_s:.1f} s", hint=SILENT_HINT)

    def _gone(self) -> ConnectionLost:
        return ConnectionLost(f"the daemon at {self.path} has gone", hint="see npgxctl status and the daemon's log")
