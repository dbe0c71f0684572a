from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import StoreError
from npgxd.store.disk import Disk
from npgxd.store.plain import read_plain
from npgxd.store.staging import stage_kernel
from tests.store.made import digest, files, making, names, origin

if TYPE_CHECKING:
    from pathlib import Path

    from tests.store.made import House


def object_of(house: House, kernel: str) -> Path:
    return next(house.kernels.directory(kernel).glob("*.o"))


def test_a_published_kernel_is_found_by_its_key(house: House) -> None:
    manifest = house.publish("a", b"bytes")
    assert house.kernels.find(digest("a")) == manifest
    assert house.kernels.find(digest("b")) is None
    assert set(house.kernels.find_many([digest("a"), digest("b")])) == {digest("a")}
    assert object_of(house, manifest.id).read_bytes() == b"bytesd0"
    assert house.kernels.get(manifest.id) == manifest
    assert house.kernels.verify(manifest.id) == manifest
    assert house.kernels.count() == 1
    assert manifest.key == digest("a")
    assert manifest.package == digest("package")
    assert manifest.size == house.catalog.kernel_bytes()
    assert names(house.state.staging) == []


def test_fc14_scratch_deleted_and_the_state_directory_moved_everything_is_still_there(house: House, tmp_path: Path) -> None:
    wanted = {digest(f"op{n}"): house.publish(f"op{n}").id for n in range(20)}
    shutil.rmtree(house.scratch)
    house.close()
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    house.path = tmp_path / "link"
    house.open()
    assert {key: manifest.id for key, manifest in house.kernels.find_many(list(wanted)).items()} == wanted
    for kernel in wanted.values():
        house.kernels.verify(kernel)


def test_fc58_served_files_are_readable_whatever_the_umask_was(house: House) -> None:
    old = os.umask(0o077)
    try:
        manifest = house.publish("a")
    finally:
        os.umask(old)
    directory = house.kernels.directory(manifest.id)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o644}


def test_fc09_two_results_for_one_key_are_two_kernels_and_the_newest_answers(house: House) -> None:
    first = house.publish("a", b"A")
    second = house.publish("a", b"B")
    assert first.id != second.id
    assert house.kernels.find(digest("a")) == second
    assert object_of(house, first.id).read_bytes() == b"Ad0"
    again = house.publish("a", b"A")
    assert again.id == first.id
    assert again.making.sequence > second.making.sequence
    assert house.kernels.find(digest("a")) == again
    assert house.kernels.count() == 2


def test_a_lost_catalog_picks_the_same_kernel_whatever_the_clock_said(house: House) -> None:
    house.publish("a", b"A")
    house.publish("a", b"B")
    newest = house.publish("a", b"A")
    for name in ("", "-wal", "-shm"):
        (house.path / f"catalog.sqlite{name}").unlink(missing_ok=True)
    house.reopen()
    assert house.catalog.was_rebuilt
    found = house.kernels.find(digest("a"))
    assert found == newest
    assert house.publish("a", b"B").making.sequence > newest.making.sequence


def test_a_kernel_that_a_crash_left_unlisted_is_adopted(house: House) -> None:
    known = house.publish("known")
    manifest = house.publish("a")
    house.catalog.drop_kernel(manifest.id)
    assert house.kernels.find(digest("a")) is None
    done = house.kernels.reconcile()
    assert (done.adopted, done.forgotten, done.problems) == (1, 0, ())
    assert house.kernels.find(digest("a")) == manifest
    assert house.kernels.find(digest("known")) == known
    assert house.kernels.reconcile().adopted == 0


def test_a_kernel_that_somebody_removed_is_forgotten(house: House) -> None:
    manifest = house.publish("a")
    shutil.rmtree(house.kernels.directory(manifest.id))
    assert house.kernels.reconcile().forgotten == 1
    assert house.kernels.find(digest("a")) is None
    assert house.kernels.count() == 0
    manifest = house.publish("b")
    assert house.kernels.find(digest("b")) == manifest
    shutil.rmtree(house.kernels.directory(manifest.id))
    assert house.kernels.find(digest("b")) is None
    with pytest.raises(StoreError, match="gone or damaged"):
        house.kernels.get(manifest.id)


def test_what_is_no_kernel_is_set_aside_and_named(house: House) -> None:
    manifest = house.publish("a")
    shelf = house.kernels.directory(manifest.id).parent
    (shelf / f"{shelf.name}garbage").mkdir()
    stolen = shelf / (shelf.name + manifest.id[2:][::-1])
    shutil.copytree(house.kernels.directory(manifest.id), stolen)
    done = house.kernels.reconcile()
    assert len(done.problems) == 2
    assert [path.name for path in shelf.iterdir()] == [manifest.id]
    assert house.kernels.find(digest("a")) == manifest


