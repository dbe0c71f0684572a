"""The loop: whose turn it is between the parts of a daemon and the ranks that ask."""

from __future__ import annotations

import logging
import math
import os
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest
import zmq

from npgxd.config import Settings
from npgxd.daemon.service import FEW, LONG_S, Service
from npgxd.daemon.serving.listening import Doors
from npgxd.errors import NoThreads
from npgxd.store.state import StateDirectory
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.messages import Hello, RankInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Parts

PATIENCE_S = 30
PATIENCE_MS = PATIENCE_S * 1000


class Clock:
    """Monotonic seconds that only pass when they are told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def served(parts: Parts, clock: Clock, *, close: bool = True) -> Iterator[tuple[Service, Path]]:
    place = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))  # a socket's path has at most 107 bytes
    doors = Doors(place / "npgxd.sock", place / "admin.sock", {})
    service = Service(Settings(parts.config), parts.stores, parts.keyer, doors, read_config=lambda: parts.config, clock=clock)
    try:
        yield service, place
    finally:
        if close:
            service._close()
        shutil.rmtree(place)


def test_a_state_that_cannot_be_read_is_told_once_whoever_tries_and_again_when_it_comes_back(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    clock, leases = Clock(), parts.stores.state.leases
    parts.stores.spared = True  # views wait for their leases: those are looked at every few seconds

    def try_all(service: Service) -> list[str]:
        caplog.clear()
        for _ in range(3):
            clock.now += 10
            service._housekeeping.request(clock.now)
            for part in (service._housekeeping.tick, service._poll_leases):
                while part(clock.now) == clock.now:
                    continue
            service._page.document(clock.now)
            parts.stores.spared = True
        return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]

    with served(parts, clock) as (service, _):
        for _ in range(2):
            leases.rename(leases.with_name("away"))
            (told,) = try_all(service)
            assert told.startswith(f"removal: the pass was not finished: No such file or directory: {leases}")
            leases.with_name("away").rename(leases)
            assert try_all(service) == []


@pytest.mark.parametrize("name", ["front", "disk watch"])
def test_a_daemon_that_is_refused_a_thread_says_so_and_leaves_its_state_to_the_next(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with served(parts, Clock(), close=False) as (service, _):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NoThreads, match="TasksMax=") as refused:
            service.run()
        assert refused.value.exit_code == os.EX_OSERR
        StateDirectory.open(parts.stores.state.path).close()


def test_a_rank_is_answered_after_a_part_that_took_long_and_before_the_next(parts: Parts) -> None:
    clock, answered = Clock(), []
    with served(parts, clock) as (service, place), zmq.Context() as context, context.socket(zmq.DEALER) as client:
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
        service._look_around()
        assert answered == [True]
        assert service._due == -math.inf, "the parts that had their turn before are asked again, for what it changed"


def test_each_process_that_ends_is_noticed_also_where_many_have_ended_together(parts: Parts) -> None:
    with served(parts, Clock()) as (service, _):
        running = [subprocess.Popen(["sleep", "60"]) for _ in range(FEW + 4)]
        try:
            for number, each in enumerate(running):
                peer = PeerCredentials(os.getuid(), os.getgid(), each.pid)
                hello = Hello(versions=(1,), client="x", pid=each.pid, program="p", rank=RankInfo())
                service._sessions.open(bytes([number]), peer, hello, 0.0)
            service._watch()
            for each in running[1:]:
                each.kill()
                each.wait()
            until = time.monotonic() + PATIENCE_S
            while len(service._sessions) > 1 and time.monotonic() < until:
                service._step()
            assert len(service._sessions) == 1
            running[0].kill()
            running[0].wait()
            while service._sessions and time.monotonic() < until:
                service._step()
            assert len(service._sessions) == 0
        finally:
            for each in running:
                each.kill()
                each.wait()
