from __future__ import annotations

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import StoreError
from npgxd.oplib.checking import Findings, Problem
from npgxd.oplib.checking_artifacts import check_artifacts
from npgxd.store.artifact_file import artifact_id, read_facts
from npgxd.store.artifact_memory import MAX_NOTES, Note, Verdict
from npgxd.wire.limits import ARTIFACT_PART_BYTES
from tests.store.made import House, digest, names, no_descriptors, refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npgxd.store.artifact_rows import ArtifactRow

KEY = digest("key")
LARGE = os.urandom(ARTIFACT_PART_BYTES) + b"the last part"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "state", tmp_path / "scratch")
    yield made
    made.close()


def publish(house: House, data: bytes, *, key: str = KEY, scope: str = "1000", at: float = 5.0) -> ArtifactRow:
    store = house.artifacts
    staged = store.stage()
    for start in range(0, len(data), ARTIFACT_PART_BYTES):
        store.extend(staged, data[start : start + ARTIFACT_PART_BYTES])
    uid = int(scope.partition("/")[0])
    return store.publish(staged, key=key, scope=scope, uid=uid, label="Model.decode", meta={"torch": "2.13"}, made_at=at)


def content(house: House, *, key: str = KEY, scope: str = "1000") -> bytes | None:
    row = house.artifacts.find(scope, key)
    if row is None:
        return None
    facts = house.artifacts.facts(row)
    return b"".join(house.artifacts.read(row, part) for part in range(len(facts.parts)))


