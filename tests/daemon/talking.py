"""The sockets of ranks with real clients, and without the loop around them."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack
import zmq

from npgxd.daemon.caching.at_hand import AtHand
from npgxd.daemon.serving.connections import Connections
from npgxd.daemon.serving.front import Front
from npgxd.daemon.serving.listening import Doors
from npgxd.daemon.serving.ranks import RankPort
from npgxd.wire.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Parts

PATIENCE_S = 30
DATA = b"entry" * 100
LARGE = b"large" * 100_000
KEY = hashlib.sha256(b"key").hexdigest()
T = TypeVar("T", bound="Talk")


class Talk:
    """Clients, the thread that reads what they send, and the loop's end of it, which moves only where a test says so."""

    def __init__(self, front: Front, port: RankPort, path: Path) -> None:
        self.front, self.port, self.path = front, port, path
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.clients: list[zmq.Socket[bytes]] = []
        self.client = self.connect()
        self.changed = False
        self.turns = 0
        """How often the loop had something to do for the latest answer."""

    def connect(self) -> zmq.Socket[bytes]:
        client = self.context.socket(zmq.DEALER)
        client.linger = 0
        client.connect(f"ipc://{self.path}")
        self.clients.append(client)
        return client

    def say(self, op: str, *frames: bytes, **fields: Any) -> None:
        self.client.send_multipart([msgpack.packb({"v": 1, "id": 1, "op": op, **fields}), *frames])

    def told(self) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        envelope = decode(self.client.recv_multipart())
        return envelope.header, envelope.frames

    def ask(self, op: str, *frames: bytes, **fields: Any) -> dict[str, Any]:
        self.say(op, *frames, **fields)
        self.changed, self.turns = False, 0
        while not self.client.poll(0):
            assert zmq.select([self.front.fileno(), self.client], [], [], PATIENCE_S)[0]
            self.move()
        return self.told()[0]

    def move(self) -> None:
        self.front.hush()
        self.changed |= self.port.take_notices()
        self.turns += self.front.waiting
        self.changed |= self.port.serve()

    def publish(self, key: str, data: bytes) -> str:
        told = self.ask("publish", data, key=key, digest=hashlib.sha256(data).hexdigest(), size=len(data))
        assert told["op"] == "published"
        return str(told["digest"])

    def quickly(self, op: str, **fields: Any) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """Ask, and be answered without the loop, which stands still."""
        self.say(op, **fields)
        assert self.client.poll(PATIENCE_S * 1000), "the loop's turn was waited for"
        return self.told()


@contextlib.contextmanager
def talking(parts: Parts, kind: type[T]) -> Iterator[T]:
    """The front's thread is not begun."""
    place = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))
    doors = Doors(place / "npgxd.sock", place / "admin.sock", {})
    lookups = parts.handlers._lookups
    front = Front(
        doors,
        Connections(doors.path, lambda: 1024, clock=lambda: 0.0),
        parts.sessions,
        AtHand(parts.sessions, lookups.scopes, parts.stores.artifacts),
        clock=lambda: 0.0,
    )
    port = RankPort(
        front,
        parts.sessions,
        parts.handlers,
        lambda session, _how: parts.handlers.end(session, 0.0),
        clock=lambda: 0.0,
    )
    talk = kind(front, port, place / "npgxd.sock")
    try:
        yield talk
    finally:
        for client in talk.clients:
            client.close()
        talk.context.term()
        front.end()
        doors.close()
        shutil.rmtree(place)
