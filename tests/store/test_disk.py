from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest

from npgxd.errors import StoreError
from npgxd.store.disk import Disk
from npgxd.store.plain import digest_plain, read_plain
from tests.store.made import names


class Failing(Disk):
    """A disk on which one kind of act fails."""

    def __init__(self, operation: str, number: int) -> None:
        super().__init__()
        self.operation = operation
        self.number = number

    def step(self, operation: str, path: Path) -> None:
        if operation == self.operation:
            raise OSError(self.number, os.strerror(self.number), str(path))


@pytest.fixture
def narrow_umask():
    old = os.umask(0o077)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("narrow_umask")
def test_fc58_modes_are_what_was_asked_for_whatever_the_umask(tmp_path: Path) -> None:
    disk = Disk()
    disk.make_directory(tmp_path / "public")
    disk.write_file(tmp_path / "public" / "file", b"x")
    disk.copy_file(tmp_path / "public" / "file", tmp_path / "copy")
    disk.write_file(tmp_path / "secret", b"x", 0o600)
    assert [mode(tmp_path / name) for name in ("public", "public/file", "copy", "secret")] == [0o755, 0o644, 0o644, 0o600]


def test_a_directory_that_a_crash_left_private_gets_its_mode(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir(mode=0o700)
    assert not Disk().make_directory(tmp_path / "public", exist_ok=True)
    assert mode(tmp_path / "public") == 0o755


@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path, operation: str) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(StoreError) as caught:
        Failing(operation, errno.ENOSPC).write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
    assert str(tmp_path / "file") in caught.value.message
    assert "No space left on device" in caught.value.message
    assert "full" in caught.value.hint


def test_an_fsync_error_is_never_swallowed(tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "file").write_bytes(b"x")
    with pytest.raises(StoreError, match="Input/output error") as caught:
        Failing("fsync", errno.EIO).fsync_tree(tmp_path / "tree")
    assert "kernel log" in caught.value.hint
    assert caught.value.data["errno"] == errno.EIO


def test_fsync_tree_takes_files_before_their_directory_and_the_root_last(tmp_path: Path) -> None:
    seen: list[Path] = []

    class Watching(Disk):
        def step(self, operation: str, path: Path) -> None:
            seen.append(path)

    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    Watching().fsync_tree(tmp_path / "a")
    assert seen == [tmp_path / "a" / "b" / "file", tmp_path / "a" / "b", tmp_path / "a"]


def test_publishing_takes_one_rename_and_never_replaces(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "who").write_text(name)
    assert Disk().publish(tmp_path / "one", tmp_path / "final")
    assert not Disk().publish(tmp_path / "two", tmp_path / "final")
    assert (tmp_path / "final" / "who").read_text() == "one"
    assert (tmp_path / "two" / "who").read_text() == "two"
    (tmp_path / "file").write_text("x")
    assert not Disk().publish(tmp_path / "two", tmp_path / "file")


def test_a_copy_tells_the_digest_of_what_it_copied(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "source").write_bytes(content)
    assert Disk().copy_file(tmp_path / "source", tmp_path / "target") == (hashlib.sha256(content).hexdigest(), len(content))
    assert digest_plain(tmp_path / "target") == (hashlib.sha256(content).hexdigest(), len(content))


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "device", "missing"])
def test_only_plain_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    (tmp_path / "secret").write_bytes(b"secret")
    {
        "link": lambda: path.symlink_to(tmp_path / "secret"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "missing": lambda: None,
    }[kind]()
    with pytest.raises(StoreError):
        Disk().copy_file(path, tmp_path / "target")
    with pytest.raises(StoreError):
        read_plain(path, 100)


def test_no_directory_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"secret")
    (tmp_path / "tree" / "real").mkdir(parents=True)
    (tmp_path / "tree" / "real" / "file").write_bytes(b"fine")
    (tmp_path / "tree" / "odd").symlink_to(tmp_path / "outside")
    assert read_plain(tmp_path / "tree" / "real" / "file", 100, beneath=tmp_path / "tree") == b"fine"
    for path in ("odd/file", "../outside/file"):
        with pytest.raises(StoreError):
            read_plain(Path(path), 100, beneath=tmp_path / "tree")


def test_reading_has_a_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 101)
    with pytest.raises(StoreError, match="larger than 100"):
        read_plain(tmp_path / "file", 100)


def test_a_tree_is_removed_without_following_links_and_whatever_its_modes(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_bytes(b"x")
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    (tree / "closed" / "file").write_bytes(b"x")
    (tree / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(tree / "pipe")
    (tree / "closed").chmod(0)
    assert Disk().remove_tree(tree)
    assert not Disk().remove_tree(tree)
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    assert Disk().remove_tree(tmp_path / "link")
    assert names(tmp_path) == ["outside"]
    assert (tmp_path / "outside" / "kept").exists()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_where_a_hard_link_cannot_be_had_a_copy_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "source").write_bytes(b"x")
    assert Disk().link_or_copy(tmp_path / "source", tmp_path / "linked")
    assert (tmp_path / "linked").stat().st_ino == (tmp_path / "source").stat().st_ino

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    assert not Disk().link_or_copy(tmp_path / "source", tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == b"x"
    assert mode(tmp_path / "copied") == 0o644


def test_a_link_to_what_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        Disk().link_or_copy(tmp_path / "gone", tmp_path / "target")
