"""The sockets of ranks between the loop and the thread beside it, both moved by the test: nothing falls between them."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import pytest
import zmq

from npgxd.daemon.serving.front import MANY
from npgxd.wire.codec import encode
from npgxd.wire.messages import Done
from tests.daemon.talking import DATA, KEY, PATIENCE_S, Talk, talking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Parts


class Still(Talk):
    """Both move in the test's own thread."""

    def come(self) -> None:
        """Let the front read, and answer what it can, once something has come."""
        assert self.front._sockets._router.poll(PATIENCE_S * 1000)
        self.front._step()

    def ask_slowly(self, op: str, *frames: bytes, **fields: object) -> str:
        """Be answered by the loop; the word for the answer."""
        self.say(op, *frames, **fields)
        self.come()
        self.move()
        assert self.client.poll(PATIENCE_S * 1000)
        return str(self.told()[0]["op"])

    def answers(self, count: int) -> list[str]:
        found = []
        for _ in range(count):
            assert self.client.poll(PATIENCE_S * 1000)
            found.append(str(self.told()[0]["op"]))
        return found

    def crowd(self) -> None:
        """So many other connections wait for the loop that it is better left alone."""
        mine = self.client
        for _ in range(MANY):
            self.client = self.connect()
            self.say("hello", versions=[1])
        self.client = mine
        while len(self.front._turns) < MANY:
            self.come()

    @property
    def loop_is_woken(self) -> bool:
        return bool(zmq.select([self.front.fileno()], [], [], 0)[0])

    @property
    def thread_is_woken(self) -> bool:
        return bool(zmq.select([self.front._own.fileno()], [], [], 0)[0])

    def has_come_or_gone(self) -> None:
        """Wait until libzmq tells of a connection, without looking."""
        assert self.front._sockets._events.poll(PATIENCE_S * 1000)


@pytest.fixture
def still(parts: Parts) -> Iterator[Still]:
    with talking(parts, Still) as still:
        yield still


