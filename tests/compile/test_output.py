from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from npgxd.compile.output import BoundedLog

if TYPE_CHECKING:
    from pathlib import Path


def test_a_short_output_is_kept_whole(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", 1000)
    log.write(b"one\n")
    log.write(b"two")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo"
    assert log.tail() == "one\ntwo"


def test_a_long_output_keeps_its_beginning_and_its_end_and_says_what_is_missing(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", 100)
    log.write(b"BEGIN" + b"." * 10_000)
    for _ in range(100):
        log.write(b"-" * 100)
    log.write(b"END")
    log.close()
    kept = (tmp_path / "log").read_bytes()
    assert kept.startswith(b"BEGIN")
    assert kept.endswith(b"END")
    assert b"[npgxd: 19908 bytes left out here]" in kept
    assert len(kept) < 200


def test_lines_are_heard_however_they_are_cut(tmp_path: Path) -> None:
    heard: list[str] = []
    log = BoundedLog(tmp_path / "log", 100, heard.append)
    for piece in (b"gener", b"ate\nrun \xff", b"package\nlast"):
        log.write(piece)
    log.close()
    assert heard == ["generate", "run \ufffdpackage", "last"]


def test_a_line_without_end_is_heard_within_a_bound(tmp_path: Path) -> None:
    heard: list[str] = []
    log = BoundedLog(tmp_path / "log", 100, heard.append)
    for _ in range(100):
        log.write(b"x" * 1000)
    log.close()
    assert [len(line) for line in heard] == [8192]


def test_draining_does_not_wait_and_tells_the_end(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", 100)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    assert log.drain(reading)
    os.write(writing, b"data")
    assert log.drain(reading)
    os.close(writing)
    assert not log.drain(reading)
    log.close()
    os.close(reading)
    assert (tmp_path / "log").read_bytes() == b"data"


def test_a_log_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        BoundedLog(tmp_path / "log", 100)
