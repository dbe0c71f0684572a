"""Kill -9 in the middle of a compile, each kind of process in turn: nobody hangs, nothing is compiled twice that need not be."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from tools.demo import checks
from tools.demo.children import arguments, descendants
from tools.demo.failure import DemoError
from tools.demo.node import Node
from tools.demo.serving import Ranks, install_application, serve

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from tools.demo.children import Children
    from tools.demo.serving import Start

VICTIMS = ("op_compiler", "worker", "daemon", "rank")
"""Whom the scenarios kill."""

NPROC = 2
COMPILE_STARTS_S = 60.0
IDLE_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Survival:
    """One scenario, complete: the start in which ``victim`` was killed, and the one after it."""

    victim: str
    pid: int
    hurt: Start
    following: Start
    kept: int
    """Kernels in the store before the following start."""

    def untrue(self) -> list[str]:
        """What is not as it must be, in sentences."""
        return [f"kill -9 of {self.victim}: {problem}" for problem in (*_hurt(self), *_following(self))]


def survive_all(directory: Path, children: Children, console: Console, *, batch_sizes: Sequence[int]) -> list[str]:
    """Every victim in turn, each on a node of its own; gives what is untrue."""
    script = install_application(directory / "app")
    problems = []
    for victim in VICTIMS:
        survival = survive(directory / victim, children, script, victim=victim, batch_sizes=batch_sizes)
        states = ", ".join(f"{graph.state}({graph.reason})" for report in survival.hurt.reports for graph in report.graphs)
        console.print(
            f"kill -9 of {victim}: ranks went on as {states}, {survival.kept} kernels kept, "
            f"{survival.following.compiled} compiled at the next start",
            highlight=False,
        )
        problems += survival.untrue()
    return problems


def survive(directory: Path, children: Children, script: Path, *, victim: str, batch_sizes: Sequence[int]) -> Survival:
    """A cold start on a fresh node in which ``victim`` is killed while op_compiler runs, and a start after it."""
    with Node(directory, children) as node:
        node.start_daemon()
        ranks = Ranks.one_by_one(node, script, directory / "hurt", batch_sizes=batch_sizes, nproc=NPROC)
        wait_for_compile(node, ranks)
        pid = pid_of(victim, node, ranks)
        if victim == "daemon":
            node.kill_daemon()
            node.start_daemon()
        else:
            os.kill(pid, signal.SIGKILL)
        hurt = ranks.finish(f"start in which {victim} is killed", expect_reports=victim != "rank")
        wait_until_idle(node)
        kept = node.counters().kernels
        following = serve(node, script, directory / "following", name="start after it", batch_sizes=batch_sizes, nproc=NPROC)
        node.stop_daemon()
    return Survival(victim, pid, hurt, following, kept)


def wait_for_compile(node: Node, ranks: Ranks) -> None:
    """Until op_compiler has finished at least one kernel and is at work on others."""
    end = time.monotonic() + COMPILE_STARTS_S
    while time.monotonic() < end and ranks.running():
        status = node.status()
        if status is not None and any(0 < job["done"] < job["keys"] for job in status["workers"]["jobs"]):
            return
        time.sleep(_POLL_S)
    raise DemoError(f"no compile was under way within {COMPILE_STARTS_S:.0f} s:\n{ranks.tail()}")


def wait_until_idle(node: Node) -> None:
    """Until the daemon compiles nothing and waits for nothing."""
    end = time.monotonic() + IDLE_S
    while time.monotonic() < end:
        status = node.status()
        if status is not None and not status["workers"]["busy"] and not status["queue"]["rounds"]:
            return
        time.sleep(_POLL_S)
    raise DemoError(f"the daemon is still busy {IDLE_S:.0f} s after its ranks have ended")


def pid_of(victim: str, node: Node, ranks: Ranks) -> int:
    """The process to kill."""
    if node.daemon is None:
        raise DemoError("the daemon was not started")
    if victim == "daemon":
        return node.daemon.pid
    if victim == "rank":
        return ranks.children[-1].pid
    wanted = _is_op_compiler if victim == "op_compiler" else _is_worker
    for process in descendants(node.daemon.pid):
        if wanted(process):
            return process.pid
    raise DemoError(f"no {victim} process is running")


def _is_op_compiler(process: psutil.Process) -> bool:
    """The compiler itself: its forked children have its command line too, but also such a parent."""
    if not any(argument.endswith("/op_compiler") for argument in arguments(process)):
        return False
    try:
        parent = process.parent()
    except psutil.NoSuchProcess:
        return False
    return parent is None or not any(argument.endswith("/op_compiler") for argument in arguments(parent))


def _is_worker(process: psutil.Process) -> bool:
    return any(argument.endswith("npgxd/compile/worker.py") for argument in arguments(process))


def _hurt(survival: Survival) -> list[str]:
    """The start in which something was killed: its other ranks ended well, with right outputs and a stated reason."""
    hurt = survival.hurt
    expected = [0] * hurt.nproc
    if survival.victim == "rank":
        expected[-1] = -signal.SIGKILL
    problems = []
    if list(hurt.exit_codes) != expected:
        problems.append(f"the ranks' exit codes are {list(hurt.exit_codes)}, not {expected}")
    repeated = sorted(kernel for kernel, count in hurt.compiles.items() if count > 1)
    if repeated:
        problems.append(f"compiled to the end more than once: {repeated}")
    if len(hurt.reports) != expected.count(0):
        problems.append(f"{len(hurt.reports)} ranks reported, not {expected.count(0)}")
    for report in hurt.reports:
        if not report.equal:
            problems.append(f"rank {report.rank}'s outputs differ from eager's by up to {report.max_difference:.3g}")
        problems.extend(
            f"rank {report.rank} is {graph.state}({graph.reason}) for batch {graph.batch}"
            for graph in report.graphs
            if graph.state not in {"INSTALLED", "DEGRADED"}
        )
    return problems


def _following(survival: Survival) -> list[str]:
    """The start after it: everything installed, and only what was missing compiled."""
    following = survival.following
    missing = len(following.digests) - survival.kept
    problems = checks.ranks_untrue(following)
    if following.compiled != missing or len(following.compiles) != missing:
        problems.append(
            f"{missing} kernels were missing, the daemon compiled {following.compiled} and op_compiler {len(following.compiles)}"
        )
    return problems
