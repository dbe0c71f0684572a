from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from npgxd.wire.file_facts import QUIET_NS, look
from npgxd.wire.memo_files import MemoFiles, Told
from npgxd.wire.memo_turn import turn
from npgxd.wire.stat_memo import StatMemo

if TYPE_CHECKING:
    from pathlib import Path


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def later() -> int:
    """A time at which every file made just now has been quiet for long."""
    return time.time_ns() + 3_600_000_000_000


@pytest.fixture
def memo_path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "memo"


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
    assert look(str(tree)).names == ["a/b/y", "a/x", "out/z"]
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


def test_two_processes_keep_what_both_learned_of_single_files(tree: Path, memo_path: Path) -> None:
    one, other = StatMemo(memo_path, now=later), StatMemo(memo_path, now=later)
    one.digest(str(tree / "a/x"))
    other.digest(str(tree / "a/b/y"))
    one.save()
    other.save()
    both = StatMemo(memo_path, now=later)
    both.digest(str(tree / "a/x"))
    both.digest(str(tree / "a/b/y"))
    assert both.hashed == 0


def test_what_a_process_knows_of_a_tree_it_knows_of_each_file_and_the_other_way_round(tree: Path, memo_path: Path) -> None:
    memo = StatMemo(memo_path, now=later)
    memo.digest(str(tree / "a/x"))
    memo.tree(str(tree))
    memo.digest(str(tree / "a/b/y"))
    assert memo.hashed == 2
    memo.save()
    again = StatMemo(memo_path, now=later)
    for name in ("a/x", "a/b/y"):
        again.digest(str(tree / name))
    assert again.hashed == 0


def test_the_young_files_of_a_tree_are_read_again_and_the_old_ones_are_kept(tree: Path, memo_path: Path) -> None:
    moment = max(path.stat().st_ctime_ns for path in (tree / "a/x", tree / "a/b/y"))
    os.utime(tree / "a/b/y", ns=(moment, moment + 10 * QUIET_NS))
    expected = tree_of(tree)
    for reads in (2, 1, 1):  # x is remembered, y is not, nor is the tree
        memo = StatMemo(memo_path, now=lambda: moment + 2 * QUIET_NS)
        assert (memo.tree(str(tree)), memo.hashed) == (expected, reads)
        memo.save()
    old = StatMemo(memo_path, now=later)
    assert (old.tree(str(tree)), old.hashed) == (expected, 1)


def test_a_tree_that_changes_while_it_is_read_is_not_remembered(
    tree: Path, memo_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def change(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith("a/x"):
            (tree / "a/x").write_bytes(b"changed")
        return real(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", change)
        StatMemo(memo_path, now=later).tree(str(tree))
    assert MemoFiles(str(memo_path)).told(str(tree), 0) == Told(str(tree), tree.stat().st_dev, "", tree_of(tree))
    assert StatMemo(memo_path, now=later).tree(str(tree)) == tree_of(tree)


def test_a_memo_that_cannot_be_written_fails_nothing(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "memo", tmp_path / "nul\0" / "memo", tmp_path / "file"):
        memo = StatMemo(place, now=later)
        assert memo.digest(str(tree / "a/x")) == sha(b"x")
        assert memo.tree(str(tree)) == tree_of(tree)
        memo.save()


def test_names_that_are_not_utf8_are_digested_all_the_same(tree: Path, memo_path: Path) -> None:
    with open(os.fsencode(tree) + b"/\xff\xfe", "wb") as opened:  # noqa: PTH123 -- a name that is no text
        opened.write(b"x")
    odd = os.fsdecode(os.fsencode(tree) + b"/\xff\xfe")
    memo = StatMemo(memo_path, now=later)
    digests = memo.tree(str(tree)), memo.tree(odd), memo.digest(odd)
    memo.save()
    again = StatMemo(memo_path, now=later)
    assert ((again.tree(str(tree)), again.tree(odd), again.digest(odd)), again.hashed) == (digests, 0)


def test_a_time_in_a_far_future_fails_nothing_and_is_never_trusted(tree: Path, memo_path: Path) -> None:
    seconds = 2**34 - 2**31  # the last that ext4 can tell, in 2446: more nanoseconds than 64 bits hold
    os.utime(tree / "a/x", (seconds, seconds))
    for _ in range(2):
        memo = StatMemo(memo_path, now=later)
        assert (memo.digest(str(tree / "a/x")), memo.tree(str(tree))) == (sha(b"x"), tree_of(tree))
        memo.save()
        assert memo.hashed > 0


# ---- several at once -------------------------------------------------------------------------------------------------

MEET = """
import sys, time
from npgxd.wire.memo_files import MemoFiles, Told
from npgxd.wire.memo_turn import turn
from npgxd.wire import memo_turn
from npgxd.wire.stat_memo import StatMemo
from pathlib import Path
memo_turn.SILENCE_S = memo_turn.LONGEST_S = 60.0  # whatever else runs on this machine
sys.stdin.readline()
memo = StatMemo(Path(sys.argv[1]), now=lambda: time.time_ns() + 3_600_000_000_000)
print(memo.tree(sys.argv[2]), memo.hashed)
"""


def test_of_processes_that_meet_a_changed_tree_at_once_one_reads_it(tree: Path, memo_path: Path) -> None:
    for number in range(500):
        (tree / f"a/b/{number}").write_bytes(b"%d" % number * 50_000)
    command = [sys.executable, "-c", MEET, str(memo_path), str(tree)]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    told = [rank.communicate()[0].split() for rank in ranks]
    assert {digest for digest, _ in told} == {tree_of(tree)}
    assert sorted(int(read) for _, read in told) == [0, 0, 0, 502]


def test_a_tree_that_another_process_reads_for_ever_is_read_here(
    tree: Path, memo_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npgxd.wire.memo_turn.SILENCE_S", 0.05)
    with turn(MemoFiles(str(memo_path)).lock_path(str(tree)), lambda: False):
        memo = StatMemo(memo_path, now=later)
        assert (memo.tree(str(tree)), memo.hashed) == (tree_of(tree), 2)
    assert StatMemo(memo_path, now=later).tree(str(tree)) == tree_of(tree)


def test_a_young_tree_waits_for_nobody_since_nobody_can_tell_of_it(
    tree: Path, memo_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npgxd.wire.memo_turn.time.sleep", lambda _: pytest.fail("it waited"))
    os.utime(tree / "a/x", ns=(0, time.time_ns() + 10**15))
    with turn(MemoFiles(str(memo_path)).lock_path(str(tree)), lambda: False):
        assert StatMemo(memo_path, now=later).tree(str(tree)) == tree_of(tree)
