"""What the daemon does with messages of the compile cache, also with those that no honest client sends: refused clearly, nothing kept."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.config._sections import CacheSection
from npgxd.daemon.caching.cached import CachePage
from npgxd.daemon.caching.lookups import Lookups
from npgxd.daemon.caching.scopes import Scopes
from npgxd.daemon.keeping.stores import Stores
from npgxd.daemon.refusals import Refused
from npgxd.daemon.sessions import Sessions
from npgxd.errors import NpgxError, ProtocolError
from npgxd.wire import artifact_messages as m
from npgxd.wire.codec import encode
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.limits import ARTIFACT_PART_BYTES
from npgxd.wire.messages import Done, Hello
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npgxd.daemon.sessions import Session

KEY = hashlib.sha256(b"key").hexdigest()
DATA = os.urandom(ARTIFACT_PART_BYTES + 100)
DIGEST = hashlib.sha256(DATA).hexdigest()
FIRST, LAST = DATA[:ARTIFACT_PART_BYTES], DATA[ARTIFACT_PART_BYTES:]
HEAD = m.Publish(key=KEY, digest=DIGEST, size=len(DATA))
ME, OTHER, ROOT = PeerCredentials(os.getuid(), os.getgid(), 0), PeerCredentials(4711, 4711, 0), PeerCredentials(0, 0, 0)


@dataclass
class Desk:
    """The compile cache's part of a daemon."""

    stores: Stores
    sessions: Sessions
    lookups: Lookups

    def session(self, peer: PeerCredentials = ME) -> Session:
        return self.sessions.open(secrets.token_bytes(5), peer, Hello(versions=(1,)), 0.0)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    stores = Stores.open(tmp_path / "state")
    yield Desk(stores, Sessions(), Lookups(CacheSection(), 0, stores))
    stores.close()


def reply(desk: Desk, session: Session, message: Any, *frames: bytes) -> Any:
    """The reply to one request and its frames."""
    return desk.lookups.by_kind[type(message)](session, message, frames, 0.0)


def do(desk: Desk, session: Session, message: Any, *frames: bytes) -> Any:
    return reply(desk, session, message, *frames)[0]


def publish(desk: Desk, session: Session, data: bytes = b"bytes", key: str = KEY, **facts: Any) -> Any:
    return do(desk, session, m.Publish(key=key, digest=hashlib.sha256(data).hexdigest(), size=len(data), **facts), data)


def files(desk: Desk) -> list[Path]:
    state = desk.stores.state
    return [path for place in (state.path / "artifacts", state.staging) for path in place.rglob("*") if path.is_file()]


# ---- publishing ------------------------------------------------------------------------------------------------------


def test_parts_in_order_become_an_entry(desk: Desk) -> None:
    session = desk.session()
    assert do(desk, session, HEAD, FIRST) == m.PublishTaken(key=KEY, part=0)
    assert do(desk, session, replace(HEAD, part=1), LAST) == m.Published(key=KEY, digest=DIGEST)
    told, frames = reply(desk, session, m.Lookup(key=KEY, ticket=3))
    assert (told.state, told.digest, told.size, told.ticket, frames) == (ArtifactState.HIT, DIGEST, len(DATA), 3, [FIRST])
    told, frames = reply(desk, session, m.Fetch(key=KEY, digest=DIGEST, part=1))
    assert frames == [LAST]


