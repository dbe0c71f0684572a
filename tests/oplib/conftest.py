"""What the op library's tests share: a house with its views and leases, and processes that hold a lease."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from npgxd.oplib.leases import LeaseFacts, Leases
from npgxd.oplib.recovery import Recovery, recover
from npgxd.oplib.views import View, Views
from tests.store.made import House

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOOT = "this-boot"
HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@dataclass(slots=True)
class OpLibrary:
    """A house, its views and its leases."""

    house: House
    boot: str = BOOT
    views: Views = field(init=False)
    leases: Leases = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.views = Views(self.house.state, self.house.kernels, self.boot)
        self.leases = Leases(self.house.state, self.boot)

    def restart(self) -> Recovery:
        """As a daemon that was killed and started again."""
        self.house.reopen()
        self.open()
        return recover(self.house.state, self.views, self.leases)

    def view(self, *names: str, content: bytes = b"object") -> View:
        """A view of kernels made from these names."""
        return self.views.assemble([self.house.publish(name, content) for name in names])

    def offer(self, view: View, session: str = "s1") -> LeaseFacts:
        return self.leases.offer(view.digest, session=session, uid=1000, pid=1, started=1.0)

    def path(self, lease: LeaseFacts) -> Path:
        return self.house.state.leases / lease.lease

    def drop_unleased(self) -> list[str]:
        self.leases.release_dead()
        return self.views.drop_unleased(keep=self.leases.views_in_use())


class Holders:
    """Client processes that hold a lease, and that are killed at the latest with the test."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[bytes]] = []

    def hold(self, path: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._all.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.communicate()

    def end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                self.kill(process)


@pytest.fixture
def oplib(tmp_path: Path) -> Iterator[OpLibrary]:
    """A new op library."""
    house = House(tmp_path / "state", tmp_path / "scratch")
    yield OpLibrary(house)
    house.close()


@pytest.fixture
def holders() -> Iterator[Holders]:
    """Starts processes that hold leases."""
    made = Holders()
    yield made
    made.end()
