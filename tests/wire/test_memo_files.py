from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from npgxd.wire import memo_files
from npgxd.wire.file_facts import signature
from npgxd.wire.memo_files import LEFTOVER_NS, USED_NS, MemoFiles, Told
from npgxd.wire.stat_memo import StatMemo

if TYPE_CHECKING:
    from pathlib import Path

FALSE = b"\xff" * 32


def later() -> int:
    return time.time_ns() + LEFTOVER_NS + 10**9


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "memo"


@pytest.fixture
def files(directory: Path) -> MemoFiles:
    return MemoFiles(str(directory))


def entry(number: int) -> bytes:
    return b"%072d" % number


def kept_tree(files: MemoFiles, root: Path, names: int = 2) -> Told:
    """A tree that is there, and what is kept of it."""
    root.mkdir(parents=True, exist_ok=True)
    told = Told(str(root), root.stat().st_dev, "a" * 64, "b" * 64)
    files.keep_tree(told, {f"n/{number}": entry(number) for number in range(names)})
    return told


def names_in(directory: Path) -> set[str]:
    return {path.suffix for path in directory.iterdir()}


def only_file(directory: Path, pattern: str = "*.tree") -> Path:
    (path,) = directory.glob(pattern)
    return path


# ---- what is kept is what is read ------------------------------------------------------------------------------------


def test_what_is_kept_is_read_again(files: MemoFiles, tmp_path: Path) -> None:
    told = kept_tree(files, tmp_path / "tree", names=300)
    assert files.told(told.root, 0) == told
    assert list(files.files_of(told.root).items()) == [(f"n/{number}", entry(number)) for number in range(300)]
    assert files.told(told.root + "/n", 0) is None
    assert files.files_of(told.root + "/n") == {}


def test_a_tree_of_one_file_and_names_of_all_kinds_are_kept(files: MemoFiles) -> None:
    for names in ([""], ["\udcff\udcfe", "a\nb", "npgxd-memo 2 \n", "ü" * 80]):
        kept = {name: entry(number) for number, name in enumerate(names)}
        files.keep_tree(Told("/\udcff\n", 7, "", ""), kept)
        assert files.told("/\udcff\n", 0) == Told("/\udcff\n", 7, "", "")
        assert files.files_of("/\udcff\n") == kept


def test_the_memo_is_private_and_nothing_else_is_left(files: MemoFiles, directory: Path, tmp_path: Path) -> None:
    kept_tree(files, tmp_path / "tree")
    files.keep_single_files({str(tmp_path): entry(1)})
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [0o600, 0o600]


# ---- what is believed ------------------------------------------------------------------------------------------------


def forge(files: MemoFiles, path: Path) -> None:
    """A memo that says something false of ``path``."""
    files.keep_single_files({str(path): signature(path.stat()) + FALSE})


