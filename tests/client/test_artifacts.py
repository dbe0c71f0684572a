"""The compile cache's client against a stand-in that does its worst: every call returns, and nothing waits past its deadline."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from npgxd.client import Client, Told
from npgxd.wire import artifact_messages as a
from npgxd.wire import messages as m
from npgxd.wire.codec import encode
from npgxd.wire.limits import ARTIFACT_PART_BYTES, MAX_ARTIFACT_BYTES
from npgxd.wire.states import ArtifactState
from tests.client.conftest import HASTY
from tests.client.fake_daemon import SILENT

KEY = hashlib.sha256(b"key").hexdigest()
DATA = random.Random(5).randbytes(2 * ARTIFACT_PART_BYTES + 17)
DIGEST = hashlib.sha256(DATA).hexdigest()
HIT = a.Artifact(key=KEY, state=ArtifactState.HIT, digest=DIGEST, size=len(DATA), publisher=7, proven=True)
MISS = a.Artifact(key=KEY, state=ArtifactState.MISS)
BUILDING = a.Artifact(key=KEY, state=ArtifactState.BUILDING, elapsed_s=2.5)
GONE = m.Refusal("UNKNOWN_ARTIFACT", "no such entry")


def part(number: int, data: bytes = DATA) -> bytes:
    return data[number * ARTIFACT_PART_BYTES : (number + 1) * ARTIFACT_PART_BYTES]


class Cache:
    """A script for the stand-in: ``answers`` to lookups, one after the other, the last one again and again."""

    def __init__(self, *answers: object, data: bytes = DATA) -> None:
        self.answers = list(answers)
        self.data = data
        self.taken: list[bytes] = []
        self.asked = threading.Event()

    def __call__(self, message: m.Message) -> object:
        if isinstance(message, a.Lookup):
            self.asked.set()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(answer, a.Artifact):
                frames = [part(0, self.data)] if answer.state is ArtifactState.HIT else []
                return replace(answer, ticket=message.ticket), frames
            return answer
        if isinstance(message, a.Fetch):
            return a.ArtifactPart(key=KEY, part=message.part), [part(message.part, self.data)]
        return None


def wait_for(condition, what: str) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_a_hit_is_put_together_from_its_parts(client, fake) -> None:
    fake(script=Cache(HIT))
    found = client.lookup(KEY, "Model.decode")
    assert (found.state, found.data, found.digest, found.proven, found.publisher) == (ArtifactState.HIT, DATA, DIGEST, True, 7)
    assert not found.builder


def test_a_miss_makes_this_process_the_builder_and_a_verdict_is_told(client, fake) -> None:
    fake(script=Cache(MISS, a.Artifact(key=KEY, state=ArtifactState.NOT_CACHEABLE, code="RNG", reason="dropout")))
    found = client.lookup(KEY)
    assert (found.builder, found.alone, found.data) == (True, False, None)
    found = client.lookup(KEY)
    assert (found.state, found.code, found.reason, found.builder) == (ArtifactState.NOT_CACHEABLE, "RNG", "dropout", False)


def test_labels_and_reasons_of_any_form_are_sent(client, fake) -> None:
    daemon = fake(script=Cache(MISS))
    assert client.lookup(KEY, "a" * 9000 + "\0\udc80").builder
    assert client.not_cacheable(KEY, "RNG", "\udc80" * 9000, label="\0")
    assert client.cache_note(KEY, "x" * 900, "MISFIT", "y" * 9000)
    assert len(daemon.asked(a.Lookup)[0].label) == 255


# ---- waiting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (replace(HIT, digest=None, size=0), (ArtifactState.HIT, False)),
        (replace(MISS, code="HANDED_ON"), (ArtifactState.MISS, False)),
        (a.Artifact(key=KEY, state=ArtifactState.NOT_CACHEABLE, code="RNG"), (ArtifactState.NOT_CACHEABLE, False)),
    ],
)
def test_a_wait_ends_with_what_became_of_the_build(client, fake, end, expected) -> None:
    script = Cache(BUILDING, HIT)
    daemon = fake(script=script)
    signs: list[float] = []

    def tell() -> None:
        script.asked.wait(60)
        ticket = daemon.asked(a.Lookup)[0].ticket
        daemon.events.append(replace(BUILDING, ticket=ticket, elapsed_s=3.5))
        wait_for(lambda: 3.5 in signs, "a sign of life is told")
        daemon.events.append(replace(end, ticket=ticket))

    thread = threading.Thread(target=tell)
    thread.start()
    found = client.lookup(KEY, deadline_s=60, on_wait=signs.append)
    thread.join()
    assert (found.state, found.alone) == expected
    assert found.waited_s > 0
    assert signs[0] == 2.5


def test_events_of_a_wait_that_was_given_up_are_not_taken_for_those_of_the_next(client, fake) -> None:
    script = Cache(BUILDING)
    daemon = fake(script=script)
    first = client.lookup(KEY, deadline_s=0.1)
    assert (first.alone, first.code) == (True, "DEADLINE")
    daemon.events.append(replace(MISS, ticket=daemon.asked(a.Lookup)[0].ticket))
    wait_for(lambda: not daemon.events, "it is sent")
    assert client.lookup(KEY, deadline_s=0.5).code == "DEADLINE"
    assert len(daemon.asked(a.Release)) == 2


def test_the_deadline_holds_when_the_builder_hangs_and_the_daemon_is_told_that_nobody_waits(client, fake) -> None:
    daemon = fake(script=Cache(BUILDING))
    found = client.lookup(KEY, deadline_s=0.3)
    assert (found.builder, found.alone, found.code) == (True, True, "DEADLINE")
    assert [request.key for request in daemon.asked(a.Release)] == [KEY]
    assert client.lookup(KEY, deadline_s=0).code == "BUILDING"


def test_a_dropped_event_is_made_good_by_asking_again(client, fake) -> None:
    fake(script=Cache(BUILDING, BUILDING, HIT))
    assert client.lookup(KEY, deadline_s=60).data == DATA


def test_a_fault_in_on_wait_does_not_end_the_wait(client, fake, caplog) -> None:
    fake(script=Cache(BUILDING, BUILDING, HIT))

    def fail(_elapsed_s: float) -> None:
        raise RuntimeError("a progress bar")

    assert client.lookup(KEY, deadline_s=60, on_wait=fail).data == DATA
    assert "on_wait failed" in caplog.text


# ---- trouble ---------------------------------------------------------------------------------------------------------


def test_fc71_without_a_daemon_everything_is_told_at_once(hasty) -> None:
    begun = time.monotonic()
    found = hasty.lookup(KEY)
    assert (found.builder, found.alone, found.code) == (True, True, "NO_DAEMON")
    assert not any((hasty.publish(KEY, b"x"), hasty.release(KEY), hasty.proven(KEY, DIGEST), hasty.bad_artifact(KEY, DIGEST, "")))
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("kind", [a.Lookup, a.Publish, a.Release, a.Fetch])
def test_fc71_silence_is_given_up_and_then_the_daemon_is_left_alone(hasty, fake, kind) -> None:
    cache = Cache(HIT)
    fake(script=lambda message: SILENT if isinstance(message, kind) else cache(message))
    told = [hasty.publish(KEY, b"x"), hasty.release(KEY), hasty.lookup(KEY)]
    assert isinstance(told[0], Told)
    assert told[2].alone or kind not in {a.Lookup, a.Fetch}
    found = hasty.lookup(KEY)
    assert (found.alone, found.code) == (True, "SILENT")


def test_silence_during_a_wait_ends_it(hasty, fake) -> None:
    script = Cache(BUILDING, SILENT)
    fake(script=script)
    found = hasty.lookup(KEY, deadline_s=600)
    assert (found.builder, found.alone, found.code) == (True, True, "SILENT")


@pytest.mark.parametrize(
    "answer",
    [
        [b"\xc1"],
        [],
        encode(m.Done(), 2),
        m.Done(),
        replace(HIT, key="0" * 64),
        replace(HIT, digest=None),
        replace(HIT, size=0),
        replace(HIT, size=MAX_ARTIFACT_BYTES + 1),
        replace(HIT, size=len(DATA) - 1),
        replace(HIT, digest="0" * 64),
        m.Refusal("INTERNAL", "the daemon failed"),
        m.Refusal("UNKNOWN_OP", "a daemon of before"),
    ],
    ids=str,
)
def test_fc71_whatever_a_daemon_answers_a_look_up_comes_to_build_alone(hasty, fake, answer) -> None:
    fake(script=Cache(answer))
    found = hasty.lookup(KEY)
    assert (found.builder, found.alone, found.data) == (True, True, None)


def test_bytes_that_are_not_those_of_the_digest_are_not_given_out(client, fake) -> None:
    fake(script=Cache(HIT, data=DATA[:-1] + b"?"))
    found = client.lookup(KEY)
    assert (found.state, found.data, found.alone) == (ArtifactState.MISS, None, True)


def test_an_entry_that_is_removed_while_it_is_fetched_is_looked_up_again(client, fake) -> None:
    cache, gone = Cache(HIT), [GONE]
    fake(script=lambda message: gone.pop() if isinstance(message, a.Fetch) and gone else cache(message))
    assert client.lookup(KEY).data == DATA


def test_a_refused_publication_is_told_with_its_reason(client, fake) -> None:
    fake(script=lambda message: m.Refusal("TOO_LARGE", "an entry of 9 MB") if isinstance(message, a.Publish) else None)
    told = client.publish(KEY, DATA)
    assert (told.ok, "an entry of 9 MB" in told.reason) == (False, True)


def test_an_entry_goes_in_parts_and_its_facts_are_made_to_fit(client, fake) -> None:
    def script(message: m.Message) -> object:
        if not isinstance(message, a.Publish):
            return None
        done = (message.part + 1) * ARTIFACT_PART_BYTES >= message.size
        return a.Published(key=KEY, digest=DIGEST) if done else a.PublishTaken(key=KEY, part=message.part)

    daemon = fake(script=script)
    assert client.publish(KEY, DATA, label="l" * 900, meta={str(number): "x" * 9000 for number in range(99)})
    sent = daemon.asked(a.Publish)
    assert [(each.part, each.size, each.digest) for each in sent] == [(number, len(DATA), DIGEST) for number in range(3)]
    assert {len(each.meta) for each in sent} == {32}


def test_a_look_up_after_the_daemon_was_restarted_finds_the_next_one(client, fake) -> None:
    fake(script=Cache(HIT)).stop()
    assert client.lookup(KEY).code == "NO_DAEMON"
    first = fake(script=Cache(HIT))
    assert client.lookup(KEY).data == DATA
    first.stop()
    fake(script=Cache(HIT))
    assert client.lookup(KEY).data == DATA


def test_a_wait_goes_on_with_the_daemon_that_comes_after_a_killed_one(client, fake) -> None:
    script = Cache(BUILDING)
    first = fake(script=script)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(client.lookup(KEY, deadline_s=60)))
    thread.start()
    script.asked.wait(60)
    first.stop()
    fake(script=Cache(HIT))
    thread.join()
    assert found[0].data == DATA  # type: ignore[attr-defined]


def test_a_forked_child_has_a_connection_of_its_own(client, fake) -> None:
    fake(script=Cache(HIT))
    assert client.lookup(KEY).data == DATA
    child = os.fork()
    if not child:
        os._exit(0 if client.lookup(KEY).data == DATA else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.lookup(KEY).data == DATA


def test_a_client_that_never_connects_costs_nothing_at_its_end(environ) -> None:
    threads, files = set(threading.enumerate()), set(Path("/proc/self/fd").iterdir())
    client = Client(environ, patience=HASTY)
    assert set(threading.enumerate()) <= threads
    assert set(Path("/proc/self/fd").iterdir()) <= files
    client.close()