@pytest.fixture
def hits(still: Still) -> Still:
    """The client has a session, and an entry is at hand for it."""
    still.ask_slowly("hello", versions=[1])
    still.ask_slowly("publish", DATA, key=KEY, digest=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
    still.ask_slowly("lookup", key=KEY)
    return still


def test_an_end_that_is_read_while_the_loop_sends_wakes_the_loop(still: Still, parts: Parts) -> None:
    still.ask_slowly("hello", versions=[1])
    gone, still.client = still.client, still.connect()
    still.ask_slowly("hello", versions=[1])
    still.move()
    _, stays = parts.sessions
    gone.close(linger=0)
    still.has_come_or_gone()
    assert not still.loop_is_woken
    still.front.send(stays.identity, encode(Done(), 7))
    assert still.loop_is_woken
    still.move()
    assert list(parts.sessions) == [stays]


def test_the_first_connection_is_watched_also_where_the_loop_reads_that_it_came(still: Still) -> None:
    still.has_come_or_gone()
    still.front._step()
    still.client.close()
    still.has_come_or_gone()
    still.front._step()
    assert still.front._due == float("inf"), "nobody is connected"
    still.client = still.connect()
    still.has_come_or_gone()
    assert not still.thread_is_woken
    assert not still.front.send(b"nobody", [b"x"])
    assert still.thread_is_woken, "else one that says nothing would stay for ever"


def test_what_follows_a_request_that_the_loop_is_at_is_the_loops(hits: Still) -> None:
    hits.say("cache_note", key=KEY, label="it", outcome="hit")
    hits.come()
    taken = hits.front.take()
    assert taken is not None
    hits.say("lookup", key=KEY)
    hits.come()
    assert hits.front.waiting, "else it would be answered before"
    hits.front.send(taken.identity, encode(Done(), 1))
    hits.front.spent(0.0)
    hits.move()
    assert hits.answers(2) == ["done", "artifact"]
    hits.say("lookup", key=KEY)
    hits.come()
    assert not hits.front.waiting
    assert hits.answers(1) == ["artifact"]


def test_what_follows_a_look_up_that_the_thread_is_at_waits_behind_it(
    hits: Still, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def glance(*_asked: object, **_more: object) -> None:
        monkeypatch.undo()
        hits.say("cache_note", key=KEY, label="it", outcome="hit")
        assert hits.front._sockets._router.poll(PATIENCE_S * 1000)
        hits.front.send(b"nobody", [b"x"])  # the loop reads it

    monkeypatch.setattr(parts.stores.artifacts, "glance", glance)
    hits.say("lookup", key=KEY)
    hits.come()
    hits.move()
    assert hits.answers(2) == ["artifact", "done"]


def test_what_follows_something_of_the_loops_that_the_thread_found_among_look_ups_is_the_loops(hits: Still) -> None:
    hits.say("lookup", key=KEY)
    hits.say("cache_note", key=KEY, label="it", outcome="hit")
    hits.say("lookup", key=KEY)
    for _ in range(3):
        assert hits.front._sockets._router.poll(PATIENCE_S * 1000)
        hits.front._look(1)
    hits.front._step()
    assert hits.answers(1) == ["artifact"]
    hits.move()
    assert hits.answers(2) == ["done", "artifact"]


def test_a_look_up_at_which_the_thread_fails_is_answered_by_the_loop(
    hits: Still, parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_asked: object, **_more: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(parts.stores.artifacts, "glance", fail)
    assert hits.ask_slowly("lookup", key=KEY) == "artifact"
    assert "a fault of ours" in caplog.text


def test_a_connection_that_closed_before_it_had_a_session_leaves_none(still: Still, parts: Parts) -> None:
    """libzmq tells of an end first, and takes the connection's way for answers away a little later."""
    still.say("hello", versions=[1])
    still.come()
    (descriptor,) = still.front._connections._open
    still.front._connections.closed(descriptor)
    still.front._closed(descriptor)
    still.move()
    assert still.answers(1) == ["welcome"], "it could still be sent"
    assert not list(parts.sessions)


def test_uses_that_wait_to_be_counted_take_next_to_no_memory_and_are_counted_whenever_they_came(
    hits: Still, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, lookups = parts.stores.artifacts.rows, parts.handlers._lookups
    for _ in range(3):
        hits.say("lookup", key=KEY)
        hits.come()
        assert hits.answers(1) == ["artifact"]
    assert len(rows.glanced) == 3
    assert len(set(map(id, rows.glanced))) == 1
    flush = parts.stores.flush

    def one_more() -> None:
        flush()
        rows.glanced.append(rows.all()[0].id)

    lookups.tick(0.0)
    monkeypatch.setattr(parts.stores, "flush", one_more)
    _, due = lookups.tick(1000.0)
    assert due < 2000.0, "nothing else tells of the one that came meanwhile"


def test_what_lay_at_the_socket_at_a_fault_is_read_after_it(
    still: Still, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        monkeypatch.undo()
        raise RuntimeError("a fault of ours")

    still.front._step()
    monkeypatch.setattr(still.front._sockets, "receive", fail)
    monkeypatch.setattr("npgxd.daemon.serving.front.FAULT_S", 0.0)
    still.front.begin()
    assert still.ask("hello", versions=[1])["op"] == "welcome"
    assert "a fault of ours" in caplog.text


def test_an_end_does_not_wait_for_a_disk_that_does_not_give_an_entry(
    hits: Still, parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, answers = threading.Event(), threading.Event()

    def hang(*_asked: object, **_more: object) -> None:
        stuck.set()
        assert answers.wait(PATIENCE_S)

    monkeypatch.setattr(parts.stores.artifacts, "glance", hang)
    hits.front.begin()
    hits.say("lookup", key=KEY)
    assert stuck.wait(PATIENCE_S)
    hits.front.end(limit_s=0.0)
    assert "the disk did not give" in caplog.text
    answers.set()
    hits.front._thread.join(PATIENCE_S)
    assert not hits.front.waiting, "the sockets, and what came, are the caller's"
    assert "internal error" not in caplog.text


def test_the_thread_reads_what_a_fault_of_the_loop_left_at_the_socket(still: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("a fault of ours")

    still.front._step()
    still.say("hello", versions=[1])
    assert still.front._sockets._router.poll(PATIENCE_S * 1000)
    monkeypatch.setattr(still.front._sockets, "receive", fail)
    with pytest.raises(RuntimeError):
        still.front.send(b"nobody", [b"x"])
    monkeypatch.undo()
    assert still.thread_is_woken
    still.front.begin()
    while not still.front.waiting:
        assert zmq.select([still.front.fileno()], [], [], PATIENCE_S)[0]
        still.front.hush()


def test_a_loop_that_gets_on_with_many_messages_is_left_alone(hits: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    hits.crowd()
    left = []

    def sleep(_seconds: float) -> None:
        left.append(len(hits.front._turns))
        assert hits.front.take() is not None
        hits.front.spent(0.0)

    monkeypatch.setattr("npgxd.daemon.serving.front.time.sleep", sleep)
    for _ in range(3):
        hits.front._turns.put(0, b"%d" % _, 1, None)  # type: ignore[arg-type]
    hits.front._nap()
    assert left == [MANY + 3, MANY + 2, MANY + 1, MANY]


def test_what_is_due_is_done_also_while_the_loop_is_left_alone(hits: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    hits.crowd()
    monkeypatch.setattr(hits.front._guard, "tick", lambda _now: ticked.append(1) or float("inf"))
    ticked: list[int] = []

    def sleep(_seconds: float) -> None:  # the loop gets on, and as many come
        hits.front._taken += 1

    monkeypatch.setattr("npgxd.daemon.serving.front.time.sleep", sleep)
    hits.front._nap()
    hits.front._step()
    assert ticked, "the memory, silent connections and the watchdog wait for it"
    assert len(hits.front._turns) >= MANY


def test_a_look_up_among_many_messages_does_not_wait_for_a_loop_that_does_not_get_on(hits: Still) -> None:
    hits.crowd()
    hits.say("lookup", key=KEY)
    assert hits.front._sockets._router.poll(PATIENCE_S * 1000)
    hits.front._nap()
    hits.front._step()
    assert hits.answers(1) == ["artifact"]
    assert len(hits.front._turns) == MANY


def test_a_look_up_that_comes_while_the_loop_is_left_alone_is_the_loops(hits: Still) -> None:
    hits.crowd()
    hits.front._naps = True
    hits.say("lookup", key=KEY)
    assert hits.front._sockets._router.poll(PATIENCE_S * 1000)
    hits.move()
    assert hits.answers(1) == ["artifact"]
