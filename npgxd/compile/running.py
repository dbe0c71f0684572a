"""One running job, seen from the daemon: a descriptor to poll and a source of events.

The last event is always a :class:`JobResult` or a :class:`JobFailed`, and after that none of the job's processes runs any more; those
that the kernel does not let go are named.  Nothing here waits, but :meth:`Job.close` of a job that has not ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import npgxd
from npgxd.compile import ending, processes
from npgxd.compile.channel import Channel
from npgxd.compile.directory import SPEC, JobDirectory, Owner
from npgxd.compile.job import Event, JobFailed, JobResult, JobSpec, JobStarted, all_failed, unpack_event
from npgxd.compile.leftovers import JOB_VARIABLE, belonging, identity
from npgxd.compile.memory_kills import MemoryKills
from npgxd.compile.outcome import death, explain, killed_by, outcome_of_signal
from npgxd.compile.stop import CANCEL, STUCK
from npgxd.errors import CompileError, StoreError
from npgxd.store.disk import DISK
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

SLACK_S = 15.0
"""What a worker may take beyond a deadline or a cancel, to end its programs and say so, before it is ended itself."""
_WORKER = Path(__file__).with_name("worker.py")


class Job:
    """One worker and what it has told. Poll ``fileno()`` for reading; then ``receive()``."""

    def __init__(self, spec: JobSpec, *, clock: Callable[[], float], slack_s: float) -> None:
        self.spec = spec
        self.started_at = clock()
        self.ended = False
        self._clock = clock
        self._slack_s = slack_s
        self._directory = JobDirectory(spec.job_dir)
        self._result: JobResult | None = None
        self._cancelled = ""
        self._kill_at = self.started_at + spec.deadline_s + slack_s
        self._killed_for = ""
        self._force_until: float | None = None
        self._lingering: set[int] = set()
        self._abandoned = False
        self._memory = MemoryKills()
        token = secrets.token_hex(16)
        with contextlib.ExitStack() as undo:
            try:
                self._open(token, undo)
            except OSError as error:
                raise CompileError(
                    f"cannot start a worker: {explain(error)}",
                    hint="look at the limits on processes, descriptors and memory, and at the disk of the state directory",
                    transient=True,
                ) from error
            undo.pop_all()
        self._owner = Owner(spec.job_id, token, processes.boot_id(), tuple(filter(None, [identity(self._process.pid)])))

    # ---- for the poll loop -------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """One descriptor for the job's whole life: readable when ``receive`` has something to do."""
        return self._poll.fileno()

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    @property
    def token(self) -> str:
        """What every process of this job carries in its environment."""
        return self._owner.token

    def receive(self) -> list[Event]:
        """What happened since the last call. Never waits. After the job's end (``ended``) it is empty."""
        if self.ended:
            return []
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        events: list[Event] = []
        ended = self._process.poll() is not None or self._abandoned  # looked at first: what it sent until then is read below
        try:
            told = [unpack_event(frame) for frame in self._channel.receive()]
        except (ValueError, TypeError, KeyError) as error:
            self._kill(f"the worker told something that is no event: {error}")
            told = []
        for event in told:
            if isinstance(event, JobResult):
                self._result = event
                continue
            if isinstance(event, JobStarted):
                self._note_leader(event.pid)
            events.append(event)
        if self._channel.closed:
            self._forget(self._channel.fileno())
        if ended and (last := self._conclude()) is not None:
            events.append(last)
        return events

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask the worker to end what it does; its last event will be a result or a failure with this reason. Never waits."""
        if self.ended or self._cancelled:
            return
        self._cancelled = reason
        self._kill_at = min(self._kill_at, self._clock() + self.spec.grace_s + self._slack_s)
        if not self._channel.offer(CANCEL + reason.encode()):
            self._process.terminate()

    def unstick(self, reason: str) -> None:
        """Tell the worker that its program gives no sign of life: what hangs is ended, the rest may go on. Never waits."""
        if not self.ended and not self._cancelled:
            self._channel.offer(STUCK + reason.encode())

    # ---- the second line ---------------------------------------------------------------------------------------------

    @property
    def next_check(self) -> float:
        """When ``enforce`` has something to do next."""
        return self._kill_at if self._force_until is None else self._force_until

    def enforce(self, now: float) -> None:
        """End a worker that is past its time; give up on processes that do not end even so."""
        if self.ended:
            return
        if self._force_until is not None:
            if now >= self._force_until:
                self._abandoned = True
                os.eventfd_write(self._wake, 1)  # the next receive concludes
        elif now >= self._kill_at and self._process.poll() is None:
            self._kill(f"the worker did not {'end after it was cancelled' if self._cancelled else 'keep its deadline'}")

    def close(self) -> None:
        """Give back a job's descriptors and what it left in staging: call it after publishing. Ends a job that still runs."""
        if not self.ended:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel does not let go is not waited for
                self._process.wait(ending.FORCE_S)
            ending.end_all(self._family, grace_s=0.0)
            self.ended = True
        if not self._poll.closed:
            self._drop_lingering()
            self._poll.close()
            self._channel.close()
            os.close(self._pidfd)
            os.close(self._wake)
            self._tidy(lambda: DISK.remove_tree(self.spec.staging_dir / self.spec.job_id))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _open(self, token: str, undo: contextlib.ExitStack) -> None:
        """Make the directory, the worker and the descriptors; ``undo`` takes all of it back."""
        self._directory.create()
        undo.callback(self._tidy, self._directory.remove)
        (self._directory.root / SPEC).write_bytes(self.spec.pack())
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            self._process = self._start(theirs.fileno(), token)
        undo.callback(self._process.wait)
        undo.callback(self._process.kill)
        self._channel = Channel(ours)
        self._pidfd = os.pidfd_open(self._process.pid)
        undo.callback(os.close, self._pidfd)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        undo.callback(os.close, self._wake)
        self._poll = undo.enter_context(select.epoll())
        for fd in (self._channel.fileno(), self._pidfd, self._wake):
            self._watch(fd)

    def _start(self, fd: int, token: str) -> subprocess.Popen[bytes]:
        """The worker, started by its file: under -I the interpreter would not look into a user's own site-packages."""
        root = str(Path(npgxd.__file__).parents[1])
        argv = [sys.executable, "-I", str(_WORKER), "--fd", str(fd), "--parent", str(os.getpid()), "--path", root]
        with self._directory.worker_log.open("xb") as log:
            return subprocess.Popen(
                [*argv, str(self._directory.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8", JOB_VARIABLE: token},
                close_fds=True,
                pass_fds=(fd,),
                start_new_session=True,
            )

    def _kill(self, reason: str) -> None:
        self._killed_for = self._killed_for or reason
        self._force_until = self._clock() + ending.FORCE_S
        self._process.kill()

    def _conclude(self) -> JobResult | JobFailed | None:
        """The last event, once nothing of the job runs any more; None as long as something does."""
        self._forget(self._pidfd)
        stuck: tuple[str, ...] = ()
        if self._result is None or self._process.returncode != 0:
            # Twice: a process can be born behind the back of one walk through /proc.
            alive = self._family() or self._family()
            if alive:
                self._force(alive)
            if alive and not self._abandoned:
                return None
            stuck = tuple(str(process) for process in alive)
        self.ended = True
        if self._result is not None:
            self._clean(kept=bool(self._result.failed), stuck=self._result.stuck or stuck)
            return self._result
        self._clean(kept=True, stuck=stuck)
        reason = self._cancelled or self._killed_for or self._death()
        number = None if self._cancelled or self._killed_for else killed_by(self._process.returncode)
        killed = number is signal.SIGKILL
        outcome = (
            outcome_of_signal(number, out_of_memory=self._memory.seen()) if number is not None and killed else KeyOutcome.FAILED
        )
        failed = all_failed(self.spec.items, reason, transient=True, outcome=outcome)
        return JobFailed(reason, failed, self._clock() - self.started_at, stuck=stuck)

    def _clean(self, *, kept: bool, stuck: tuple[str, ...]) -> None:
        """Logs of a job that failed are kept; of one that went well nothing is."""
        if not stuck:
            self._tidy(self._directory.disclaim)
        self._tidy(self._directory.remove_scratch if kept or stuck else self._directory.remove)

    def _tidy(self, act: Callable[[], object]) -> None:
        """What cannot be removed now is removed when old jobs are pruned; it is no reason to fail."""
        try:
            act()
        except (OSError, StoreError) as error:
            log.warning("cannot tidy up after job %s: %s", self.spec.job_id, error)

    def _death(self) -> str:
        number = killed_by(self._process.returncode)
        if number is not None:
            return death("the worker", number, out_of_memory=self._memory.seen())
        said = self._last_words()
        return f"the worker ended with exit status {self._process.returncode} and no result" + (f": {said}" if said else "")

    def _last_words(self) -> str:
        try:
            lines = self._directory.worker_log.read_bytes()[-2000:].decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _family(self) -> list[processes.Process]:
        return belonging(self._owner, self._directory.root, processes.table())

    def _note_leader(self, pid: int) -> None:
        if (leader := identity(pid)) is not None:
            known = self._owner
            self._owner = Owner(known.job, known.token, known.boot, (*known.leaders, leader))

    def _force(self, alive: Iterable[processes.Process]) -> None:
        """Kill what a dead worker left, and let the poll loop know when each of them has ended."""
        if self._force_until is None:
            self._force_until = self._clock() + ending.FORCE_S
        self._drop_lingering()
        for process in alive:
            processes.send(process, signal.SIGKILL)
            try:
                pidfd = os.pidfd_open(process.pid)
            except OSError:
                continue
            self._lingering.add(pidfd)
            self._watch(pidfd)
        if not self._lingering:  # all of them ended just now: look again at once
            os.eventfd_write(self._wake, 1)

    def _drop_lingering(self) -> None:
        for pidfd in self._lingering:
            self._forget(pidfd)
            os.close(pidfd)
        self._lingering.clear()

    def _watch(self, fd: int) -> None:
        try:
            self._poll.register(fd, select.EPOLLIN)
        except FileExistsError:
            return  # it is watched already

    def _forget(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except (FileNotFoundError, ValueError):
            return  # it was not registered (any more)
