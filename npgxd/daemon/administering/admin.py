"""admin.sock: what an administrator may ask of the daemon. Only the daemon's own uid and root are heard, by the kernel's word.

Long acts are driven in slices between two looks at the sockets; whoever asked is told how far they are.
"""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

from npgxd.daemon.refusals import Refused, refusal_of
from npgxd.errors import NpgxError
from npgxd.wire import admin, limits
from npgxd.wire.codec import decode, encode
from npgxd.wire.credentials import PeerCredentials, peer_of
from npgxd.wire.messages import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.administering.acts import Acts, Long
    from npgxd.wire.form import Message

log = logging.getLogger(__name__)

BURST = 16
_LOOKS = frozenset({"explain", "logs", "pins", "progress"})
"""They change nothing, and are no event that an operator needs in the log."""


@dataclass(slots=True)
class _Asked:
    """A long act and who waits for it."""

    identity: bytes
    id: int
    long: Long
    told_at: float


class AdminPort:
    """The second socket of the daemon."""

    def __init__(self, socket: zmq.Socket[bytes], acts: Acts, *, clock: Callable[[], float]) -> None:
        self._socket = socket
        self._acts = acts
        self._clock = clock
        self._asked: list[_Asked] = []

    def close(self) -> None:
        """The daemon ends; acts that are under way end where they are, which is safe anywhere."""
        for asked in self._asked:
            asked.long.task.stop()
            self._send(
                asked.identity, Refusal("DRAINING", "the daemon is stopping", "run it again after the next start"), asked.id
            )
        self._asked.clear()
        self._acts.close()

    # ---- messages ----------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take what lies at the socket."""
        for _ in range(BURST):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if not parts:
                return
            self._take(parts[0].bytes, parts)

    def _take(self, identity: bytes, parts: list[zmq.Frame]) -> None:
        number = 0
        try:
            peer = peer_of(parts[-1])
            envelope = decode([part.bytes for part in parts[1:]])
            number = envelope.id
            _check(peer)
            message = admin.parse(envelope, admin.REQUESTS)
            level = logging.DEBUG if _looks(message) else logging.INFO
            log.log(level, "administration: uid %d pid %d asks for %s", peer.uid, peer.pid, envelope.op)
            done = self._acts.do(message, envelope.frames, peer, self._clock())
        except NpgxError as error:
            log.info("administration: refused: %s", error)  # who asked is told, and nothing in the daemon needs a look
            self._send(identity, refusal_of(error), number)
        except Exception:  # one request's fault must not take the node's daemon down; it is logged whole and refused
            log.exception("internal error in an administrator's request")
            self._send(identity, Refusal("INTERNAL", "the daemon failed at this request", "its log says more"), number)
        else:
            if isinstance(done, dict):
                self._answer(identity, number, done)
            else:
                self._asked.append(_Asked(identity, number, done, self._clock()))

    def tick(self, now: float) -> float:
        """Drive what is under way and say how far it is; when to come back."""
        for asked in list(self._asked):
            task = asked.long.task
            if not task.ended and asked.long.driven:
                task.run()
            if task.ended:
                self._asked.remove(asked)
                self._end(asked)
            elif now - asked.told_at >= admin.PROGRESS_S:
                asked.told_at = now
                step = task.step
                self._send(asked.identity, admin.Progress(step.what, step.done, step.total), asked.id)
        if not self._asked:
            return math.inf
        return now if any(asked.long.driven for asked in self._asked) else now + admin.PROGRESS_S / 5

    def _end(self, asked: _Asked) -> None:
        task = asked.long.task
        if task.result is not None:
            self._answer(asked.identity, asked.id, asked.long.document(task.result))
            return
        error = task.error or Refused("BUSY", "it was ended for another act", hint="run it again")
        self._send(asked.identity, refusal_of(error), asked.id)

    def _answer(self, identity: bytes, number: int, document: dict[str, Any]) -> None:
        text = json.dumps(document, separators=(",", ":")).encode()
        size = limits.MAX_FRAME_BYTES
        frames = [text[start : start + size] for start in range(0, len(text), size)]
        if len(frames) > limits.MAX_FRAMES:
            self._send(
                identity, Refusal("TOO_LARGE", "the answer is too long for one message", "the daemon's log has it"), number
            )
            return
        self._send(identity, admin.Answer(), number, frames)

    def _send(self, identity: bytes, message: Message, number: int, frames: list[bytes] | None = None) -> None:
        try:
            self._socket.send_multipart([identity, *encode(message, number, frames or [])], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # whoever asked has gone; what was asked for is done all the same
            log.debug("an administrator cannot be told: %s", error)


def _looks(message: Message) -> bool:
    """Whether it changes nothing."""
    return message.op in _LOOKS or (isinstance(message, admin.Gc) and message.dry_run)


def _check(peer: PeerCredentials) -> None:
    """The file system lets nobody else in; this is the second lock."""
    if peer.uid not in {0, os.geteuid()}:
        raise Refused("NOT_ALLOWED", f"uid {peer.uid} is no administrator of this daemon", hint="run npgxctl as root")
