"""Real system calls that fail or kill, through strace: what the kernel says is what is told, and nothing is lost."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.ground import AFTER, Ground, wrong_after
from tests.crash.one_act import REFUSED
from tests.store.made import House, round_entry
from tests.system.conftest_node import PATIENCE_S, Node, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
CALLS = "write,pwrite64,fsync,fdatasync,rename,mkdir"


@functools.cache
def why_not() -> str:
    """Why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed: apt-get install strace"
    tried = subprocess.run(
        [
            "strace",
            "-qq",
            "-e",
            "inject=getppid:error=EIO",
            "-e",
            "trace=getppid",
            sys.executable,
            "-c",
            "import os; os.getppid()",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode or "INJECTED" not in tried.stderr:
        return f"strace may not trace here (ptrace is forbidden?): {tried.stderr.strip()[-200:]}"
    return ""


@pytest.fixture(autouse=True)
def strace() -> None:
    if why_not():
        pytest.skip(f"NO REAL I/O ERRORS ARE TESTED: {why_not()}")


def traced(root: Path, act: str, *expressions: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run one act below strace; how it ended, and its trace with the paths of descriptors."""
    trace = root / "trace"
    command = ["strace", "-y", "-qq", "-o", str(trace), "-e", f"trace={CALLS}"]
    command += [word for expression in expressions for word in ("-e", f"inject={expression}")]
    command += [sys.executable, "-m", "tests.crash.one_act", str(root / "state"), act]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return done, trace.read_text()


def made(root: Path) -> None:
    root.mkdir()
    House(root / "state", root / "scratch").close()


def ordinal(trace: str, call: str, pattern: str, number: int) -> int:
    """Of all calls of this name, which one is the ``number``-th (-1: the last) whose line matches."""
    calls = [line for line in trace.splitlines() if line.startswith(f"{call}(")]
    matching = [at for at, line in enumerate(calls, 1) if re.search(pattern, line)]
    assert len(matching) >= abs(number), trace
    return matching[number - 1 if number > 0 else number]


def recovered(root: Path, there: str = "") -> list[str]:
    """Start on what is left; what is wrong with it, and what is missing of what must be there."""
    ground = Ground(root, AFTER)
    try:
        problems = wrong_after(ground, {"a": {b"A"}})
        if ground.house.rounds.pending() not in ([round_entry()], *([[]] if there != "the round" else [])):
            problems.append("the round")
        return problems + (["the kernel"] if there == "the kernel" and ground.content("a") is None else [])
    finally:
        ground.close()


@pytest.fixture
def failing(tmp_path: Path) -> Callable[[str, str, str, int, str], tuple[subprocess.CompletedProcess[str], Path]]:
    """Runs an act in which the ``number``-th call on a path that matches fails, or kills; it is looked for in a run without."""

    def run(act: str, call: str, pattern: str, number: int, what: str) -> tuple[subprocess.CompletedProcess[str], Path]:
        made(tmp_path / "plain")
        done, trace = traced(tmp_path / "plain", act)
        assert done.stdout == "acknowledged\n", done.stderr
        made(tmp_path / "fails")
        done, trace = traced(tmp_path / "fails", act, f"{call}:{what}:when={ordinal(trace, call, pattern, number)}")
        assert "INJECTED" in trace or what.startswith("signal"), trace
        return done, tmp_path / "fails"

    return run


FAILURES = {
    "no space for the round": ("accept", "write", r"staging/\.npgxd-", 1, "error=ENOSPC"),
    "the round's bytes are not on the disk": ("accept", "fsync", r"staging/\.npgxd-", 1, "error=EIO"),
    "the round has no name": ("accept", "rename", r"rounds/", 1, "error=EIO"),
    "the round's name is not on the disk": ("accept", "fsync", r"/rounds>", 2, "error=EIO"),
    "no space for a kernel": ("publish", "write", r"staging/job-1.*\.o>", 1, "error=ENOSPC"),
    "the kernel's bytes are not on the disk": ("publish", "fsync", r"staging/job-1.*\.o>", 1, "error=EIO"),
    "the kernel has no name": ("publish", "rename", r"kernels/", 1, "error=ENOSPC"),
    "the kernel's name is not on the disk": ("publish", "fsync", r"/kernels/..>", 1, "error=EIO"),
    "the catalog's log cannot grow": ("publish", "pwrite64", r"catalog\.sqlite-wal>", -1, "error=ENOSPC"),
    "the catalog's log is not on the disk": ("publish", "fdatasync", r"catalog\.sqlite-wal>", -1, "error=EIO"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_real_error_is_told_and_never_acknowledged(
    failing: Callable[..., tuple[subprocess.CompletedProcess[str], Path]], name: str
) -> None:
    done, root = failing(*FAILURES[name])
    assert (done.returncode, done.stdout) == (REFUSED, ""), done.stderr
    wanted = (
        "full or over quota|free space on its disk"
        if "ENOSPC" in FAILURES[name][-1]
        else "input/output|cannot write the catalog|free space"
    )
    assert re.search(wanted, done.stderr), done.stderr
    act = FAILURES[name][0]
    assert recovered(root) == []
    again, _ = traced(root, act)
    assert again.stdout == "acknowledged\n", again.stderr
    assert recovered(root, {"accept": "the round", "publish": "the kernel"}[act]) == []


KILLS = {
    "at the round's rename": ("accept", "rename", r"rounds/", 1),
    "at the fsync of rounds/": ("accept", "fsync", r"/rounds>", 2),
    "at a kernel's rename": ("publish", "rename", r"kernels/", 1),
    "in the catalog's commit": ("publish", "pwrite64", r"catalog\.sqlite-wal>", -2),
    "at the catalog's fsync": ("publish", "fdatasync", r"catalog\.sqlite-wal>", -1),
}


@pytest.mark.parametrize("name", KILLS)
def test_fc07_a_real_kill_in_a_system_call_leaves_all_or_nothing(
    failing: Callable[..., tuple[subprocess.CompletedProcess[str], Path]], name: str
) -> None:
    done, root = failing(*KILLS[name], "signal=SIGKILL")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    assert recovered(root) == []
    again, _ = traced(root, KILLS[name][0])
    assert again.stdout == "acknowledged\n", again.stderr
    assert recovered(root, {"accept": "the round", "publish": "the kernel"}[KILLS[name][0]]) == []


def test_a_running_daemon_refuses_a_round_whose_fsync_fails_and_lives_on(node: Node, tmp_path: Path) -> None:
    assert node.daemon is not None
    command = ["strace", "-p", str(node.daemon.pid), "-P", str(node.state / "rounds"), "-o", str(tmp_path / "trace")]
    tracer = subprocess.Popen([*command, "-e", "inject=fsync:error=EIO:when=1"], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    try:
        assert "attached" in tracer.stderr.readline()
        refused = node.rank(matmuls(16, 32)).outcome()
        assert refused["state"] == "DEGRADED", "its round was not on the disk"
        assert "INJECTED" in (tmp_path / "trace").read_text()
    finally:
        os.kill(tracer.pid, signal.SIGTERM)
        tracer.communicate(timeout=PATIENCE_S)
    assert node.daemon.poll() is None
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
