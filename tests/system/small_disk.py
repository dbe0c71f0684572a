"""A small disk of a test's own: an ext4 on a loop device, that can be filled to the last byte."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from conftest_node import PATIENCE_S, eventually

if TYPE_CHECKING:
    from systemd_machine import Machine


def why_not() -> str:
    """Why there can be no such disk here; empty if there can."""
    if missing := [name for name in ("mkfs.ext4", "losetup") if not shutil.which(name)]:
        return f"there is no {missing[0]}"
    tried = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    return f"no loop device can be had: {tried.stderr.strip()}" if tried.returncode else ""


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout.strip()


class SmallDisk:
    """Mounted in ``machine`` at ``place``; it goes with the machine."""

    def __init__(self, machine: Machine, place: str, size: int) -> None:
        self._machine = machine
        self.place = place
        image = machine.directory / "disk.img"
        with image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-b", "4096", "-m", "0", "-O", "^has_journal", str(image))
        device = _run("losetup", "--find", "--show", str(image))
        try:
            number = Path(device).stat().st_rdev
            machine.run("mknod", device, "b", str(os.major(number)), str(os.minor(number)))
            machine.run("mkdir", place)
            machine.run("mount", device, place)
        finally:
            _run("losetup", "--detach", device)  # for good when it is unmounted, which it is when the machine has ended

    def fill(self) -> None:
        """Somebody else's file takes all of it, to the last block."""
        eventually(self._filled, f"{self.place} is full")

    def _filled(self) -> bool:
        self._machine.done("dd", "if=/dev/zero", f"of={self.place}/others", "bs=4k", "oflag=append", "conv=notrunc,fsync")
        return self._machine.run("stat", "-f", "-c", "%a", self.place) == "0"

    def clear(self) -> None:
        """It goes again."""
        self._machine.run("rm", str(Path(self.place) / "others"))