@pytest.mark.parametrize(
    "sent",
    [
        [(replace(HEAD, part=1), LAST)],
        [(HEAD, FIRST), (replace(HEAD, part=2), LAST)],
        [(HEAD, FIRST), (replace(HEAD, part=1, digest="0" * 64), LAST)],
        [(HEAD, FIRST), (replace(HEAD, part=1, size=len(DATA) + 1), LAST)],
        [(HEAD, FIRST), (replace(HEAD, part=1), LAST[:-1])],
        [(HEAD, FIRST), (replace(HEAD, part=1), LAST + b"?")],
        [(HEAD, FIRST), (replace(HEAD, part=1), b"?" + LAST[1:])],
        [(HEAD, FIRST), (replace(HEAD, part=1),)],
        [(HEAD, FIRST), (replace(HEAD, part=1), LAST[:50], LAST[50:])],
        [(HEAD, FIRST[:-1])],
        [(HEAD, FIRST + b"?")],
        [(HEAD,)],
        [(replace(HEAD, size=100), FIRST)],
        [(HEAD, FIRST), (replace(HEAD, part=1), LAST[:-1]), (replace(HEAD, part=1), LAST)],
    ],
)
def test_anything_but_the_announced_bytes_in_order_is_refused_and_nothing_of_it_is_kept(desk: Desk, sent: list[Any]) -> None:
    session = desk.session()
    for message, *frames in sent[:-1]:
        try:
            do(desk, session, message, *frames)
        except ProtocolError:
            assert files(desk) == []
    message, *frames = sent[-1]
    with pytest.raises(ProtocolError):
        do(desk, session, message, *frames)
    assert files(desk) == []
    assert do(desk, session, m.Lookup(key=KEY)).state is ArtifactState.MISS
    do(desk, session, HEAD, FIRST)
    assert do(desk, session, replace(HEAD, part=1), LAST).digest == DIGEST


def test_an_unfinished_publication_goes_with_its_session(desk: Desk) -> None:
    session = desk.session()
    do(desk, session, HEAD, FIRST)
    assert len(files(desk)) == 1
    desk.lookups.end(session, 1.0)
    assert files(desk) == []


def test_one_process_publishes_few_entries_at_a_time(desk: Desk) -> None:
    session = desk.session()
    for number in range(2):
        do(desk, session, replace(HEAD, key=f"{number:064}"), FIRST)
    with pytest.raises(ProtocolError, match="2 entries are being published"):
        do(desk, session, HEAD, FIRST)
    assert do(desk, session, replace(HEAD, key=f"{0:064}", part=1), LAST).digest == DIGEST


