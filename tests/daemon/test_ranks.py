"""The sockets of ranks without the loop around them: what is answered by whom, and whether anything else has to be looked at for it."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import pytest
import zmq

from npgxd.daemon.serving.memory_guard import MemoryGuard
from tests.daemon.talking import DATA, KEY, LARGE, PATIENCE_S, Talk, talking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Parts


@pytest.fixture
def talk(parts: Parts) -> Iterator[Talk]:
    with talking(parts, Talk) as talk:
        talk.front.begin()
        yield talk


def test_only_what_is_given_out_of_the_cache_is_no_reason_to_look_at_everything_else(talk: Talk) -> None:
    assert talk.ask("hello", versions=[1])["op"] == "welcome"
    assert talk.changed
    assert talk.ask("lookup", key=KEY)["state"] == "MISS"
    assert talk.changed, "others may wait for its builder now"
    digest = talk.publish(KEY, LARGE)
    assert talk.changed
    assert talk.ask("lookup", key=KEY)["state"] == "HIT"
    assert (talk.changed, talk.turns) == (False, 1)
    assert talk.ask("nothing")["op"] == "refusal"
    assert talk.changed
    assert talk.ask("fetch", key=KEY, digest=digest, part=0)["op"] == "artifact_part"
    assert not talk.changed


def test_what_the_loop_has_read_before_is_given_out_while_it_stands_still(talk: Talk, parts: Parts) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    talk.ask("hello", versions=[1])
    digest = talk.publish(KEY, DATA)
    large = talk.publish(other, LARGE)
    by_the_loop = []
    for key in (KEY, other):
        talk.say("lookup", key=key, ticket=7)
        while not talk.client.poll(0):
            zmq.select([talk.front.fileno(), talk.client], [], [], PATIENCE_S)
            talk.move()
        by_the_loop.append(talk.told())
    before = parts.stores.artifact_counters()["hits"]
    assert [talk.quickly("lookup", key=key, ticket=7) for key in (KEY, other)] == by_the_loop
    assert talk.quickly("fetch", key=other, digest=large, part=0)[1] == (LARGE,)
    assert talk.quickly("fetch", key=KEY, digest=digest, part=0)[1] == (DATA,)
    talk.changed = False
    talk.move()
    assert talk.changed, "the uses are to be counted"
    assert parts.stores.artifact_counters()["hits"] == before + 2
    assert [row.key for row in parts.stores.artifacts.rows.oldest(2)] == [KEY, other]
    talk.quickly("lookup", key=KEY)
    assert [row.key for row in parts.stores.artifacts.rows.oldest(2)] == [other, KEY], "the last use is known where it counts"


def test_what_is_not_plainly_there_is_the_loops(talk: Talk, parts: Parts) -> None:
    assert talk.ask("lookup", key=KEY)["code"] == "NEED_HELLO"
    talk.ask("hello", versions=[1])
    digest = talk.publish(KEY, DATA)
    row = parts.stores.artifacts.rows.all()[0]
    assert talk.ask("lookup", key=KEY)["state"] == "HIT"
    assert talk.ask("lookup", key="not a key")["op"] == "refusal"
    assert talk.ask("fetch", key=KEY, digest="0" * 64, part=0)["code"] == "UNKNOWN_ARTIFACT"
    assert talk.ask("fetch", key=KEY, digest=digest, part=1)["op"] == "refusal"
    for asked in range(3):
        assert talk.ask("bad_artifact", key=KEY, digest=digest, reason="no")["op"] == "done"
        assert talk.ask("lookup", key=KEY)["state"] == ("HIT" if not asked else "MISS")
        assert talk.turns == 1, "what was doubted is read again"
    assert not parts.stores.artifacts.path(row.id).exists()


def test_an_entry_that_was_removed_is_not_given_out_and_what_replaces_it_is(talk: Talk, parts: Parts) -> None:
    talk.ask("hello", versions=[1])
    talk.publish(KEY, DATA)
    talk.ask("lookup", key=KEY)
    parts.stores.artifacts.remove([row.id for row in parts.stores.artifacts.rows.all()])
    assert talk.ask("lookup", key=KEY)["state"] == "MISS"
    digest = talk.publish(KEY, LARGE)
    assert talk.ask("lookup", key=KEY)["digest"] == digest
    header, frames = talk.quickly("lookup", key=KEY)
    assert (header["digest"], frames) == (digest, (LARGE,))


def test_a_file_that_was_changed_behind_the_daemon_is_not_given_out(talk: Talk, parts: Parts) -> None:
    talk.ask("hello", versions=[1])
    talk.publish(KEY, LARGE)
    talk.ask("lookup", key=KEY)
    path = parts.stores.artifacts.path(parts.stores.artifacts.rows.all()[0].id)
    with path.open("r+b") as file:
        file.write(b"LARGE")
    assert talk.ask("lookup", key=KEY)["state"] == "MISS"
    assert talk.turns == 1


def test_a_connection_is_answered_in_the_order_in_which_it_asks(talk: Talk) -> None:
    talk.ask("hello", versions=[1])
    talk.publish(KEY, DATA)
    talk.ask("lookup", key=KEY)
    second = talk.connect()
    first, talk.client = talk.client, second
    talk.ask("hello", versions=[1])
    talk.client = first
    talk.say("cache_note", key=KEY, label="it", outcome="hit")
    talk.say("lookup", key=KEY)
    talk.client = second
    assert talk.quickly("lookup", key=KEY)[0]["state"] == "HIT"
    assert not first.poll(0), "its look-up came after something that is the loop's"
    talk.client = first
    answers = []
    while len(answers) < 2:
        zmq.select([talk.front.fileno(), talk.client], [], [], PATIENCE_S)
        talk.move()
        while talk.client.poll(0):
            answers.append(talk.told()[0]["op"])
    assert answers == ["done", "artifact"]


def test_a_connection_that_closed_meanwhile_is_noticed_by_the_loop(talk: Talk, parts: Parts) -> None:
    talk.ask("hello", versions=[1])
    first = talk.client
    talk.client = talk.connect()
    talk.ask("hello", versions=[1])
    assert len(parts.sessions) == 2
    first.close(linger=0)
    talk.changed = False
    while len(parts.sessions) == 2:
        assert zmq.select([talk.front.fileno()], [], [], PATIENCE_S)[0]
        talk.move()
    assert talk.changed


def test_an_answer_that_reaches_nobody_ends_its_session(talk: Talk, parts: Parts) -> None:
    gone = talk.connect()
    stays, talk.client = talk.client, gone
    talk.say("hello", versions=[1])
    assert zmq.select([talk.front.fileno()], [], [], PATIENCE_S)[0]
    gone.close(linger=0)
    talk.client = stays
    while parts.sessions or not talk.turns:  # it may have been answered before or after its end was noticed
        assert zmq.select([talk.front.fileno()], [], [], PATIENCE_S)[0]
        talk.move()
    assert talk.ask("hello", versions=[1])["op"] == "welcome"
    (session,) = parts.sessions
    while session.connection < 0:
        assert zmq.select([talk.front.fileno()], [], [], PATIENCE_S)[0]
        talk.move()


def test_the_thread_says_whether_it_lives(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.ask("hello", versions=[1])
    assert talk.front.lives()
    while not talk.front.lives():
        talk.ask("status")
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(talk.front, "_serve", hang)
    talk.say("status")
    assert stuck.wait(PATIENCE_S)
    talk.front.lives()  # of what was done before
    assert not talk.front.lives()
    monkeypatch.undo()
    go_on.set()
    while not talk.front.lives():
        talk.ask("status")


def test_a_fault_at_the_socket_is_logged_and_ranks_are_answered_after_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    talk.ask("hello", versions=[1])
    monkeypatch.setattr("npgxd.daemon.serving.front.FAULT_S", 0.0)
    failed = threading.Event()

    def fail() -> None:
        monkeypatch.undo()
        failed.set()
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(talk.front, "_serve", fail)
    talk.ask("status")
    assert failed.wait(PATIENCE_S)
    assert talk.ask("status")["op"] == "status_document"
    assert "internal error at the ranks' socket" in caplog.text


def test_memory_is_looked_after_as_often_as_its_guard_says(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryGuard, "tick", lambda _guard, now: now + 0.25)
    talk.front._step()
    assert talk.front._due == 0.25
