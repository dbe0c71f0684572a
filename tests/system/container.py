"""Containers of a test's own: as an engine makes them, with ``unshare``, but without an engine and without an image.

A container has its own pid, mount, uts, ipc and net namespaces, a root file system of its own without users, and on demand a user namespace.
It sees of the node what is mounted into it, and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from conftest_node import PATIENCE_S, RANK, Rank, eventually
from systemd_machine import TREES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conftest_node import Named, Node

BOOT = Path(__file__).with_name("container_boot.sh")
ENTER = Path(__file__).with_name("container_enter.py")
NAMESPACES = ("--pid", "--mount", "--uts", "--ipc", "--net")
MOUNTED_STORE = "/var/lib/npgxd"
RUNTIME = "/run/npgxd"


@cache
def why_not() -> str:
    """Why no container can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and mounts"
    missing = [program for program in ("unshare", "nsenter", "mount", "chroot") if not shutil.which(program)]
    if missing:
        return f"there is no {missing[0]}"
    script = 'mount --make-rprivate / && mount -t tmpfs none /mnt && mount -t proc proc /proc && exec "$@"'
    enter = [sys.executable, str(ENTER), "100000", "0", "0", "true"]
    tried = subprocess.run(
        ["unshare", "--fork", "--kill-child", *NAMESPACES, "sh", "-c", script, "sh", *enter],
        capture_output=True,
        text=True,
        check=False,
    )
    last = tried.stderr.strip().rpartition("\n")[2]
    return f"namespaces are not allowed here: {last}" if tried.returncode else ""


CAN_BE_MADE = pytest.mark.skipif(bool(why_not()), reason=f"NOT TESTED: containers: {why_not()}")


class Container:
    """One container of a node. What it is given can be changed before ``rank`` or ``run``; each of them makes a container of that kind."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.place = node.directory / name
        self.out = self.place / "out"
        for made in (self.place / "root", self.out):
            made.mkdir(parents=True)
        self.out.chmod(0o777)
        self.mounts: dict[str, tuple[Path, str]] = {str(tree): (tree, "ro") for tree in TREES}
        self.mounts["/out"] = (self.out, "rw")
        self.mounts[RUNTIME] = (node.runtime, "ro")  # one can connect to a socket there all the same
        self.mounts[MOUNTED_STORE] = (node.state, "ro")
        self.mapped = ""
        self.uid = 0
        self.gids = "0"
        self.options = ""
        self.environment: dict[str, str] = {"NPGXD_STORE": MOUNTED_STORE}
        self.process: subprocess.Popen[bytes] | None = None
        self._entered: list[subprocess.Popen[bytes]] = []

    def mount(self, source: Path, target: str, how: str = "ro") -> None:
        self.mounts[target] = (source, how)

    def begin(self, *program: str, error: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the container with ``program`` as its process 1; it ends with the test's process, too."""
        binds = self.place / "binds"
        binds.write_text("".join(f"{source} {target} {how}\n" for target, (source, how) in self.mounts.items()))
        unshare = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *NAMESPACES]
        boot = ["sh", str(BOOT), str(self.place / "root"), str(binds), self.options]
        enter = ["env", "-i", *self._environment(more), sys.executable, "-B", str(ENTER), self.mapped, str(self.uid), self.gids]
        with error.open("ab") as log:
            self.process = subprocess.Popen(
                [*unshare, *boot, *enter, *program],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        return self.process

    def enter(self, *program: str, error: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Another process in a container that runs, as ``docker exec`` starts one."""
        command = ["nsenter", "-t", str(self.first().pid), "-m", "-p", "-u", "-i", "-n", "-r", "-w"]
        with error.open("ab") as log:
            process = subprocess.Popen(
                [*command, "env", "-i", *self._environment(more), *program], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._entered.append(process)
        return process

    def rank(self, items: Named, **options: object) -> Rank:
        """A rank, process 1 of the container, that finds the daemon by what is mounted."""
        ask = self._ask(items, options)
        report = self.out / "rank.json"
        return Rank(self.begin(sys.executable, "-B", str(RANK), ask, "/out/rank.json", error=report.with_suffix(".err")), report)

    def rank_beside(self, items: Named, **options: object) -> Rank:
        """A rank in a container that runs."""
        ask = self._ask(items, options)
        report = self.out / "rank.json"
        return Rank(self.enter(sys.executable, "-B", str(RANK), ask, "/out/rank.json", error=report.with_suffix(".err")), report)

    def first(self) -> psutil.Process:
        """Its process 1, by its pid on this side."""
        assert self.process is not None
        outer = psutil.Process(self.process.pid)
        children = eventually(outer.children, "the container has a first process")
        return children[0]

    def close(self) -> None:
        for process in (self.process, *self._entered):
            if process is None:
                continue
            if process.poll() is None:
                process.kill()  # and the kernel ends all that is in the container
            process.wait(PATIENCE_S)
            assert process.stdin is not None
            process.stdin.close()

    def _ask(self, items: Named, options: dict[str, object]) -> str:
        (self.out / "ask.json").write_text(json.dumps({"records": items, **options}))
        return "/out/ask.json"

    def _environment(self, more: Mapping[str, str] | None) -> list[str]:
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        given = {"PATH": path, "PYTHONPATH": str(BOOT.parents[2]), **self.environment, **(more or {})}
        return [f"{name}={value}" for name, value in given.items()]
