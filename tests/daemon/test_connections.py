"""Connections that libzmq holds: counted, ended alone, and nothing else is touched that may have their number by now."""

from __future__ import annotations

import math
import mmap
import os
import resource
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npgxd.daemon.serving import connections, far_ends, memory_guard
from npgxd.daemon.serving.connections import CUT_OFF_S, LONGEST_S, LOOK_S, LOOKS, OPEN_FACTOR, OPEN_MORE, Connections
from npgxd.daemon.serving.memory_guard import BUSY, MESSAGE, MORE, ROUNDS, SAMPLES, MemoryGuard
from npgxd.wire.credentials import PeerCredentials

if TYPE_CHECKING:
    from collections.abc import Iterator

ME = PeerCredentials(os.geteuid(), os.getegid(), os.getpid())


class Ground:
    """A listening socket, and both ends of what connects to it. What is accepted here stands for libzmq's descriptors."""

    def __init__(self, place: Path) -> None:
        self.now = 0.0
        self.path = place / "s"
        self.allowed = 1000
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(self.path))
        self.listener.listen(200)
        self.connections = Connections(self.path, lambda: self.allowed, clock=lambda: self.now)
        self.ends: list[socket.socket] = [self.listener]

    def connect(self) -> tuple[socket.socket, int]:
        """Our end, and the descriptor at the daemon's, which was told of."""
        near = socket.socket(socket.AF_UNIX)
        near.connect(os.fspath(self.path))
        far, _ = self.listener.accept()
        self.ends += [near, far]
        self.connections.accepted(far.fileno())
        return near, far.fileno()

    def stand_in(self, far: int, number: int) -> PeerCredentials:
        """From now on this connection is another process's; such a one is told to be cut off, and not really ended."""
        self.connections._open[far].peer = peer = PeerCredentials(ME.uid, ME.gid, ME.pid + number)
        return peer

    def watch(self, guard: MemoryGuard, rounds: int, *, speaks: tuple[int, ...] = ()) -> None:
        """So many rounds of samples, or looks; a whole message comes of these connections before each of them."""
        for _ in range(SAMPLES * rounds):
            for far in speaks:
                self.connections.heard(far, ME)
            self.now = guard.tick(self.now)

    def look(self, times: int, *, sessions: frozenset[int] = frozenset()) -> None:
        for _ in range(times):
            self.now += LOOK_S
            self.connections.tick(self.now, sessions.__contains__)


@pytest.fixture
def ground() -> Iterator[Ground]:
    place = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))
    made = Ground(place)
    yield made
    for end in made.ends:
        end.close()
    shutil.rmtree(place)


def has_ended(near: socket.socket) -> bool:
    near.setblocking(False)
    try:
        return near.recv(1) == b""
    except BlockingIOError:
        return False


def test_only_a_connection_to_this_path_and_of_this_peer_is_ended(ground: Ground, tmp_path: Path) -> None:
    near, far = ground.connect()
    other = Ground(tmp_path)
    elsewhere, its = other.connect()
    one, two = socket.socketpair()
    with (tmp_path / "file").open("w") as file:
        for descriptor in (its, one.fileno(), two.fileno(), file.fileno(), ground.listener.fileno(), near.fileno(), 9999, -1):
            assert far_ends.peer_at(descriptor, ground.path) is None
            assert not far_ends.end(descriptor, ground.path, ME)
        assert not far_ends.end(far, ground.path, PeerCredentials(ME.uid, ME.gid, ME.pid + 1))
        file.write("still open")
    one.send(b"x")
    assert two.recv(1) == b"x"
    assert not has_ended(elsewhere)
    assert not has_ended(near)
    assert far_ends.peer_at(far, ground.path) == ME
    assert far_ends.end(far, ground.path, ME)
    assert has_ended(near)
    for end in (*other.ends, one, two):
        end.close()


