"""Whose processes are a job's, after its worker or its daemon has died; and the end of all that an earlier daemon left.

A process belongs to a job if it is one of the leaders that owner.json names (pid and start time, in this boot), if it carries the
job's secret token in its environment, if it lies in the group or session of such a process, or if it descends from one.  A pid
alone proves nothing: it may have been given to a stranger since.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.compile import ending, processes
from npgxd.compile.directory import Identity, JobDirectory, Owner
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npgxd.compile.processes import Process

JOB_VARIABLE = "NPGXD_JOB"
"""Every process of a job carries this variable, with the job's secret token as its value."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What ``end_leftovers`` found: jobs whose processes were ended, how many those were, and those that do not end."""

    jobs: tuple[str, ...] = ()
    ended: int = 0
    stuck: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        """A line for each thing worth a warning."""
        if self.jobs:
            yield f"ended {counted(self.ended, 'process', 'processes')} of {counted(len(self.jobs), 'job')}: {', '.join(self.jobs)}"
        yield from (f"{process} does not end" for process in self.stuck)


def identity(pid: int) -> Identity | None:
    """The identity of a running process."""
    process = processes.read(pid)
    return None if process is None else Identity(process.pid, process.started)


def belonging(owner: Owner, directory: Path, seen: Mapping[int, Process]) -> list[Process]:
    """The processes of ``seen`` that are the job's and still run; never this process or an ancestor of it."""
    spared = _ancestors(os.getpid(), seen)
    leaders = {leader.pid: leader.started for leader in owner.leaders}
    assignment = f"{JOB_VARIABLE}={owner.token}"
    ours = {
        process.pid: process
        for process in seen.values()
        if process.pid not in spared
        and (leaders.get(process.pid) == process.started or _is_marked(process, leaders, assignment, directory))
    }
    families = {process.pid for process in ours.values() if process.pid in (process.group, process.session)}
    ours |= {process.pid: process for process in seen.values() if process.group in families or process.session in families}
    ours |= processes.descendants(tuple(ours), seen)
    return [process for process in ours.values() if process.runs and process.pid not in spared]


def end_leftovers(jobs_dir: Path, *, grace_s: float = 1.0, force_s: float = ending.FORCE_S) -> Leftovers:
    """End every process of jobs that no daemon owns any more. Call it with the instance lock held, before any worker is started.

    Waits until they have ended, at most ``grace_s + force_s`` seconds a job; those that the kernel does not let go are named, and
    their job stays claimed, so that a later start looks again.  Without leftovers it reads one directory.
    """
    jobs: list[str] = []
    stuck: list[str] = []
    ended = 0
    boot = processes.boot_id()
    for directory, owner in _claimed(jobs_dir):
        if owner is not None and owner.boot == boot:
            met: set[int] = set()
            remaining = ending.end_all(_finder(owner, directory.root, met), grace_s=grace_s, force_s=force_s)
            ended += len(met) - len(remaining)
            stuck.extend(f"{process} of job {owner.job}" for process in remaining)
            if met:
                jobs.append(owner.job)
            if remaining:
                continue
        directory.disclaim()
    return Leftovers(tuple(jobs), ended, tuple(stuck))


def _finder(owner: Owner, directory: Path, met: set[int]) -> Callable[[], list[Process]]:
    def find() -> list[Process]:
        found = belonging(owner, directory, processes.table())
        met.update(process.pid for process in found)
        return found

    return find


def _claimed(jobs_dir: Path) -> Iterable[tuple[JobDirectory, Owner | None]]:
    if not jobs_dir.is_dir():
        return
    for entry in sorted(os.scandir(jobs_dir), key=lambda entry: entry.name):
        directory = JobDirectory(Path(entry.path))
        if entry.is_dir(follow_symlinks=False) and directory.is_claimed():
            yield directory, directory.owner()


def _is_marked(process: Process, leaders: Mapping[int, int], assignment: str, directory: Path) -> bool:
    if processes.carries(process, assignment):
        return True
    # Its leader has ended and its environment is gone: the place where it works is what is left to know it by.
    orphaned = process.group in leaders or process.session in leaders
    return orphaned and processes.works_in(process, directory)


def _ancestors(pid: int, seen: Mapping[int, Process]) -> set[int]:
    found: set[int] = set()
    while pid and pid not in found:
        found.add(pid)
        pid = seen[pid].parent if pid in seen else 0
    return found
