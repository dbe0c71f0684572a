"""The loop: whose turn it is between the parts of a daemon and the ranks that ask."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import zmq

from npgxd.config import Settings
from npgxd.daemon.service import LONG_S, Service
from npgxd.daemon.serving.listening import Doors

if TYPE_CHECKING:
    from conftest import Parts

PATIENCE_S = 30
PATIENCE_MS = PATIENCE_S * 1000


class Clock:
    """Monotonic seconds that only pass when they are told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_rank_is_answered_after_a_part_that_took_long_and_before_the_next(parts: Parts) -> None:
    place = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))  # a socket's path has at most 107 bytes
    clock, answered = Clock(), []
    doors = Doors(place / "npgxd.sock", place / "admin.sock", {})
    service = Service(Settings(parts.config), parts.stores, parts.keyer, doors, read_config=lambda: parts.config, clock=clock)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.connect(f"ipc://{place / 'npgxd.sock'}")

        def long(_now: float) -> float:
            client.send(msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": [1]}))
            assert zmq.select([service._front.fileno()], [], [], PATIENCE_S)[0]
            clock.now += 2 * LONG_S
            return math.inf

        def following(_now: float) -> float:
            answered.append(bool(client.poll(PATIENCE_MS)))
            return math.inf

        service._ticks = (long, following)
        service._front.begin()
        try:
            service._look_around()
            assert answered == [True]
            assert service._due == -math.inf, "the parts that had their turn before are asked again, for what it changed"
        finally:
            service._close()
            shutil.rmtree(place)