@pytest.mark.parametrize("data", [b"x", b"y" * ARTIFACT_PART_BYTES, LARGE], ids=["small", "one part", "two parts"])
def test_an_entry_is_found_as_it_was_published_also_after_a_restart_and_without_the_catalog(house: House, data: bytes) -> None:
    row = publish(house, data)
    assert (row.digest, row.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert content(house) == data
    house.reopen()
    assert content(house) == data
    house.close()
    house.state.catalog.unlink()
    house.open()
    assert house.artifacts.reconcile() == (1, 0)
    assert content(house) == data
    found = house.artifacts.find("1000", KEY)
    assert found is not None
    assert replace(found, used=0) == replace(row, used=0)


def test_fc58_an_entry_is_never_seen_with_another_mode_than_0600_below_directories_of_0700(house: House) -> None:
    before = os.umask(0)
    try:
        row = publish(house, LARGE)
    finally:
        os.umask(before)
    path = house.artifacts.path(row.id)
    assert [place.stat().st_mode & 0o7777 for place in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    assert names(house.state.staging) == []


def test_what_one_scope_published_is_not_found_by_another(house: House) -> None:
    publish(house, b"mine")
    publish(house, b"container's", scope="1000/user:[42]@boot")
    assert content(house) == b"mine"
    assert content(house, scope="1001") is None
    assert content(house, scope="1000/user:[42]@boot") == b"container's"


def test_the_first_complete_entry_of_a_key_counts(house: House) -> None:
    first = publish(house, b"first")
    assert publish(house, b"second").digest == first.digest
    assert content(house) == b"first"
    assert names(house.state.staging) == []


@pytest.mark.parametrize("where", ["bytes", "later part", "facts", "seal", "half", "empty", "link", "another's"])
def test_a_damaged_entry_is_set_aside_with_its_reason_and_its_neighbour_stays(house: House, where: str, tmp_path: Path) -> None:
    row = publish(house, LARGE)
    publish(house, b"neighbour", key=digest("other"))
    path = house.artifacts.path(row.id)
    raw = bytearray(path.read_bytes())
    at = {"bytes": 7, "later part": ARTIFACT_PART_BYTES + 1, "facts": len(LARGE) + 30, "seal": len(raw) - 10}.get(where)
    if at is not None:
        raw[at] ^= 1
    cut = {"half": len(raw) // 2, "empty": 0}.get(where, len(raw))
    path.unlink()
    path.write_bytes(raw[:cut])
    if where == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    if where == "another's":
        path.write_bytes(house.artifacts.path(artifact_id("1000", digest("other"))).read_bytes())
    house.reopen()
    with pytest.raises(StoreError):
        content(house)
    assert house.artifacts.find("1000", KEY) is None
    assert content(house, key=digest("other")) == b"neighbour"
    aside = names(house.state.quarantine)
    assert len(aside) == 2
    assert "compile-cache entry" in (house.state.quarantine / aside[1]).read_text()


def test_an_entry_that_the_disk_cannot_give_is_set_aside_and_not_given_at_a_glance(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_asked: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    row = publish(house, LARGE)
    assert content(house) == LARGE
    monkeypatch.setattr(os, "pread", fail)
    assert house.artifacts.glance(row.id, 1, used=False) is None
    with pytest.raises(StoreError, match="cannot read"):
        house.artifacts.read(row, 1)
    monkeypatch.undo()
    assert house.artifacts.find("1000", KEY) is None


def test_an_entry_that_there_is_no_descriptor_for_stays(house: House) -> None:
    row = publish(house, LARGE)
    for _ in range(2):  # also one of which nothing was read before
        with no_descriptors(), pytest.raises(StoreError, match="Too many open files"):
            content(house)
        assert content(house) == LARGE
    house.artifacts.rows.remove([row.id])
    with refused("/artifacts/"):
        for look in (house.artifacts.reconcile, lambda: publish(house, b"another")):
            with pytest.raises(StoreError, match="Too many open files"):
                look()
    assert house.artifacts.reconcile() == (1, 0)
    assert content(house) == LARGE
    assert not names(house.state.quarantine)


def test_entries_that_the_disk_does_not_let_go_stay_listed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [publish(house, name.encode(), key=digest(name)) for name in "abc"]

    def refuse(operation: str, path: Path) -> None:
        if operation == "unlink" and path.name == rows[1].id:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(house.state.disk, "step", refuse)
        with pytest.raises(StoreError, match="Input/output error"):
            house.artifacts.remove([row.id for row in rows])
    assert house.artifacts.rows.ids() == {rows[1].id, rows[2].id}
    assert content(house, key=digest("b")) == b"b"
    house.artifacts.remove(house.artifacts.rows.ids())
    assert list(house.artifacts.files()) == []


@pytest.mark.parametrize("noted", [False, True], ids=["when it is needed", "before"])
def test_what_was_used_last_is_kept_in_memory_also_where_another_thread_used_it(
    house: House, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    monkeypatch.setattr("npgxd.store.artifacts._RECENT", 3)

    def at_hand(*asked: str) -> set[str]:
        return {name for name in asked if house.artifacts.glance(rows[name].id, 0, used=False) is not None}

    rows = {name: publish(house, name.encode(), key=digest(name)) for name in "abcdef"}
    for name in "abc":
        assert content(house, key=digest(name)) == name.encode()
    with ThreadPoolExecutor(1) as another:
        for name in "ab":
            assert another.submit(house.artifacts.glance, rows[name].id, 0, used=True).result() is not None
    if noted:
        house.artifacts.flush()
    content(house, key=digest("d"))
    assert at_hand(*rows) == {"a", "b", "d"}
    content(house, key=digest("a"))
    content(house, key=digest("e"))
    assert at_hand(*rows) == {"a", "d", "e"}
    for name in "ade":
        assert house.artifacts.glance(rows[name].id, 0, used=True) is not None
    content(house, key=digest("f"))
    assert at_hand(*rows) == {"d", "e", "f"}, "also where all others were used meanwhile"


def test_it_is_known_that_an_entry_is_being_read_also_at_a_glance(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    acts, pread = [], os.pread

    def note(*asked: int) -> bytes:
        acts.append(house.state.disk.under_way.longest())
        return pread(*asked)

    row = publish(house, LARGE)
    content(house)
    monkeypatch.setattr(os, "pread", note)
    house.artifacts.read(row, 1)
    assert house.artifacts.glance(row.id, 1, used=False) is not None
    assert [(act.operation, act.path) for act in acts if act] == [("read", house.artifacts.path(row.id))] * 2


@pytest.mark.parametrize(("answer", "given"), [(BlockingIOError(), False), (10, False), (OSError(errno.EOPNOTSUPP, "no"), True)])
def test_nobody_waits_for_the_disk_at_a_glance(
    house: House, monkeypatch: pytest.MonkeyPatch, answer: OSError | int, given: bool
) -> None:
    def preadv(*_asked: object) -> int:
        if isinstance(answer, OSError):
            raise answer
        return answer

    row = publish(house, LARGE)
    content(house)
    for part in range(2):
        found = house.artifacts.glance(row.id, part, used=False)
        assert found is not None
        assert found[1] == LARGE[part * ARTIFACT_PART_BYTES :][:ARTIFACT_PART_BYTES]
    monkeypatch.setattr(os, "preadv", preadv)
    assert (house.artifacts.glance(row.id, 0, used=False) is not None) is given
    assert house.artifacts.read(row, 0) == LARGE[:ARTIFACT_PART_BYTES], "who may wait is given it"


def test_verify_finds_what_is_damaged_unlisted_or_gone_and_mends_it(house: House) -> None:
    rows = {name: publish(house, name.encode(), key=digest(name)) for name in ("good", "damaged", "unlisted", "gone")}
    house.artifacts.path(rows["damaged"].id).write_bytes(b"junk")
    house.artifacts.rows.remove([rows["unlisted"].id])
    house.artifacts.path(rows["gone"].id).unlink()

    def look() -> set[tuple[str, str]]:
        found = Findings(repair=True)

        def add(found: Findings, kind: str, name: str, detail: str, remedy: str, mend) -> None:
            mend()
            found.problems.append(Problem(kind, name, detail, remedy))

        list(check_artifacts(house.artifacts, found, add))
        return {(problem.kind, problem.name) for problem in found.problems}

    expected = {("artifact_damaged", "damaged"), ("artifact_unlisted", "unlisted"), ("row_stale", "gone")}
    assert look() == {(kind, rows[name].id) for kind, name in expected}
    assert look() == set()
    assert content(house, key=digest("good")) == b"good"
    assert content(house, key=digest("unlisted")) == b"unlisted"
    assert content(house, key=digest("damaged")) is None


def test_the_last_use_decides_what_is_oldest_also_after_a_restart(house: House) -> None:
    rows = [publish(house, name.encode(), key=digest(name)) for name in ("a", "b", "c")]
    content(house, key=digest("a"))
    house.artifacts.flush()
    house.reopen()
    assert [row.id for row in house.artifacts.rows.oldest(2)] == [rows[1].id, rows[2].id]
    assert [row.id for row in house.artifacts.rows.all()] == [rows[0].id, rows[2].id, rows[1].id]


def test_a_file_that_is_no_entry_is_set_aside_at_the_start(house: House) -> None:
    row = publish(house, b"x")
    stranger = house.artifacts.path(row.id).parent / (row.id[:2] + "0" * 62)
    stranger.write_bytes(b"#!/bin/sh\n")
    assert house.artifacts.reconcile() == (0, 0)
    assert not stranger.exists()
    assert content(house) == b"x"


def test_reports_are_counted_the_first_reason_is_kept_and_proof_is_kept(house: House) -> None:
    row = publish(house, b"x")
    rows = house.artifacts.rows
    assert (rows.blame(row.id, "first"), rows.blame(row.id, "second")) == (1, 2)
    rows.prove(row.id)
    house.reopen()
    found = house.artifacts.find("1000", KEY)
    assert found is not None
    assert (found.bad, found.bad_reason, found.proven) == (2, "first", True)


def test_verdicts_and_notes_survive_a_restart_and_are_bounded_for_each_user(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npgxd.store.artifact_memory.MAX_VERDICTS", 3)
    memory = house.artifacts.memory
    for number in range(5):
        memory.remember(Verdict(str(number), KEY, "1", 1, "l", "RNG", "dropout", float(number)))
    memory.remember(Verdict("other", KEY, "2", 2, "l", "RNG", "dropout", 0.0))
    for number in range(MAX_NOTES + 5):
        memory.note(Note(KEY, 1, "l", "MISFIT", str(number), 1.0))
        if number % 100 == 0:
            memory.flush()
    memory.flush()
    house.reopen()
    memory = house.artifacts.memory
    assert {verdict.id for verdict in memory.verdicts()} == {"4", "3", "2", "other"}
    assert [note.reason for note in memory.notes()] == [str(number) for number in reversed(range(5, MAX_NOTES + 5))]
    assert memory.forget(["4", "4711"]) == 1
    assert memory.verdict("4") is None


def test_the_seal_says_what_the_documents_say(house: House) -> None:
    row = publish(house, b"bytes")
    raw = house.artifacts.path(row.id).read_bytes()
    assert raw.startswith(b"bytes{")
    told, seal = raw[5:-92], raw[-92:]
    assert seal == b"\nnpgxd-artifact 1 %08d %s\n" % (len(told), hashlib.sha256(told).hexdigest().encode())
    assert read_facts(house.artifacts.path(row.id)).meta == {"torch": "2.13"}


def test_an_entry_in_the_place_of_a_damaged_one_that_nobody_lists_is_published(house: House) -> None:
    row = publish(house, b"first")
    house.artifacts.rows.remove([row.id])
    house.artifacts.path(row.id).write_bytes(b"junk")
    assert publish(house, b"second").digest == hashlib.sha256(b"second").hexdigest()
    assert content(house) == b"second"
    assert len(names(house.state.quarantine)) == 2


def test_what_is_kept_in_memory_goes_with_the_entry(house: House) -> None:
    row = publish(house, b"first")
    assert content(house) == b"first"
    house.artifacts.remove([row.id])
    assert content(house) is None
    publish(house, b"second")
    assert content(house) == b"second"
    house.artifacts.set_aside(row.id, "no good")
    assert content(house) is None