def test_a_number_that_another_peers_connection_has_by_now_is_left_alone(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event of one that has gone is read late: whoever has its number is looked at anew."""
    near, far = ground.connect()
    stranger = PeerCredentials(ME.uid + 1, ME.gid, ME.pid + 1)
    ground.connections.cut_off(far, stranger)
    assert not has_ended(near)
    assert ground.connections.heard(far, ME)
    assert ground.connections.refuses(stranger)
    assert not ground.connections.refuses(ME)


def test_a_users_open_connections_are_bounded_and_another_one_may_come_when_one_goes(ground: Ground) -> None:
    ground.allowed = 3
    most = OPEN_FACTOR * 3 + OPEN_MORE
    held = [ground.connect() for _ in range(most)]
    assert not any(has_ended(near) for near, _ in held)
    assert not ground.connections.refuses(ME)
    one_more, its = ground.connect()
    assert has_ended(one_more)
    assert ground.connections.refuses(ME)
    assert not ground.connections.refuses(PeerCredentials(ME.uid + 1, 0, 1)), "it is not another user's trouble"
    ground.connections.closed(its)
    ground.connections.closed(held[0][1])
    assert not has_ended(ground.connect()[0])
    for _, far in held:
        ground.connections.closed(far)
        ground.connections.closed(far)
    assert ground.connections.of_user(ME.uid) <= 1


def test_all_users_together_have_no_more_than_a_third_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (12, 12))
    place = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))  # a socket's path has at most 107 bytes
    ground = Ground(place)
    ends = [ground.connect()[0] for _ in range(5)]
    assert [has_ended(each) for each in ends] == [False] * 4 + [True], "the rest is for sessions, and for what comes too fast"
    for each in ground.ends:
        each.close()
    shutil.rmtree(place)


def test_a_connection_that_says_nothing_goes_and_one_that_speaks_or_has_a_session_stays(ground: Ground) -> None:
    silent, _ = ground.connect()
    speaks, far = ground.connect()
    has_session, session = ground.connect()
    for _ in range(LOOKS):
        ground.look(LOOKS - 1, sessions=frozenset({session}))
        assert ground.connections.heard(far, ME)
    assert has_ended(silent)
    assert not has_ended(speaks)
    assert not has_ended(has_session)


def test_after_an_hour_of_a_stopped_daemon_nobody_is_ended_before_his_hello_is_read(ground: Ground) -> None:
    near, _ = ground.connect()
    for _ in range(LOOKS - 1):
        ground.now += 3600.0
        ground.connections.tick(ground.now, lambda _far: False)
    assert not has_ended(near)


def test_a_process_that_floods_loses_its_connections_for_a_while_that_doubles(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [ground.connect() for _ in range(3)]
    ground.connections.cut_off(held[0][1], ME)
    assert all(has_ended(near) for near, _ in held)
    assert not any(ground.connections.heard(far, ME) for _, far in held), "what was sent before does not count"
    assert has_ended(ground.connect()[0])
    ground.connections.cut_off(held[0][1], ME)  # what it sent before is read after
    lasted: list[float] = []
    for _ in range(9):
        begun = ground.now
        while ground.connections.refuses(ME):
            ground.now += CUT_OFF_S / 2
        lasted.append(ground.now - begun)
        near, far = ground.connect()
        assert not has_ended(near)
        ground.connections.cut_off(far, ME)
    assert lasted[:4] == [CUT_OFF_S, 2 * CUT_OFF_S, 4 * CUT_OFF_S, 8 * CUT_OFF_S]
    assert max(lasted) == LONGEST_S
    assert not ground.connections.refuses(PeerCredentials(ME.uid, ME.gid, ME.pid + 1))
    monkeypatch.setattr(connections, "started_s", lambda _pid: 12345.0)
    assert not ground.connections.refuses(ME), "a later process with its pid"


def test_of_processes_that_cannot_be_told_apart_only_the_connection_is_ended(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    invisible = PeerCredentials(ME.uid, ME.gid, 0)
    monkeypatch.setattr(far_ends, "_peer", lambda _connection: invisible)
    (first, its), (second, _) = ground.connect(), ground.connect()
    ground.connections.cut_off(its, invisible)
    assert has_ended(first)
    assert not has_ended(second)
    assert not ground.connections.refuses(invisible)


def test_who_sends_on_and_on_and_completes_nothing_is_cut_off_when_memory_is_short(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 0
    guard = MemoryGuard(ground.connections, resident=lambda: size)
    (endless, _), (answered, its), (idle, _) = ground.connect(), ground.connect(), ground.connect()
    ours = ground.connections._open[its]
    ours.peer = far = PeerCredentials(ME.uid, ME.gid, ME.pid + 1)  # another process
    monkeypatch.setattr(connections, "started_s", lambda _pid: 1.0)
    endless.send(b"x")
    answered.send(b"x")

    def look(times: int) -> None:
        for _ in range(times):
            ground.now = guard.tick(ground.now)
            ground.connections.heard(its, far)

    look(2 * SAMPLES)
    assert not has_ended(endless), "there is memory"
    size = MORE + 1
    look(SAMPLES + 1)
    assert has_ended(endless)
    assert not has_ended(answered), "each of its messages ended"
    assert ground.connections.refuses(ME)
    assert not ground.connections.refuses(far)
    assert has_ended(idle), "it is the same process's"


def test_while_there_is_memory_nobody_is_ended_whatever_the_daemon_has_had_from_the_start(ground: Ground) -> None:
    size = 5 * MORE
    guard = MemoryGuard(ground.connections, resident=lambda: size)
    assert guard.tick(0.0) == math.inf, "nobody is connected"
    near, _ = ground.connect()
    near.send(b"part of a message")
    size += MORE
    ground.watch(guard, ROUNDS + 3)
    assert not has_ended(near)
    assert not ground.connections.refuses(ME)
    assert guard.tick(ground.now) - ground.now == memory_guard.LOOK_S, "no samples are taken"


def test_a_crowd_that_sends_large_messages_at_once_is_no_flood_however_slowly_they_come(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "started_s", lambda _pid: 1.0)
    size = 0
    guard = MemoryGuard(ground.connections, resident=lambda: size)
    crowd: list[PeerCredentials] = []
    for number in range(MORE // MESSAGE + 2):
        near, far = ground.connect()
        crowd.append(ground.stand_in(far, 1 + number))
        near.send(b"part of a message")
    size = MORE + 1
    ground.watch(guard, ROUNDS - 1)
    assert not any(ground.connections.refuses(peer) for peer in crowd)
    size = len(crowd) * MESSAGE + 1
    ground.watch(guard, 1)
    assert all(ground.connections.refuses(peer) for peer in crowd), "it is more than their messages can have"


def test_only_those_who_are_busiest_by_far_are_cut_off(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "started_s", lambda _pid: 1.0)
    size = 0
    guard = MemoryGuard(ground.connections, resident=lambda: size)
    busy = {BUSY - 1: False, SAMPLES // 2 - 1: False, SAMPLES // 2 + 1: True, SAMPLES: True}
    """Samples that find bytes of a process, and whether it is cut off for it."""
    its: dict[int, int] = {}
    peers: dict[int, PeerCredentials] = {}
    for samples in busy:
        near, its[samples] = ground.connect()
        peers[samples] = ground.stand_in(its[samples], samples)
        near.send(b"x")
    size = MORE + 1
    for taken in range(SAMPLES):
        for samples, far in its.items():
            if taken == samples:
                assert os.read(far, 10) == b"x"
        ground.now = guard.tick(ground.now)
    assert {samples: ground.connections.refuses(peer) for samples, peer in peers.items()} == busy


def test_who_is_hardly_ever_busy_is_not_cut_off_though_nobody_is_busier(ground: Ground) -> None:
    size = 0
    guard = MemoryGuard(ground.connections, resident=lambda: size)
    near, far = ground.connect()
    near.send(b"x")
    size = MORE + 1
    for taken in range(SAMPLES):
        if taken == BUSY - 1:
            os.read(far, 10)
        ground.now = guard.tick(ground.now)
    assert not ground.connections.refuses(ME)


def test_when_nobody_sends_and_memory_stays_short_what_says_nothing_whole_is_ended_once(ground: Ground) -> None:
    size = 0
    guard = MemoryGuard(ground.connections, resident=lambda: size)
    (half, _), (speaks, its), (spoke, once) = ground.connect(), ground.connect(), ground.connect()
    size = MORE + 1
    ground.watch(guard, 1, speaks=(its, once))
    ground.watch(guard, ROUNDS - 1, speaks=(its,))
    assert not has_ended(half)
    ground.watch(guard, 2, speaks=(its,))
    assert has_ended(half)
    assert not has_ended(speaks)
    assert not has_ended(spoke)
    assert not ground.connections.refuses(ME), "nobody is known to have done it"
    later, _ = ground.connect()
    ground.watch(guard, 3 * (ROUNDS + 2))
    assert not has_ended(later), "what memory it has now is taken as given"
    assert BUSY < SAMPLES


def test_shortages_that_have_passed_or_whose_culprit_was_found_do_not_add_up(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "started_s", lambda _pid: 1.0)
    size = 0
    guard = MemoryGuard(ground.connections, resident=lambda: size)
    half, _ = ground.connect()
    for _ in range(3):
        size = MORE + 1
        ground.watch(guard, ROUNDS - 1)
        size = 0
        ground.watch(guard, 1)
    assert not has_ended(half)
    size = MORE + 1
    ground.watch(guard, ROUNDS - 1)
    near, far = ground.connect()
    culprit = ground.stand_in(far, 1)
    near.send(b"x")
    ground.watch(guard, 1)
    assert ground.connections.refuses(culprit)
    os.read(far, 10)
    ground.watch(guard, ROUNDS - 1)
    assert not has_ended(half)


def test_bytes_that_nobody_reads_are_seen_and_asking_a_wrong_number_is_no_harm(ground: Ground, tmp_path: Path) -> None:
    near, far = ground.connect()
    near.send(b"four")
    assert far_ends.unread(far) == 4
    with (tmp_path / "file").open("w") as file:
        assert far_ends.unread(file.fileno()) == 0
    assert far_ends.unread(9999) == 0


def test_the_memory_that_a_process_has_is_told_in_bytes_and_what_it_may_have_is_not() -> None:
    with mmap.mmap(-1, 256 * 1024 * 1024):
        told = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
        assert abs(memory_guard.resident() - int(told.split()[1]) * 1024) < 32 * 1024 * 1024
