"""A daemon that is there and says nothing: doctor tells what its process is at, and what to type."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from npgxd.cli.findings import silent
from npgxd.cli.main import main
from npgxd.wire import limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60.0
_LISTENS = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen(8)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mute(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process that listens and never answers, and its socket."""
    path = tmp_path / "npgxd.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", _LISTENS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process.pid, path
    process.kill()
    process.communicate()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + PATIENCE_S
    while silent._states(silent.Path("/proc") / str(pid))[:1] != "T":
        assert time.monotonic() < end


def test_a_daemon_that_was_stopped_by_a_signal_is_told_with_the_command_that_lets_it_go_on(
    mute: tuple[int, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pid, path = mute
    stop(pid)
    monkeypatch.setenv("NPGXD_SOCKET", str(path))
    monkeypatch.setattr("npgxd.cli.ask.limits.SILENCE_S", 0.2)
    assert limits.SILENCE_S == 0.2
    assert main(["doctor", "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert f"its process {pid} was stopped by a signal" in first["text"]
    assert first["remedy"] == f"kill -CONT {pid}"
    assert main(["status"]) == 69
    assert "npgxctl doctor says whether it is stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("states", "said", "do"),
    [
        ("SD", "waits for a disk", "dmesg"),
        ("St", "a debugger holds", "TracerPid"),
        ("SS", "is busy, stuck, or waits for its disk", "systemctl restart npgxd"),
        ("Z", "", ""),
    ],
)
def test_what_else_keeps_a_process_is_told_apart(mute: tuple[int, Path], tmp_path: Path, states: str, said: str, do: str) -> None:
    pid, path = mute
    for thread, state in enumerate(states, start=9):  # 10 comes after 9
        place = tmp_path / "proc" / str(pid) / "task" / str(thread)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{thread} (np) gx d) {state} 1 2 3\n")
    why, remedy = silent.why(path, [], tmp_path / "proc")
    assert said in why
    assert do in remedy


def test_where_the_service_manager_made_the_socket_the_state_directory_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent, "listener", lambda _path: (1, 0))
    (tmp_path / "instance.lock").write_text(f"{os.getpid()}\n")
    assert f"its process {os.getpid()}" in silent.why(tmp_path / "s", [tmp_path / "none", tmp_path])[0]
    assert silent.why(tmp_path / "s", []) == ("", "")
