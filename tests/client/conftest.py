from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npgxd.client import Client, Patience, notice
from tests.client.fake_daemon import FakeDaemon, make_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PATIENT = Patience(handshake_s=20, silence_s=20, reconnect_s=20, remind_s=0.3)
"""For tests in which the daemon answers, however slow this machine is."""
HASTY = Patience(handshake_s=2, silence_s=0.5, reconnect_s=0.5, remind_s=0.2)
"""For tests in which it does not."""


@pytest.fixture(autouse=True)
def _said_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "_said", set())


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path: a socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="npgx-t", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


@pytest.fixture
def environ(short: Path) -> dict[str, str]:
    return {"NPGXD_SOCKET": str(short / "npgxd.sock")}


@pytest.fixture
def fake(short: Path, store: Path) -> Iterator[Callable[..., FakeDaemon]]:
    """Starts stand-ins, one after the other, at one socket."""
    started: list[FakeDaemon] = []

    def start(**how: object) -> FakeDaemon:
        started.append(FakeDaemon(short / "npgxd.sock", store, **how))
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture
def fake_process(short: Path, store: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """The stand-in as a process, to be stopped or killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.client.fake_daemon", str(short / "npgxd.sock"), str(store), *how]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def client(environ: dict[str, str]) -> Iterator[Client]:
    made = Client(environ, patience=PATIENT)
    yield made
    made.close()


@pytest.fixture
def hasty(environ: dict[str, str]) -> Iterator[Client]:
    made = Client(environ, patience=HASTY)
    yield made
    made.close()
