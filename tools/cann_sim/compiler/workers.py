"""The opc processes: one forked child per kernel, at most ``-j`` at once, longest first."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .kernel import Target, write_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from .orders import Order


@dataclass(frozen=True)
class Work:
    """One kernel to compile: what it costs, where it goes, what was ordered, or why it cannot be compiled at all."""

    target: Target
    seconds: float
    directory: Path
    log: Path
    """The log while compiling; renamed when the kernel succeeds."""
    order: Order | None = None
    problem: str = ""


SUCCEEDED, FAILED = 0, 1


def run(works: list[Work], jobs: int, done: Callable[[Work, int], None]) -> None:
    """Compile every item; ``done`` is told of each end with its exit status (negative: the signal that ended it)."""
    waiting = sorted(works, key=lambda work: (work.seconds, work.target.name))
    running: dict[int, Work] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            work = waiting.pop()
            _die_if_ordered(work)
            running[_start(work)] = work
        pid, status = os.wait()
        if pid in running:
            done(running.pop(pid), os.waitstatus_to_exitcode(status))


def _die_if_ordered(work: Work) -> None:
    """``crash``, ``oom_kill`` and ``killed`` take op_compiler itself; its children are not told."""
    kind = work.order.kind if work.order else ""
    if kind in ("crash", "oom_kill", "killed"):
        work.log.write_text(f"[ERROR] opc {work.target.name}: started\n")
        if kind == "oom_kill":  # a simulation cannot have the kernel count it
            print("[ERROR] op_compiler: MemoryError (simulated)", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV if kind == "crash" else signal.SIGKILL)
        signal.pause()


def _start(work: Work) -> int:
    end = time.monotonic() + work.seconds
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        status = _compile(work, end)
    finally:
        os._exit(status)


def _compile(work: Work, end: float) -> int:
    """In the child: one kernel, with its log, until the time that the cost model says; what this really takes is in it."""
    _call_me("opc")
    name = work.target.name
    work.log.write_text(f"[INFO] opc {name}: compiling {work.target.record.op_type} for {work.target.soc.name} (simulated)\n")
    if work.problem:
        return _fail(work, work.problem)
    kind = work.order.kind if work.order else ""
    if kind.startswith("hang"):
        _hang(stubborn=kind == "hang_hard")
    if kind not in ("fail", "opc_killed"):
        write_kernel(work.target, work.directory)
    time.sleep(max(0.0, end - time.monotonic()))
    if kind == "fail":
        return _fail(
            work, f"op {work.target.record.op_type}: tiling failed: the tile does not fit the unified buffer (ordered failure)"
        )
    if kind == "opc_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    with work.log.open("a") as log:
        log.write(f"[INFO] opc {name}: success\n")
    work.log.replace(work.log.with_name(f"{name}_compile_succ.log"))
    return SUCCEEDED


def _fail(work: Work, reason: str) -> int:
    with work.log.open("a") as log:
        log.write(f"[ERROR] E40021: {reason}\n")
    return FAILED


def _hang(*, stubborn: bool) -> None:
    """Wait for ever, with a child that does too."""
    if stubborn:
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
    if os.fork() == 0:
        _call_me("bisheng")
    while True:
        signal.pause()


def _call_me(name: str) -> None:
    """The process name that ps shows."""
    try:
        Path("/proc/self/comm").write_text(name)
    except OSError:
        return  # not Linux, or no /proc: only the name is lost
