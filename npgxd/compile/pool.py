"""The worker pool, seen from the daemon: one process a job, watched without ever waiting for it.

A :class:`Job` is a descriptor to poll and a source of events; its last event is always a :class:`JobResult` or
a :class:`JobFailed`, and after that none of its processes runs any more (those that the kernel does not let go are named).
One thread, no callbacks.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import npgxd
from npgxd.compile import ending, processes
from npgxd.compile.channel import Channel
from npgxd.compile.directory import SPEC, JobDirectory, Owner
from npgxd.compile.job import Event, JobFailed, JobResult, JobSpec, JobStarted, all_failed, unpack_event
from npgxd.compile.leftovers import JOB_VARIABLE, belonging, identity
from npgxd.compile.outcome import killed_by
from npgxd.compile.stop import CANCEL
from npgxd.errors import CompileError
from npgxd.store.disk import DISK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLACK_S = 15.0
"""What a worker may take beyond a deadline or a cancel, to end its programs and say so, before it is ended itself."""
_WORKER = Path(__file__).with_name("worker.py")


class Pool:
    """At most ``limit`` jobs at once."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic, slack_s: float = SLACK_S) -> None:
        self.limit = limit
        self._clock = clock
        self._slack_s = slack_s
        self._jobs: dict[str, Job] = {}

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs that have not ended."""
        return tuple(job for job in self._jobs.values() if not job.ended)

    @property
    def free(self) -> int:
        """How many jobs may be started now."""
        return max(0, self.limit - len(self.jobs))

    def start(self, spec: JobSpec) -> Job:
        """Start a worker for ``spec``; CompileError if no slot is free or the process cannot be made."""
        self._jobs = {job.spec.job_id: job for job in self.jobs}
        if not self.free:
            raise CompileError(f"all {self.limit} workers are busy", hint="wait until a job has ended", transient=True)
        job = Job(spec, clock=self._clock, slack_s=self._slack_s)
        self._jobs[spec.job_id] = job
        return job

    def enforce(self, now: float) -> None:
        """The second line: end workers that are past their time, whatever they do. Call it at least once a second."""
        for job in self.jobs:
            job.enforce(now)

    def next_check(self) -> float | None:
        """When ``enforce`` has something to do next, if nothing else happens (monotonic seconds)."""
        return min((job.next_check for job in self.jobs), default=None)

    def stop_all(self, reason: str, *, limit_s: float = 30.0) -> list[tuple[Job, list[Event]]]:
        """Cancel every job and wait, at most ``limit_s`` seconds, for their ends: the last act of a daemon that stops."""
        running = self.jobs
        for job in running:
            job.cancel(reason)
        told: dict[str, list[Event]] = {job.spec.job_id: [] for job in running}
        end = self._clock() + limit_s
        while (open_jobs := self.jobs) and self._clock() < end:
            _wait_for(open_jobs, 100)
            self.enforce(self._clock())
            for job in open_jobs:
                told[job.spec.job_id] += job.receive()
        return [(job, told[job.spec.job_id]) for job in running]


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
        token = secrets.token_hex(16)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = self._start(theirs.fileno(), token)
            except BaseException:
                ours.close()
                raise
        self._channel = Channel(ours)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._owner = Owner(spec.job_id, token, processes.boot_id(), tuple(filter(None, [identity(self._process.pid)])))
        self._poll = select.epoll()
        self._watch(self._channel.fileno())
        self._watch(self._pidfd)

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
        events: list[Event] = []
        exited = self._process.poll() is not None  # looked at first: what it sent before its end is read below
        try:
            told = [unpack_event(frame) for frame in self._channel.receive()]
        except (ValueError, TypeError, KeyError) as error:
            self._killed_for = f"the worker told something that is no event: {error}"
            self._process.kill()
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
        if exited and (last := self._conclude()) is not None:
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

    # ---- the second line ---------------------------------------------------------------------------------------------

    @property
    def next_check(self) -> float:
        """When ``enforce`` has something to do next."""
        return self._kill_at if self._force_until is None else self._force_until

    def enforce(self, now: float) -> None:
        """End a worker that is past its time; give up on processes that do not end even so."""
        if self._force_until is not None and now >= self._force_until and not self.ended:
            self._watch(self._pidfd)  # readable, since the worker has ended: the next receive concludes
        if self.ended or now < self._kill_at or self._killed_for:
            return
        late = "did not end after it was cancelled" if self._cancelled else "did not keep its deadline"
        self._killed_for = f"the worker {late}"
        self._process.kill()

    def close(self) -> None:
        """Give back a job's descriptors and what it left in staging: call it after publishing. Ends a job that still runs."""
        if not self.ended:
            self._process.kill()
            self._process.wait()
            ending.end_all(self._family, grace_s=0.0)
            self.ended = True
        if not self._poll.closed:
            self._poll.close()
            self._channel.close()
            os.close(self._pidfd)
            self._drop_lingering()
            DISK.remove_tree(self.spec.staging_dir / self.spec.job_id)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _start(self, fd: int, token: str) -> subprocess.Popen[bytes]:
        """The worker, started by its file: under -I the interpreter would not look into a user's own site-packages."""
        self._directory.create()
        (self._directory.root / SPEC).write_bytes(self.spec.pack())
        root = str(Path(npgxd.__file__).parents[1])
        argv = [sys.executable, "-I", str(_WORKER), "--fd", str(fd), "--parent", str(os.getpid()), "--path", root]
        try:
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
        except OSError as error:
            self._directory.remove()
            raise CompileError(
                f"cannot start a worker: {error.strerror}", hint="look at the limits on processes and memory", transient=True
            ) from error

    def _conclude(self) -> JobResult | JobFailed | None:
        """The last event, once nothing of the job runs any more; None as long as something does."""
        self._forget(self._pidfd)
        stuck: tuple[str, ...] = ()
        if self._result is None or self._process.returncode != 0:
            alive = self._family()
            if alive and not self._is_stuck():
                self._force(alive)
                return None
            stuck = tuple(str(process) for process in alive)
        self.ended = True
        if self._result is not None:
            self._clean(kept=bool(self._result.failed), stuck=self._result.stuck or stuck)
            return self._result
        self._clean(kept=True, stuck=stuck)
        reason = self._cancelled or self._killed_for or self._death()
        failed = all_failed(self.spec.items, reason, transient=True)
        return JobFailed(reason, failed, self._clock() - self.started_at, stuck=stuck)

    def _clean(self, *, kept: bool, stuck: Iterable[str]) -> None:
        """Logs of a job that failed are kept; of one that went well nothing is."""
        if not tuple(stuck):
            self._directory.disclaim()
            if not kept:
                self._directory.remove()
                return
        self._directory.remove_scratch()

    def _death(self) -> str:
        number = killed_by(self._process.returncode)
        if number is not None:
            return f"the worker was ended by {number.name}"
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

    def _is_stuck(self) -> bool:
        if self._force_until is None:
            self._force_until = self._clock() + ending.FORCE_S
        return self._clock() >= self._force_until

    def _force(self, alive: Iterable[processes.Process]) -> None:
        """Kill what a dead worker left, and let the poll loop know when each of them has ended."""
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
            self._watch(self._pidfd)

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


def _wait_for(jobs: Iterable[Job], milliseconds: int) -> None:
    poller = select.poll()
    for job in jobs:
        poller.register(job.fileno(), select.POLLIN)
    poller.poll(milliseconds)
