"""Which processes may have loaded kernels from a shared root."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npgxd.oplib.users import User, cann_users, started_s, still_run, user_of

if TYPE_CHECKING:
    from pathlib import Path

MAPPER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("name", "counts"), [("libascendcl.so", True), ("libnnopbase.so.1", True), ("libother.so", False)])
def test_a_process_counts_while_it_has_the_runtime_mapped(tmp_path: Path, name: str, counts: bool) -> None:
    (tmp_path / name).write_bytes(b"x")
    process = subprocess.Popen(
        [sys.executable, "-c", MAPPER, str(tmp_path / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        user = user_of(process.pid)
        assert user is not None
        assert (user in cann_users(unreadable=False)) == counts
        assert still_run(frozenset({user, User(user.pid, user.started + 1)})) == {user}
        assert 0 < started_s(user.pid) < 2**40
    finally:
        process.communicate(b"")
    assert not still_run(frozenset({user}))


def test_what_cannot_be_told_counts_unless_the_administrator_says_otherwise(tmp_path: Path) -> None:
    for pid in ("41", "42"):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(f"{pid} (a b) S " + " ".join(str(number) for number in range(1, 40)))
    (tmp_path / "41" / "maps").mkdir()  # reading it fails as it does without permission
    (tmp_path / "42" / "maps").write_text("7f00-7f01 r--p 0 0:0 0 /usr/lib/libc.so\n")
    (tmp_path / "self").symlink_to("41")
    assert {user.pid for user in cann_users(tmp_path)} == {41}
    assert cann_users(tmp_path, unreadable=False) == frozenset()


def test_this_process_does_not_wait_for_itself() -> None:
    assert os.getpid() not in {user.pid for user in cann_users()}