def test_fc58_only_a_private_memo_of_ones_own_is_believed(
    files: MemoFiles, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = kept_tree(files, tmp_path / "tree")
    path = tmp_path / "x"
    path.write_bytes(b"x")
    forge(files, path)
    true, written = sha256(b"x").hexdigest(), [directory / "files", only_file(directory)]

    def believed() -> bool:
        assert (files.told(told.root, 0) is not None) == bool(files.files_of(told.root))
        digest = StatMemo(directory).digest(str(path))
        assert (digest == FALSE.hex()) is (files.told(told.root, 0) is not None)
        assert digest in {true, FALSE.hex()}
        return digest == FALSE.hex()

    assert believed()
    for mode in (0o620, 0o602, 0o644):
        for one in written:
            one.chmod(mode)
        assert not believed()
    for one in written:
        one.chmod(0o600)
        one.rename(one.with_suffix(".real"))
        one.symlink_to(one.with_suffix(".real"))
    assert not believed()
    for one in written:
        one.with_suffix(".real").rename(one)
    assert believed()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert not believed()


def damaged(content: bytes) -> list[bytes]:
    line, _, body = content.partition(b"\n")
    other = json.dumps({"schema": 1, "entries": {}}).encode()
    return [
        b"",
        b"\n",
        other,
        b"npgxd-memo 2 ",
        b"npgxd-memo 2 " + b"0" * 64 + b" {}\n",
        content.replace(b"memo 2", b"memo 3"),
        content.replace(b'"sign":"a', b'"sign":"c'),
        b"\xff" * 200_000,
        b"\0" * len(content),
        line,
        line + b"\n" + body[:-1],
        line + b"\n" + body + b"x",
        line + b"\n" + body[:-1] + bytes([body[-1] ^ 1]),
    ]


def test_a_damaged_memo_or_one_of_another_form_is_as_good_as_none_and_is_replaced(directory: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a/x").write_bytes(b"x")
    expected = StatMemo(None).tree(str(tree)), sha256(b"x").hexdigest()

    def digests(memo: StatMemo) -> tuple[str, str | None]:
        return memo.tree(str(tree)), memo.digest(str(tree / "a/x"))

    first = StatMemo(directory, now=later)
    assert digests(first) == expected
    first.save()
    written = [directory / "files", only_file(directory)]
    good = [path.read_bytes() for path in written]
    for contents in zip(*map(damaged, good), strict=True):
        for path, content in zip(written, contents, strict=True):
            path.write_bytes(content)
        memo = StatMemo(directory, now=later)
        assert digests(memo) == expected
        memo.save()
        again = StatMemo(directory, now=later)
        assert (digests(again), again.hashed) == (expected, 0)


# ---- what is forgotten -----------------------------------------------------------------------------------------------


def test_files_that_have_gone_are_forgotten_when_others_are_learned(directory: Path, tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / f"{number}"
        path.write_bytes(b"x")
        memo = StatMemo(directory, now=later)
        memo.digest(str(path))
        memo.save()
        if number % 2:
            path.unlink()
    assert list(MemoFiles(str(directory)).single_files()) == [str(tmp_path / f"{number}") for number in (*range(0, 29, 2), 29)]


def test_files_that_left_their_tree_are_forgotten_with_the_next_change(directory: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(10):
        (tree / f"{number}").write_bytes(b"x")
        StatMemo(directory, now=later).tree(str(tree))
        if number < 8:
            (tree / f"{number}").unlink()
    assert list(MemoFiles(str(directory)).files_of(str(tree))) == ["8", "9"]


def test_trees_that_have_gone_are_forgotten_when_another_has_changed(directory: Path, tmp_path: Path) -> None:
    for number in range(6):
        tree = tmp_path / f"cann {number}" / "opp"
        tree.mkdir(parents=True)
        (tree / "x").write_bytes(b"%d" % number)
        memo = StatMemo(directory, now=later)
        memo.tree(str(tree))
        memo.save()
        if number < 4:
            (tree / "x").unlink()
            tree.rmdir()
            if number % 2:
                tree.parent.rmdir()
    files = MemoFiles(str(directory))
    known = [number for number in range(6) if files.told(f"{tmp_path}/cann {number}/opp", 0)]
    assert known == [4, 5]
    assert len(list(directory.iterdir())) == 4  # with their locks


def test_fc71_what_lies_in_another_container_is_not_taken_for_gone(files: MemoFiles, tmp_path: Path) -> None:
    """A home that several containers share: a path of one leads nowhere in the others, as does a relative one elsewhere."""
    here = tmp_path.stat().st_dev
    theirs, gone, elsewhere = f"{tmp_path}/theirs/opp", f"{tmp_path}/gone/opp", "opp"
    for root, device in ((theirs, here + 1), (gone, here), (elsewhere, here)):
        files.keep_tree(Told(root, device, "a", "b"), {"x": entry(1)})
    files.forget(later())
    assert [files.told(root, 0) is not None for root in (theirs, gone, elsewhere)] == [True, False, True]


@pytest.mark.parametrize("bound", ["number", "bytes"])
def test_beyond_its_bounds_what_was_used_longest_ago_is_forgotten(
    files: MemoFiles, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    roots = [kept_tree(files, tmp_path / f"{number}").root for number in range(6)]
    long_ago = time.time_ns() - 2 * USED_NS
    for path in directory.iterdir():
        os.utime(path, ns=(long_ago, long_ago))
    size = only_file(directory.parent, "memo/" + next(directory.iterdir()).name).stat().st_size
    for root in roots[:2]:
        assert files.told(root, time.time_ns())  # it is used again
    if bound == "number":
        monkeypatch.setattr(memo_files, "MAX_TREES", 2)
    else:
        monkeypatch.setattr(memo_files, "MAX_BYTES", 2 * size + size // 2)
    files.forget(later())
    assert [files.told(root, 0) is not None for root in roots] == [True, True, False, False, False, False]


def test_more_files_than_a_memo_holds_leave_the_latest(
    files: MemoFiles, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memo_files, "MAX_NAMES", 10)
    for number in range(30):
        path = tmp_path / f"{number}"
        path.touch()
        memo = StatMemo(directory, now=later)
        memo.digest(str(path))
        memo.save()
    assert list(files.single_files()) == [str(tmp_path / f"{number}") for number in range(20, 30)]
    told = kept_tree(files, tmp_path / "tree", names=30)
    assert files.told(told.root, 0) == told  # the whole is known, and of its files as many as may be
    assert len(files.files_of(told.root)) == 10


def test_a_file_that_is_too_large_is_not_read(files: MemoFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = kept_tree(files, tmp_path / "tree", names=3000)
    monkeypatch.setattr(memo_files, "MAX_BYTES", 1000)
    assert files.told(told.root, 0) is None
    assert files.files_of(told.root) == {}


def test_what_a_killed_process_left_goes_when_it_is_old(files: MemoFiles, directory: Path, tmp_path: Path) -> None:
    told = kept_tree(files, tmp_path / "tree")
    own_lock = files.lock_path(told.root)
    for name in (".files.0123", f"{'0' * 32}.lock", own_lock.rpartition("/")[2], "unknown"):
        (directory / name).touch()
    files.forget(time.time_ns())
    assert len(list(directory.iterdir())) == 5
    files.forget(later())
    assert {path.name for path in directory.iterdir()} == {only_file(directory).name, own_lock.rpartition("/")[2], "unknown"}
