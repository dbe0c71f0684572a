from __future__ import annotations

import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from npgxd.wire.stat_memo import QUIET_NS, StatMemo, signature, walk

if TYPE_CHECKING:
    from pathlib import Path


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def later() -> int:
    """A time at which every file made just now has been quiet for long."""
    return time.time_ns() + 3_600_000_000_000


@pytest.fixture
def memo_path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "memo.json"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "x").write_bytes(b"x")
    (root / "a" / "b" / "y").write_bytes(b"y")
    return root


# ---- single files ----------------------------------------------------------------------------------------------------


def test_a_digest_is_of_the_bytes_that_are_there(tree: Path) -> None:
    for now in (time.time_ns, later):
        memo = StatMemo(None, now=now)
        path = tree / "a" / "x"
        for content in (b"one", b"two", b"one", b""):
            path.write_bytes(content)
            assert memo.digest(str(path)) == sha(content)


def test_what_is_no_plain_file_has_no_digest(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "dangling").symlink_to("nowhere")
    memo = StatMemo(None)
    for name in ("absent", "a", "a/x/below", "pipe", "dangling"):
        assert memo.digest(str(tree / name)) is None


def test_a_link_is_followed(tree: Path) -> None:
    (tree / "link").symlink_to("a/x")
    memo = StatMemo(None, now=later)
    assert memo.digest(str(tree / "link")) == sha(b"x")
    (tree / "a/x").write_bytes(b"z")
    assert memo.digest(str(tree / "link")) == sha(b"z")


def test_an_old_file_is_read_once(tree: Path) -> None:
    memo = StatMemo(None, now=later)
    for _ in range(3):
        memo.digest(str(tree / "a/x"))
    assert memo.hashed == 1


def test_fc01_a_young_file_is_read_each_time_as_it_may_change_without_a_sign(tree: Path) -> None:
    path = tree / "a/x"
    at = path.stat()
    moment = max(at.st_mtime_ns, at.st_ctime_ns) + QUIET_NS
    memo = StatMemo(None, now=lambda: moment)
    for count in (1, 2, 3):
        memo.digest(str(path))
        assert memo.hashed == count
    old = StatMemo(None, now=lambda: moment + 1)
    for _ in range(2):
        old.digest(str(path))
    assert old.hashed == 1


def test_fc01_what_was_learned_of_a_young_file_is_not_trusted_when_it_is_old(tree: Path, memo_path: Path) -> None:
    young = StatMemo(memo_path)
    young.digest(str(tree / "a/x"))
    young.tree(str(tree))
    young.save()
    old = StatMemo(memo_path, now=later)
    old.digest(str(tree / "a/x"))
    old.tree(str(tree))
    assert old.hashed == 2  # x once and y once: nothing came from the file


def test_a_replaced_file_is_seen_by_its_inode(tree: Path) -> None:
    memo = StatMemo(None, now=later)
    path, other = tree / "a/x", tree / "other"
    memo.digest(str(path))
    other.write_bytes(b"z")
    before = path.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    assert memo.digest(str(path)) == sha(b"z")


def test_a_file_that_cannot_be_read_is_an_error(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *_: object) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        StatMemo(None).digest(str(tree / "a/x"))


# ---- trees -----------------------------------------------------------------------------------------------------------


def tree_of(root: Path) -> str:
    return StatMemo(None, now=later).tree(str(root))


def test_a_tree_is_its_names_and_bytes(tree: Path, tmp_path: Path) -> None:
    first = tree_of(tree)
    assert len(first) == 64
    moved = tree.rename(tmp_path / "elsewhere")
    assert tree_of(moved) == first
    (moved / "a/x").write_bytes(b"z")
    assert tree_of(moved) != first
    (moved / "a/x").write_bytes(b"x")
    assert tree_of(moved) == first
    (moved / "a/x").rename(moved / "a/w")
    assert tree_of(moved) != first


def test_nothing_has_the_empty_digest(tmp_path: Path) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    assert tree_of(tmp_path / "empty") == tree_of(tmp_path / "absent") == ""


def test_a_tree_may_be_one_file(tree: Path) -> None:
    assert tree_of(tree / "a/x") != ""
    assert tree_of(tree / "a/x") != tree_of(tree / "a/b/y")


def test_what_running_leaves_behind_does_not_count(tree: Path) -> None:
    first = tree_of(tree)
    (tree / "a/__pycache__").mkdir()
    (tree / "a/__pycache__/x.cpython-311.pyc").write_bytes(b"c")
    (tree / "a/x.pyc").write_bytes(b"c")
    os.mkfifo(tree / "a/pipe")
    (tree / "dangling").symlink_to("nowhere")
    assert tree_of(tree) == first


def test_links_are_followed_and_loops_end(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "z").write_bytes(b"z")
    (tree / "out").symlink_to(outside)
    (tree / "a/up").symlink_to("..")
    names = sorted(name for name, _, _ in walk(str(tree)))
    assert "out/z" in names
    assert len(names) == 3
    first = tree_of(tree)
    (outside / "z").write_bytes(b"changed")
    assert tree_of(tree) != first


