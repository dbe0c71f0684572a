from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npgxd.compile import ending, processes

if TYPE_CHECKING:
    from pathlib import Path


from tests.compile.conftest import Started, runs, until

SLEEP = "import time; time.sleep(600)"
PARENT = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
    time.sleep(600)
time.sleep(600)
"""
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
while True:
    time.sleep(600)
"""
FORKING = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def handler(*_):
    if os.fork():
        os._exit(0)
    os.setsid()
signal.signal(signal.SIGTERM, handler)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
while True:
    time.sleep(600)
"""


def test_a_process_is_read_with_a_start_that_identifies_it() -> None:
    me = processes.read(os.getpid())
    assert me is not None
    assert (me.pid, me.parent, me.group, me.session) == (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
    assert me.runs
    assert processes.read(2**22 + 1) is None


def test_a_name_with_parentheses_and_spaces_does_not_confuse(started: Started, tmp_path: Path) -> None:
    code = "open('/proc/self/comm', 'w').write('a) R 1 (b'); open('ready', 'w').write('1\\n'); import time; time.sleep(600)"
    process = started.python(code)
    started_pid = process.pid
    until((tmp_path / "ready").exists, "the process is ready")
    seen = processes.read(started_pid)
    assert seen is not None
    assert (seen.name, seen.parent) == ("a) R 1 (b", os.getpid())


def test_descendants_are_found_across_sessions(started: Started, tmp_path: Path) -> None:
    parent = started.python(PARENT, str(tmp_path / "pid"))
    grandchild = started.pid_in(tmp_path / "pid")
    found = processes.descendants((parent.pid,), processes.table())
    assert grandchild in found
    assert parent.pid not in found
    assert len(found) == 2
    ending.end_all(lambda: processes.descendants((parent.pid,), processes.table()).values(), grace_s=0)
    # It was killed with its parent, and is nobody's descendant while it dies.
    until(lambda: not runs(grandchild), "the grandchild is gone")


def test_a_signal_does_not_hit_another_process_that_got_the_pid(started: Started) -> None:
    process = started.python(SLEEP)
    seen = processes.read(process.pid)
    assert seen is not None
    assert not processes.send(replace(seen, started=seen.started + 1), signal.SIGKILL)
    assert process.poll() is None
    assert processes.send(seen, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    assert not processes.send(seen, signal.SIGKILL)


@pytest.mark.parametrize("code", [STUBBORN, FORKING], ids=["ignores SIGTERM", "forks away at SIGTERM"])
def test_a_kill_ends_whatever_the_process_does_about_it(code: str, started: Started, tmp_path: Path) -> None:
    process = started.python(code, str(tmp_path / "pid"), env={**os.environ, "NPGXD_TEST": str(tmp_path)})
    started.pid_in(tmp_path / "pid")

    def find() -> list[processes.Process]:
        return [p for p in processes.table().values() if processes.carries(p, f"NPGXD_TEST={tmp_path}")]

    assert [p.pid for p in find()] == [process.pid]
    assert ending.end_all(find, grace_s=0.2) == ()
    assert [p for p in find() if p.runs] == []


def test_what_the_kernel_does_not_let_go_is_named_and_not_waited_for() -> None:
    clock = iter(range(100))
    immortal = processes.Process(pid=2**22 + 1, name="opc", state="D", parent=1, group=1, session=1, started=1)
    remaining = ending.end_all(lambda: [immortal], grace_s=2, force_s=5, clock=lambda: next(clock))
    assert remaining == (immortal,)
    assert str(immortal) == "opc (pid 4194305, state D)"