def test_one_user_takes_only_so_much_of_the_disk_for_what_is_not_complete(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.daemon.caching.publications.MAX_OPEN_BYTES_PER_UID", 3 * len(DATA))
    for number in range(3):
        do(desk, desk.session(), replace(HEAD, key=f"{number:064}"), FIRST)
    with pytest.raises(ProtocolError, match="too many bytes"):
        do(desk, desk.session(), HEAD, FIRST)
    other = desk.session(OTHER)
    do(desk, other, HEAD, FIRST)
    assert do(desk, other, replace(HEAD, part=1), LAST).digest == DIGEST


def test_the_same_again_is_no_error_and_other_bytes_are_dropped_and_logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    first, second = desk.session(), desk.session()
    assert publish(desk, first, b"first") == publish(desk, second, b"first")
    assert "other bytes" not in caplog.text
    assert publish(desk, second, b"second").digest == hashlib.sha256(b"first").hexdigest()
    assert "other bytes" in caplog.text
    assert len(files(desk)) == 1


def test_two_that_publish_at_the_same_time_have_the_one_that_was_complete_first(desk: Desk) -> None:
    slow, quick = desk.session(), desk.session()
    do(desk, slow, HEAD, FIRST)
    publish(desk, quick, b"quick")
    assert do(desk, slow, replace(HEAD, part=1), LAST).digest == hashlib.sha256(b"quick").hexdigest()
    assert len(files(desk)) == 1


def test_a_full_disk_is_told_before_anything_is_taken_and_lets_the_others_build(desk: Desk) -> None:
    lookups = Lookups(CacheSection(), 2**62, desk.stores)
    builder, waiter = desk.session(), desk.session()
    for each in (builder, waiter):
        lookups.by_kind[m.Lookup](each, m.Lookup(key=KEY, wait_s=9), (), 0.0)
    with pytest.raises(Refused) as caught:
        lookups.by_kind[m.Publish](builder, HEAD, (FIRST,), 0.0)
    assert caught.value.refusal == "NO_SPACE"
    ((identity, event),) = lookups.tick(0.0)[0]
    assert (identity, event.state, event.code) == (waiter.identity, ArtifactState.NOT_CACHEABLE, "NO_SPACE")
    assert files(desk) == []


# ---- asking ----------------------------------------------------------------------------------------------------------


def test_a_part_that_is_not_there_or_of_other_bytes_is_refused(desk: Desk) -> None:
    session = desk.session()
    digest = publish(desk, session).digest
    with pytest.raises(ProtocolError):
        do(desk, session, m.Fetch(key=KEY, digest=digest, part=1))
    for message in (m.Fetch(key=KEY, digest="0" * 64, part=0), m.Fetch(key="0" * 64, digest=digest, part=0)):
        with pytest.raises(Refused) as caught:
            do(desk, session, message)
        assert caught.value.refusal == "UNKNOWN_ARTIFACT"


def test_a_damaged_entry_is_a_miss_and_is_set_aside(desk: Desk) -> None:
    session = desk.session()
    publish(desk, session)
    (path,) = files(desk)
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert do(desk, session, m.Lookup(key=KEY)).state is ArtifactState.MISS
    assert files(desk) == []
    assert len(list(desk.stores.state.quarantine.iterdir())) == 2
    publish(desk, session)
    assert do(desk, session, m.Lookup(key=KEY)).state is ArtifactState.HIT


def test_reports_about_what_is_not_there_change_nothing(desk: Desk) -> None:
    session = desk.session()
    publish(desk, session)
    for message in (
        m.Proven(key=KEY, digest="0" * 64),
        *[m.BadArtifact(key=KEY, digest="0" * 64, reason="no")] * 3,
        m.BadArtifact(key="0" * 64, digest="0" * 64, reason="no"),
        m.Proven(key="0" * 64, digest="0" * 64),
        m.Release(key="0" * 64),
    ):
        assert do(desk, session, message) == Done()
    told = do(desk, session, m.Lookup(key=KEY))
    assert (told.state, told.proven) == (ArtifactState.HIT, False)


# ---- whose it is -----------------------------------------------------------------------------------------------------


def test_fc58_what_one_user_published_is_another_users_miss(desk: Desk) -> None:
    mine, theirs = desk.session(), desk.session(OTHER)
    digest = publish(desk, mine).digest
    assert do(desk, theirs, m.Lookup(key=KEY)).state is ArtifactState.MISS
    with pytest.raises(Refused):
        do(desk, theirs, m.Fetch(key=KEY, digest=digest, part=0))
    assert publish(desk, theirs, b"theirs").digest == hashlib.sha256(b"theirs").hexdigest()
    assert do(desk, mine, m.Lookup(key=KEY)).digest == digest


def test_one_user_does_not_wait_for_another(desk: Desk) -> None:
    assert do(desk, desk.session(), m.Lookup(key=KEY, wait_s=9)).state is ArtifactState.MISS
    assert do(desk, desk.session(OTHER), m.Lookup(key=KEY, wait_s=9)).state is ArtifactState.MISS


def _proc(tmp_path: Path, **namespaces: str) -> Path:
    """A /proc in which these processes have these user namespaces."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("01234567-89ab\n")
    for pid, name in namespaces.items():
        (tmp_path / pid.strip("_") / "ns").mkdir(parents=True)
        (tmp_path / pid.strip("_") / "ns/user").symlink_to(name)
    return tmp_path


def test_a_scope_is_the_user_and_another_user_namespace_than_the_daemons(desk: Desk, tmp_path: Path) -> None:
    proc = _proc(tmp_path / "proc", self="user:[1]", _10="user:[1]", _11="user:[2]", _12="user:[2]")
    scopes = Scopes("namespace", (), proc=proc)

    def of(uid: int, pid: int) -> str:
        session = desk.session(PeerCredentials(uid, uid, 0))
        session.peer = PeerCredentials(uid, uid, pid)
        return scopes.of(session)

    assert of(1000, 10) == of(1000, 0) == of(1000, 99) == "1000"
    assert of(1000, 11) == of(1000, 12) == "1000/user:[2]@01234567"
    assert of(1001, 11) == "1001/user:[2]@01234567"
    scopes = Scopes("user", (), proc=proc)
    assert of(1000, 11) == "1000"


# ---- for people ------------------------------------------------------------------------------------------------------


def test_a_user_sees_what_is_theirs_and_an_administrator_all(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    page = CachePage(CacheSection(), desk.stores, desk.lookups)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    one, two = PeerCredentials(4000, 4000, 0), OTHER
    for peer, name in ((one, "one"), (two, "two")):
        session, key = desk.session(peer), hashlib.sha256(name.encode()).hexdigest()
        publish(desk, session, key=key, label=f"{name}.decode", meta={"torch": "2.13"})
        do(desk, session, m.CacheNote(key=key, label=name, outcome="MISFIT", reason="changed"))
        do(desk, session, m.NotCacheable(key="0" * 64, code="RNG", label=name))
        do(desk, session, m.Lookup(key="1" * 64, label=name))

    def seen(peer: PeerCredentials, match: str = "") -> list[list[str]]:
        told = page.document(peer, match, 0.0)
        return [[item["label"] for item in told[kind]] for kind in ("entries", "not_cacheable", "building", "notes")]

    assert seen(one) == [["one.decode"], ["one"], ["one"], ["one"]]
    assert [sorted(kind) for kind in seen(ROOT)] == [["one.decode", "two.decode"], *[["one", "two"]] * 3]
    assert seen(ROOT, hashlib.sha256(b"two").hexdigest()[:8]) == [["two.decode"], [], [], ["two"]]
    assert page.document(one, "", 0.0)["entries"][0]["meta"] == {"torch": "2.13"}


def test_the_document_is_whole_json_in_one_message_whatever_clients_say(desk: Desk) -> None:
    session, wide = desk.session(), "\N{GRINNING FACE}"
    for number in range(300):
        key = f"{number:064}"
        do(desk, session, m.CacheNote(key=key, outcome="X", reason=wide * 4000, label=wide * 255))
        do(desk, session, m.Lookup(key=key[::-1], label=wide * 255))
    with desk.stores.catalog.transaction() as db:
        told = [(f"{n:064}", KEY, "0", 0, wide * 255, "X", wide * 4000, 1.0) for n in range(300)]
        db.executemany("INSERT INTO artifact_verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", told)
    desk.stores.artifacts.rows.add(
        [
            replace(row, id=f"{n:064}", label=wide * 255, bad_reason=wide * 4000)
            for row in [_row(desk, session)]
            for n in range(1200)
        ]
    )
    frames = CachePage(CacheSection(), desk.stores, desk.lookups).frames(ROOT, "", 0.0)
    encode(m.CacheDocument(schema=1), 1, frames)
    shown = json.loads(b"".join(frames))
    assert (len(shown["entries"]), shown["entries_total"], shown["not_cacheable_total"]) == (1000, 1201, 300)
    assert (len(shown["not_cacheable"]), len(shown["building"]), len(shown["notes"])) == (200, 200, 200)


def _row(desk: Desk, session: Session) -> Any:
    publish(desk, session)
    return desk.stores.artifacts.rows.all()[0]


def test_garbage_in_any_field_is_a_refusal_and_never_more(desk: Desk) -> None:
    session = desk.session()
    for kind in (m.Lookup, m.Fetch, m.Publish, m.NotCacheable, m.Release, m.Proven, m.BadArtifact, m.CacheNote):
        good = {"key": KEY, "digest": DIGEST, "size": 5, "part": 0, "code": "X", "label": "l", "outcome": "X"}
        for field, values in {
            "key": ["../../etc/passwd", "A" * 64, "", 5, None, "0" * 63],
            "digest": ["..", "0" * 65, None],
            "size": [-1, 0, 2**60, True, "5"],
            "part": [-1, 2**31, "0"],
            "code": ["a b", "", "\0", "x" * 65],
            "outcome": ["a/b", 3],
            "meta": [{"a": 5}, {"": "x"}, {"x" * 65: "y"}, {str(n): "" for n in range(33)}, {"a": "x" * 1025}],
            "wait_s": [-1, float("nan"), 1e9, "1"],
        }.items():
            if field not in kind.FIELD_NAMES:
                continue
            for value in values:
                with pytest.raises(NpgxError):
                    do(desk, session, kind.parse({**good, field: value}))
    assert files(desk) == []
