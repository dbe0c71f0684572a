from __future__ import annotations

import mmap
import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from npgxd.wire.file_facts import QUIET_NS, SIGNATURE_BYTES, is_quiet, look, signature
from npgxd.wire.stat_memo import StatMemo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FACTS = {"st_dev": 2**64 - 1, "st_ino": 2**64 - 2, "st_size": 2**40, "st_mtime_ns": -5, "st_ctime_ns": 10**18}


def facts(**changed: int) -> os.stat_result:
    return cast("os.stat_result", SimpleNamespace(**{**FACTS, **changed}))


@pytest.mark.parametrize("field", FACTS)
def test_each_fact_that_a_replaced_or_written_file_differs_in_is_in_the_signature(field: str) -> None:
    assert signature(facts(**{field: 7})) != signature(facts())
    assert len(signature(facts())) == SIGNATURE_BYTES


def test_a_file_is_quiet_when_neither_its_content_nor_anything_else_of_it_changed_of_late() -> None:
    at = 10**18
    for mtime, ctime, quiet in ((0, 0, True), (at, 0, False), (0, at, False), (2**63, 0, False), (0, 2**70, False)):
        sign = signature(facts(st_mtime_ns=mtime, st_ctime_ns=ctime))
        assert is_quiet(sign, at) is quiet
        assert is_quiet(signature(facts(st_ctime_ns=0)) + sign, at) is quiet
    sign = signature(facts(st_ctime_ns=at))
    assert [is_quiet(sign, at + QUIET_NS + more) for more in (0, 1)] == [False, True]


def test_a_look_tells_of_each_file_what_stat_does(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("z", "b/y", "b/c/x", "a"):
        (tmp_path / name).write_text(name)
    (tmp_path / "b/link").symlink_to("../z")
    (tmp_path / "b/c/directory").symlink_to(tmp_path / "b/c")
    seen = look(str(tmp_path))
    assert seen.names == ["a", "b/c/x", "b/link", "b/y", "z"]
    assert seen.signatures == [signature((tmp_path / name).stat()) for name in seen.names]
    assert seen.device == tmp_path.stat().st_dev


def later() -> int:
    return time.time_ns() + 3_600_000_000_000


def _written(path: Path) -> None:
    with path.open("r+b") as opened:
        opened.write(b"2")


def _mapped(path: Path) -> None:
    with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[0:1] = b"2"
        mapped.flush()


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"2")
    other.replace(path)


def _relinked(path: Path) -> None:
    other = path.parent.with_name("outside")
    other.write_bytes(b"2")
    path.unlink()
    path.symlink_to(other)


@pytest.mark.parametrize("change", [_written, _mapped, _replaced, _relinked])
def test_fc01_a_change_is_seen_though_size_and_time_are_set_as_they_were(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "tree" / "x"
    path.parent.mkdir()
    path.write_bytes(b"1")
    memo = StatMemo(None, now=later)
    before, digests = path.stat(), (memo.tree(str(path.parent)), memo.digest(str(path)))
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of older kernels ticks in milliseconds
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    fresh = StatMemo(None)
    expected = fresh.tree(str(path.parent)), fresh.digest(str(path))
    assert (memo.tree(str(path.parent)), memo.digest(str(path))) == expected != digests
