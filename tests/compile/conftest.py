"""What the tests of compile jobs share: real processes that are always ended, and waiting that has a bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from npgxd.compile import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def until(condition: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
    """Wait until ``condition`` holds; fail with ``what`` after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {limit_s:g} s: {what}")
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    process = processes.read(pid)
    return process is not None and process.runs


class Started:
    """Processes that a test started; whatever is left of them is killed at its end."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._processes: list[subprocess.Popen[bytes]] = []
        self._others: list[processes.Process] = []

    def python(self, code: str, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        """A Python program in a session of its own."""
        options.setdefault("start_new_session", True)
        options.setdefault("cwd", self._where)
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
        self._processes.append(process)
        return process

    def pid_in(self, path: Path) -> int:
        """The pid that a process wrote into a file (by rename or with a newline at its end); it is ended with the test too."""
        until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} is written")
        pid = int(path.read_text())
        if (process := processes.read(pid)) is not None:
            self._others.append(process)
        return pid

    def end(self) -> None:
        """End all of them."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        for other in self._others:
            processes.send(other, signal.SIGKILL)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    family = Started(tmp_path)
    yield family
    family.end()
