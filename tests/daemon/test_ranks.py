"""The socket of ranks without the loop around it: what was answered, and whether anything else has to be looked at for it."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import zmq

from npgxd.daemon.serving.connections import Connections
from npgxd.daemon.serving.listening import Doors
from npgxd.daemon.serving.memory_guard import MemoryGuard
from npgxd.daemon.serving.ranks import RankPort
from npgxd.wire.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Parts

PATIENCE_MS = 30_000
DATA = b"entry" * 100
KEY = hashlib.sha256(b"key").hexdigest()


class Talk:
    """One client and the daemon's end, in turns."""

    def __init__(self, doors: Doors, port: RankPort, client: zmq.Socket[bytes]) -> None:
        self.doors, self.port, self.client = doors, port, client
        self.changed = False

    def ask(self, op: str, *frames: bytes, **fields: Any) -> dict[str, Any]:
        self.client.send_multipart([msgpack.packb({"v": 1, "id": 1, "op": op, **fields}), *frames])
        assert self.doors.ranks.poll(PATIENCE_MS)
        self.port.read()
        self.changed = self.port.serve()
        assert self.client.poll(PATIENCE_MS)
        return decode(self.client.recv_multipart()).header


@pytest.fixture
def talk(parts: Parts) -> Iterator[Talk]:
    place = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))
    doors = Doors(place / "npgxd.sock", place / "admin.sock", {})
    port = RankPort(
        doors.ranks,
        doors.events,
        Connections(doors.path, lambda: 1024, clock=lambda: 0.0),
        parts.sessions,
        parts.handlers,
        lambda session, _how: parts.handlers.end(session, 0.0),
        clock=lambda: 0.0,
    )
    context = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.linger = 0
    client.connect(f"ipc://{place / 'npgxd.sock'}")
    yield Talk(doors, port, client)
    client.close()
    context.term()
    doors.close()
    shutil.rmtree(place)


def test_only_what_is_given_out_of_the_cache_is_no_reason_to_look_at_everything_else(talk: Talk) -> None:
    assert talk.ask("hello", versions=[1])["op"] == "welcome"
    assert talk.changed
    assert talk.ask("lookup", key=KEY)["state"] == "MISS"
    assert talk.changed, "others may wait for its builder now"
    told = talk.ask("publish", DATA, key=KEY, digest=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
    assert (told["op"], talk.changed) == ("published", True)
    assert talk.ask("lookup", key=KEY)["state"] == "HIT"
    assert not talk.changed
    assert talk.ask("fetch", key=KEY, digest=told["digest"], part=0)["op"] == "artifact_part"
    assert not talk.changed
    assert talk.ask("nothing")["op"] == "refusal"
    assert talk.changed


def test_a_connection_that_closed_meanwhile_is_noticed_by_a_look_up_of_another(talk: Talk, parts: Parts) -> None:
    talk.ask("hello", versions=[1])
    talk.ask("publish", DATA, key=KEY, digest=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
    first, path = talk.client, talk.client.getsockopt(zmq.LAST_ENDPOINT)
    talk.client = zmq.Context.instance().socket(zmq.DEALER)
    talk.client.connect(path)
    talk.ask("hello", versions=[1])
    assert len(parts.sessions) == 2
    first.close(linger=0)
    assert talk.doors.events.poll(PATIENCE_MS)
    assert talk.ask("lookup", key=KEY)["state"] == "HIT"
    assert talk.changed
    assert len(parts.sessions) == 1
    talk.client.close(linger=0)


def test_memory_is_looked_after_as_often_as_its_guard_says(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryGuard, "tick", lambda _guard, now: now + 0.25)
    assert talk.port.tick(3.0) == 3.25
