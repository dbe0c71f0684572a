"""Where the operating system lets a process have no more threads: each program of ours says so, and none is ended by libzmq."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = "64999"
"""A user without processes: root has as many as it likes. It may read what root may, as the interpreter lies anywhere."""
MAY_READ = ("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
BECOME = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", *MAY_READ] if not os.geteuid() else []
NEEDED = [*BECOME, "prlimit", "--nproc=1:1", "true"]
RANK = """
import zmq
from npgxd.client.session import context_of_process
from npgxd.errors import DaemonUnavailable
try:
    context_of_process().socket(zmq.DEALER)
except DaemonUnavailable as error:
    print(error)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """With a socket where somebody listens."""
    path = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))  # a socket's path has at most 107 bytes
    for name in ("state", "run"):
        (path / name).mkdir()
        if BECOME:
            os.chown(path / name, int(NOBODY), int(NOBODY))
    (path / "npgxd.toml").write_text(f'[daemon]\nstate_dir = "{path}/state"\nruntime_dir = "{path}/run"\n')
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path / "a.sock"))
        listening.listen()
        yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-m", "npgxd.daemon.main", "--config", "{place}/npgxd.toml"], 71),
        (["-m", "npgxd.cli.main", "status", "--socket", "{place}/a.sock"], 71),
        (["-m", "npgxd.cli.main", "gc", "--socket", "{place}/a.sock"], 71),
        (["-c", RANK], 0),
    ],
    ids=["daemon", "status", "gc", "rank"],
)
def test_a_program_without_threads_ends_with_a_word_of_what_to_do(place: Path, words: list[str], code: int) -> None:
    if not all(map(shutil.which, ("prlimit", "setpriv"))) or subprocess.run(NEEDED, check=False, capture_output=True).returncode:
        pytest.skip("this needs prlimit(1), and for root setpriv(1) with its capabilities")
    argv = [sys.executable, *(word.replace("{place}", str(place)) for word in words)]
    done = subprocess.run([*NEEDED[:-1], *argv], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert "can't start new thread" in done.stdout + done.stderr
    assert "TasksMax=" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
