"""A state directory on a disk that others have filled to the last byte: what is there is served, and npgxd can make room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import DAEMON, RANK, Node, eventually, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENTER = (
    "-c",
    "import os, sys; os.execvp('nsenter', ['nsenter', '--target', sys.argv[1], '--mount', '--', sys.executable, *sys.argv[2:]])",
)
SIZES = range(16, 16 * 41, 16)


def why_not() -> str:
    """Why no disk can be made here that only a test's own processes see; empty if one can."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("nsenter"):
        return "that needs root, unshare and nsenter"
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


class SmallDisk:
    """A file system of a few megabytes in a mount namespace of its own, which this process reaches through /proc."""

    def __init__(self, node: Node) -> None:
        node.state.mkdir()
        mount = f"mount -t tmpfs -o size=4m,mode=755 none '{node.state}' && echo mounted && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n"
        self.inside = (*ENTER, str(self._holder.pid))
        self.place = Path(f"/proc/{self._holder.pid}/root{node.state}")

    def fill(self) -> None:
        """Somebody else's file takes all of it, but not the reserve: a pass that has given that back just then would lose it."""
        eventually(self._filled, "the disk is full")

    def _filled(self) -> bool:
        full = self.fill_now() and (self.place / "reserve").exists()
        if not full:
            self.clear()
        return full

    def fill_now(self) -> bool:
        """All of it; whether there is no byte left."""
        with (self.place / "others").open("ab", buffering=0) as others:
            try:
                while others.write(bytes(4096)):
                    pass
            except OSError:
                return os.statvfs(self.place).f_bavail == 0
        return False

    def clear(self) -> None:
        """It goes again."""
        (self.place / "others").unlink()

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


@pytest.fixture
def full(make_node: Callable[..., Node]) -> Iterator[tuple[Node, SmallDisk]]:
    """A node with forty kernels that nobody holds any more; its daemon has stopped."""
    node = make_node()
    disk = SmallDisk(node)
    try:
        node.program = (*disk.inside, *DAEMON)
        node.settings["store"] = {"min_free_gb": 0.0003, "recent_s": 0.0, "gc_interval_s": 1.0}
        node.start()
        rank = node.rank(matmuls(*SIZES), launch=(*disk.inside, str(RANK)))
        assert rank.outcome()["compiled"] == len(SIZES)
        rank.end()
        eventually(lambda: removal(node) and (disk.place / "reserve").exists(), "space for making space is kept")
        assert node.stop() == 0
        yield node, disk
    finally:
        node.close()
        disk.close()


def removal(node: Node) -> dict[str, Any]:
    told: dict[str, Any] = (node.status() or {}).get("removal", {})
    return told


def npgxctl(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npgxd.cli.main", *words]
    return subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=False, timeout=60)


def test_with_not_one_byte_free_a_running_daemon_and_a_start_make_room(full: tuple[Node, SmallDisk]) -> None:
    """Rows leave the catalog, and its log grows, before a file goes; and without any room a start could not even open it to read."""
    node, disk = full
    node.start()
    disk.fill()
    done = npgxctl(node, "gc", "--json")
    assert (done.returncode, done.stderr) in {(0, ""), (1, "")}, done.stderr + node.log.read_text()
    left = makes_room(node)
    assert left < len(SIZES)
    eventually((disk.place / "reserve").exists, "the pass has ended: space is kept for the next time")
    node.stop()  # which gives the catalog's log back to the disk
    disk.fill()
    node.start()
    makes_room(node)
    status = node.status()
    assert status is not None
    assert status["cache"]["compiled"] == len(SIZES), "the catalog is the one of before: it counts on"
    assert "cannot write" not in node.log.read_text()


def has_room(told: dict[str, Any]) -> bool:
    """Between two passes: within one, the reserve is free, too."""
    return not told["running"] and told["free_bytes"] >= told["min_free_bytes"]


def makes_room(node: Node) -> int:
    """Kernels that are left then."""
    eventually(lambda: not removal(node)["problem"] and removal(node)["last"], "a pass of removal comes to its end")
    eventually(lambda: has_room(removal(node)), "there is room again")
    return int((node.status() or {})["kernels"]["count"])


def test_a_daemon_without_a_reserve_that_finds_no_room_says_so_and_loses_nothing(full: tuple[Node, SmallDisk]) -> None:
    node, disk = full
    (disk.place / "reserve").unlink()
    assert disk.fill_now()
    node.write_config()
    refused = node.spawn(*node.program, "--config", str(node.config), stderr=node.log)
    assert refused.wait(60) == 74  # EX_IOERR: systemd tries it again
    assert "cannot open the catalog" in node.log.read_text()
    assert "free space on its disk" in node.log.read_text()
    disk.clear()
    node.start()
    status = node.status()
    assert status is not None
    assert (status["cache"]["compiled"], status["kernels"]["count"], status["removal"]["hold"]) == (len(SIZES), len(SIZES), "")
