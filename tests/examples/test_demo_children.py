"""No process of the demo outlives it, whatever it does."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from typing import TYPE_CHECKING

import psutil
import pytest

from tools.demo.children import Child, Children

if TYPE_CHECKING:
    from pathlib import Path

SLEEP = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
WITH_CHILD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True, env={{}})
print(child.pid, flush=True)
time.sleep(600)
"""


def start(children: Children, directory: Path, code: str) -> Child:
    log = directory / f"{uuid.uuid4().hex}.log"
    return children.start([sys.executable, "-c", code], log=log, environment={}, cwd=directory)


def first_line(child: Child) -> str:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if lines := child.log.read_text().splitlines():
            return lines[0]
        time.sleep(0.01)
    pytest.fail("the child said nothing")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_everything_ends_with_the_context_even_after_an_error(tmp_path: Path) -> None:
    started = []

    def fail() -> None:
        with Children(uuid.uuid4().hex) as children:
            started.append(start(children, tmp_path, SLEEP))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not is_alive(started[0].pid)
    assert started[0].process.returncode == -signal.SIGTERM


def test_an_orphan_without_the_marker_is_found_and_ended(tmp_path: Path) -> None:
    with Children(uuid.uuid4().hex) as children:
        parent = start(children, tmp_path, WITH_CHILD)
        orphan = int(first_line(parent))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(30)
        assert [left.pid for left in children.left_behind()] == [orphan]
        assert children.settle(0.1) != []
    assert not is_alive(orphan)


def test_what_is_left_is_named_by_its_command(tmp_path: Path) -> None:
    with Children(uuid.uuid4().hex) as children:
        child = start(children, tmp_path, SLEEP)
        first = children.left_behind()
        assert [left.pid for left in first] == [child.pid]
        child.signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
        assert children.settle() == []


def test_one_that_ignores_a_request_is_ended_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.demo.children._GRACE_S", 0.2)
    with Children(uuid.uuid4().hex) as children:
        child = start(children, tmp_path, STUBBORN)
        assert first_line(child) == "up"
    assert child.process.returncode == -signal.SIGKILL
    assert child.tail() == "up"


def test_a_process_that_was_there_before_is_left_alone(tmp_path: Path) -> None:
    with Children(uuid.uuid4().hex) as others:
        other = start(others, tmp_path, SLEEP)
        with Children(uuid.uuid4().hex) as children:
            assert children.left_behind() == []
        assert is_alive(other.pid)