def test_an_unchanged_tree_is_not_read_again_in_another_process(tree: Path, memo_path: Path) -> None:
    first = StatMemo(memo_path, now=later)
    digest = first.tree(str(tree))
    first.save()
    second = StatMemo(memo_path, now=later)
    assert second.tree(str(tree)) == digest
    assert second.hashed == 0
    (tree / "a/x").write_bytes(b"z")
    third = StatMemo(memo_path, now=later)
    assert third.tree(str(tree)) != digest
    assert third.hashed == 1  # the other file is known


def test_a_file_that_goes_during_the_walk_is_looked_for_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = StatMemo._tree
    calls = []

    def vanish(self: StatMemo, root: str) -> str:
        calls.append(root)
        if len(calls) == 1:
            raise FileNotFoundError(root)
        return real(self, root)

    expected = tree_of(tree)
    monkeypatch.setattr(StatMemo, "_tree", vanish)
    assert tree_of(tree) == expected
    monkeypatch.setattr(StatMemo, "_tree", lambda *_: (_ for _ in ()).throw(FileNotFoundError("always")))
    with pytest.raises(FileNotFoundError):
        tree_of(tree)


# ---- the memo on disk ------------------------------------------------------------------------------------------------


def test_the_memo_is_private(tree: Path, memo_path: Path) -> None:
    memo = StatMemo(memo_path, now=later)
    memo.tree(str(tree))
    memo.save()
    for path in (memo_path, memo_path.with_name("memo.json.files")):
        assert path.stat().st_mode & 0o777 == 0o600
    assert memo_path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in memo_path.parent.iterdir()) == ["memo.json", "memo.json.files"]


def forge(path: Path, tree: Path) -> None:
    """A memo that says something false of ``a/x``."""
    name = str(tree / "a/x")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schema": 1, "entries": {name: [*signature((tree / "a/x").stat()), "f" * 64]}}))


def test_fc58_only_a_private_memo_of_ones_own_is_believed(tree: Path, memo_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = memo_path.with_name("memo.json.files")
    name = str(tree / "a/x")
    forge(files, tree)
    files.chmod(0o600)
    assert StatMemo(memo_path).digest(name) == "f" * 64  # so the forged one would be used
    for mode in (0o620, 0o602, 0o644):
        files.chmod(mode)
        assert StatMemo(memo_path).digest(name) == sha(b"x")
    files.chmod(0o600)
    real = files.rename(files.with_name("real"))
    files.symlink_to(real)
    assert StatMemo(memo_path).digest(name) == sha(b"x")
    files.unlink()
    real.rename(files)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert StatMemo(memo_path).digest(name) == sha(b"x")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"schema": 2, "entries": {}}',
        b'{"schema": 1}',
        b'{"schema": 1, "entries": []}',
        b'{"schema": 1, "entries": {"%s": [], "b": 7}}',
        b'{"schema": 1, "entries": {"%s": ["a"]}}',
        b"[" * 50_000,
        b"\xff\xfe",
    ],
)
def test_a_damaged_memo_is_as_good_as_none_and_is_replaced(tree: Path, memo_path: Path, content: bytes) -> None:
    name = str(tree / "a/x")
    memo_path.parent.mkdir()
    for path in (memo_path, memo_path.with_name("memo.json.files")):
        path.write_bytes(content.replace(b"%s", name.encode()))
        path.chmod(0o600)
    memo = StatMemo(memo_path, now=later)
    expected = tree_of(tree)
    assert (memo.digest(name), memo.tree(str(tree))) == (sha(b"x"), expected)
    memo.save()
    again = StatMemo(memo_path, now=later)
    assert (again.digest(name), again.tree(str(tree)), again.hashed) == (sha(b"x"), expected, 0)


def test_two_processes_keep_what_both_learned(tree: Path, memo_path: Path) -> None:
    one, other = StatMemo(memo_path, now=later), StatMemo(memo_path, now=later)
    one.digest(str(tree / "a/x"))
    other.digest(str(tree / "a/b/y"))
    one.save()
    other.save()
    both = StatMemo(memo_path, now=later)
    both.digest(str(tree / "a/x"))
    both.digest(str(tree / "a/b/y"))
    assert both.hashed == 0


def test_a_memo_that_cannot_be_written_fails_nothing(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "memo.json", tmp_path / "nul\0" / "memo.json"):
        memo = StatMemo(place, now=later)
        assert memo.digest(str(tree / "a/x")) == sha(b"x")
        memo.save()


def test_the_memo_is_bounded(tree: Path, memo_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.wire.stat_memo._MAX_ENTRIES", 10)
    for at in range(30):
        path = tree / str(at)
        path.touch()
        memo = StatMemo(memo_path, now=later)
        memo.digest(str(path))
        memo.save()
    kept = json.loads(memo_path.with_name("memo.json.files").read_text())["entries"]
    assert 0 < len(kept) <= 10
    assert str(tree / "29") in kept


def test_names_that_are_not_utf8_are_digested_all_the_same(tree: Path, memo_path: Path) -> None:
    with open(os.fsencode(tree) + b"/\xff\xfe", "wb") as opened:  # noqa: PTH123 -- a name that is no text
        opened.write(b"x")
    memo = StatMemo(memo_path, now=later)
    digest = memo.tree(str(tree))
    memo.save()
    again = StatMemo(memo_path, now=later)
    assert (again.tree(str(tree)), again.hashed) == (digest, 0)
