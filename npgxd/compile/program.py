"""One program of a job, run to its end: output drained, deadline kept, stopped when asked, its whole family ended after it."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.compile import ending, hygiene, processes
from npgxd.compile.output import BoundedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npgxd.compile.directory import JobDirectory
    from npgxd.compile.stop import Stop

TICK_S = 0.25
"""How often progress is looked at."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a program ended. ``code`` as subprocess has it: negative for a signal; None if it had to be ended by us.

    ``stopped`` says why it was ended by us; ``late`` that it had taken too long.
    """

    code: int | None
    stopped: str
    late: bool
    tail: str
    stuck: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one program: when it must have ended (monotonic), how gently it is ended, and how much output is kept."""

    deadline: float
    grace_s: float
    log_bytes: int


class Program:
    """A program that runs. It is the only one of its worker; whatever it leaves behind is ended with it."""

    def __init__(
        self,
        argv: list[str],
        *,
        name: str,
        directory: JobDirectory,
        environment: Mapping[str, str],
        limits: Limits,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        out, err = directory.output(name)
        self._limits = limits
        self._stdout = BoundedLog(out, limits.log_bytes, on_line)
        self._stderr = BoundedLog(err, limits.log_bytes)
        self._process = hygiene.spawn(argv, directory=directory, environment=environment)
        self.pid = self._process.pid
        self._pipes = {
            hygiene.read_log(self._process.stdout): self._stdout,
            hygiene.read_log(self._process.stderr): self._stderr,
        }

    def run(
        self,
        stop: Stop,
        *,
        begin: Callable[[], object],
        tick: Callable[[], object],
        free: Callable[[str], bool] = lambda _why: False,
    ) -> Exit:
        """Wait for the end, whatever it is: ``begin`` is called at once, ``tick`` every ``TICK_S`` seconds.

        ``free`` is called with the reason when the program is taken to be stuck; False: it is ended.  An error in any of them ends the
        program too, before it goes on to the caller.
        """
        try:
            begin()
            reason, late = self._wait(stop, tick, free)
        finally:
            code = self._process.poll()
            stuck = self._end_family()
            for fd, log in self._pipes.items():
                log.drain(fd)
            self._close()
        return Exit(
            code=None if reason else code,
            stopped=reason,
            late=late,
            tail=(self._stdout.tail() + self._stderr.tail()).strip(),
            stuck=stuck,
        )

    def end_children(self) -> bool:
        """End everything that the program has started until now, and leave the program itself to go on; False: there is nothing."""
        ours = {process.pid: process.started for process in processes.descendants((self.pid,), processes.table()).values()}

        def still() -> list[processes.Process]:
            known = map(processes.read, ours)
            return [process for process in known if process is not None and process.started == ours[process.pid]]

        found = any(process.runs for process in still())
        ending.end_all(still, grace_s=self._limits.grace_s)
        return found

    def _wait(self, stop: Stop, tick: Callable[[], object], free: Callable[[str], bool]) -> tuple[str, bool]:
        poller = select.poll()
        pidfd = os.pidfd_open(self.pid)
        try:
            for fd in (pidfd, *stop.filenos(), *self._pipes):
                poller.register(fd, select.POLLIN)
            next_tick = time.monotonic()
            while self._process.poll() is None:
                now = time.monotonic()
                if stop.reason():
                    return stop.reason(), False
                if now >= self._limits.deadline:
                    return "its deadline has passed", True
                if (why := stop.stuck()) and not free(why):
                    return why, True
                if now >= next_tick:
                    tick()
                    next_tick = now + TICK_S
                timeout = min(next_tick, self._limits.deadline) - now
                for fd, _ in poller.poll(max(1, int(timeout * 1000) + 1)):
                    if fd in self._pipes and not self._pipes[fd].drain(fd):
                        poller.unregister(fd)
        finally:
            os.close(pidfd)
        return "", False

    def _end_family(self) -> tuple[str, ...]:
        """End every descendant of this worker; all of them are this program's, and orphans come back to the worker."""
        me = os.getpid()
        gentle = self._limits.grace_s if self._process.returncode is None else 0.0

        def family() -> list[processes.Process]:
            self._reap()
            return list(processes.descendants((me,), processes.table()).values()) if _has_children() else []

        return tuple(str(process) for process in ending.end_all(family, grace_s=gentle))

    def _reap(self) -> None:
        while _has_children():
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            if ended.si_pid == self.pid:
                self._process.wait()
            else:
                os.waitpid(ended.si_pid, 0)

    def _close(self) -> None:
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._stdout.close()
        self._stderr.close()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