@pytest.mark.parametrize("damage", ["bytes", "truncated", "missing", "link", "manifest", "other"])
def test_fc07_a_damaged_kernel_is_set_aside_and_compiled_again(house: House, damage: str) -> None:
    manifest = house.publish("a", b"good")
    house.reopen()
    path = object_of(house, manifest.id)
    if damage == "bytes":
        path.write_bytes(b"evil" + path.read_bytes()[4:])
    elif damage == "truncated":
        path.write_bytes(b"")
    elif damage == "missing":
        path.unlink()
    elif damage == "link":
        copy = path.rename(house.path / "copy")
        path.symlink_to(copy)
    elif damage == "manifest":
        (path.parent / "manifest.json").write_text("{")
    else:
        other = house.publish("other")
        shutil.copy(house.kernels.directory(other.id) / "manifest.json", path.parent / "manifest.json")
    with pytest.raises(StoreError):
        house.kernels.verify(manifest.id)
    assert house.kernels.find(digest("a")) is None
    reasons = [path.read_text() for path in house.state.quarantine.glob("*.reason")]
    assert len(reasons) == 1
    again = house.publish("a", b"good")
    assert again.id == manifest.id
    assert house.kernels.find(digest("a")) == again
    assert house.kernels.verify(manifest.id) == again


def test_an_older_kernel_answers_again_when_the_newest_is_damaged(house: House) -> None:
    older = house.publish("a", b"A")
    newest = house.publish("a", b"B")
    house.reopen()
    object_of(house, newest.id).write_bytes(b"damaged")
    assert house.kernels.find(digest("a")) == older


def test_a_kernel_published_again_mends_one_that_was_damaged_meanwhile(house: House) -> None:
    manifest = house.publish("a", b"good")
    object_of(house, manifest.id).write_bytes(b"damaged")
    house.publish("a", b"good")
    assert house.kernels.verify(manifest.id).key == digest("a")


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "missing"])
def test_adoption_of_compiler_output_takes_plain_files_only(house: House, tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_bytes(b"root's secret")
    made = files(tmp_path / "out", "a", b"x")
    path = made[0].object
    path.unlink()
    {
        "link": lambda: path.symlink_to(tmp_path / "secret"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "missing": lambda: None,
    }[kind]()
    with pytest.raises(StoreError):
        stage_kernel(house.state.staging / "k", origin("a"), making(), made)
    assert house.kernels.find(digest("a")) is None


def test_adoption_follows_no_directory_out_of_the_tree(house: House, tmp_path: Path) -> None:
    made = files(tmp_path / "outside", "a", b"x")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "sub").symlink_to(tmp_path / "outside")
    inside = tmp_path / "tree" / "sub"
    odd = type(made[0])(made[0].entry, inside / made[0].object.name, inside / made[0].description.name, tmp_path / "tree")
    with pytest.raises(StoreError):
        stage_kernel(house.state.staging / "k", origin("a"), making(), [odd])


def test_a_staged_kernel_is_on_the_disk_before_it_is_published(house: House, tmp_path: Path) -> None:
    acts: list[tuple[str, Path]] = []

    class Watching(Disk):
        def step(self, operation: str, path: Path) -> None:
            acts.append((operation, path))

    target = house.state.staging / "k"
    manifest = stage_kernel(target, origin("a"), making(), files(tmp_path / "out", "a", b"x"), disk=Watching())
    for member in manifest.members:
        assert acts.index(("write", target / member.name)) < acts.index(("fsync", target / member.name))
    assert ("fsync", target / "manifest.json") in acts
    assert ("fsync", target) in acts
    acts.clear()
    house.state.disk = Watching()
    house.kernels.publish([target])
    final = house.kernels.directory(manifest.id)
    order = [
        ("write", target / "manifest.json"),
        ("fsync", target / "manifest.json"),
        ("rename", final),
        ("fsync", final.parent),
    ]
    assert [acts.index(act) for act in order] == sorted(acts.index(act) for act in order)
    assert acts[-1][0] == "fsync"


def test_a_staged_tree_with_a_damaged_manifest_is_not_published(house: House) -> None:
    good, bad = house.stage("good"), house.stage("bad")
    (bad / "manifest.json").write_bytes(read_plain(bad / "manifest.json", 10**6)[:-20])
    with pytest.raises(StoreError):
        house.kernels.publish([good, bad])
    assert list(house.state.kernels.iterdir()) == []


def test_a_kernel_is_read_again_after_the_recent_ones_made_room_for_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.store.kernels.RECENT", 2)
    wanted = {digest(f"op{n}"): house.publish(f"op{n}").id for n in range(5)}
    for _ in range(3):
        assert {key: found.id for key, found in house.kernels.find_many(list(wanted)).items()} == wanted


def test_run_packages_are_kept_by_digest_with_their_names(house: House) -> None:
    for name in ("first.run", "second.run"):
        staged = house.state.staging / "p.run"
        staged.write_bytes(b"#!/bin/sh\n")
        staged.chmod(0o700)
        path = house.packages.publish(staged, digest("p"), name)
    assert path == house.packages.path(digest("p"))
    assert path.read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert house.packages.name(digest("p")) == "first.run"
    assert house.packages.name(digest("q")).endswith(".run")
    assert house.packages.count() == 1
    assert names(house.state.staging) == []


def test_a_run_package_that_is_a_link_is_not_taken(house: House) -> None:
    (house.state.staging / "p.run").symlink_to("/etc/passwd")
    with pytest.raises(StoreError):
        house.packages.publish(house.state.staging / "p.run", digest("p"), "p.run")
    assert list(house.state.packages.iterdir()) == []
