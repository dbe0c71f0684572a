"""One job in its worker, step by step: records, op_compiler, its package, the installer, verification, staging.

The result names every key of the job once, with a staged kernel or with a reason; it is never an exception.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.compile import command, complog, hygiene, outcome
from npgxd.compile.complog import Complaint, LogWatch
from npgxd.compile.costs import RunSeen
from npgxd.compile.directory import Identity, JobDirectory, Owner
from npgxd.compile.install import extraction_for
from npgxd.compile.job import (
    JobEnding,
    JobItem,
    JobProgress,
    JobResult,
    JobSpec,
    JobStarted,
    KeyFailed,
    MadeKernel,
    MadePackage,
)
from npgxd.compile.leftovers import identity
from npgxd.compile.memory_kills import MemoryKills
from npgxd.compile.narrowing import Seen
from npgxd.compile.package import SuccessLine, find_packages
from npgxd.compile.processes import boot_id
from npgxd.compile.program import Exit, Limits, Program
from npgxd.compile.staging import Staging
from npgxd.compile.stop import Stop, Stopped
from npgxd.compile.verify import Verdict, verify
from npgxd.errors import NpgxError
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from npgxd.compile.install import Extraction

_TAIL_CHARACTERS = 2000


class RunFailed(Exception):
    """The job ends here, without a kernel. ``blame``: op_compiler ended by itself, so its logs may tell more of single keys.

    ``narrow``: one of its keys may be the cause, and its logs show where op_compiler was with each.
    """

    def __init__(
        self,
        reason: str,
        *,
        transient: bool,
        blame: bool = False,
        outcome: KeyOutcome = KeyOutcome.FAILED,
        narrow: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient
        self.blame = blame
        self.outcome = outcome
        self.narrow = narrow


@dataclass(frozen=True, slots=True)
class _Made:
    package: MadePackage | None
    kernels: tuple[MadeKernel, ...]
    failed: tuple[KeyFailed, ...]
    notes: tuple[str, ...] = ()


class CompileRun:
    """One job. ``tell`` takes events that may be dropped if the daemon is slow; ``tick`` is called now and then while a program runs."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        stop: Stop,
        tell: Callable[[JobStarted | JobProgress | JobEnding], object],
        token: str,
        tick: Callable[[], object],
    ) -> None:
        self._spec = spec
        self._stop = stop
        self._tell = tell
        self._tick = tick
        self._token = token
        self._directory = JobDirectory(spec.job_dir)
        self._environment = hygiene.environment_for(spec.toolchain.environment, self._directory, token)
        self._began = time.monotonic()
        self._leaders: tuple[Identity, ...] = ()
        self._places = (self._directory.out, self._directory.work)
        self._watch = LogWatch(self._places, spec.items, kernels_each=1 if spec.flags.follow_op_params_jit else 2)
        self._memory = MemoryKills()
        self._compiler: Exit | None = None
        self._compiled_at: float | None = None
        self._stuck: tuple[str, ...] = ()
        self._hung: dict[str, str] = {}
        """key -> why what compiled it was ended, so that the others of the run go on."""
        self._freed_at: tuple[int, int] | None = None
        """How far op_compiler was when that was last done."""

    def result(self) -> JobResult:
        """Run the job to its end, whatever that is."""
        try:
            made = self._run()
        except RunFailed as failure:
            made = _Made(None, (), self._all_failed(failure))
        except Stopped as stopped:
            made = _Made(None, (), self._all_failed(RunFailed(str(stopped), transient=True)))
        except NpgxError as error:
            ours = RunFailed(str(error), transient=outcome.may_pass(error), outcome=outcome.outcome_of(error))
            made = _Made(None, (), self._all_failed(ours))
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            kind = KeyOutcome.NO_SPACE if full else KeyOutcome.FAILED
            made = _Made(None, (), self._all_failed(RunFailed(outcome.explain(error), transient=True, outcome=kind)))
        self._leave(made)
        return JobResult(
            package=made.package,
            kernels=made.kernels,
            failed=made.failed,
            wall_s=time.monotonic() - self._began,
            exit_code=self._compiler.code if self._compiler else None,
            log_tail=self._compiler.tail[-_TAIL_CHARACTERS:] if self._compiler else "",
            notes=made.notes,
            stuck=self._stuck,
            measured=self._measured(),
        )

    # ---- the steps ---------------------------------------------------------------------------------------------------

    def _run(self) -> _Made:
        spec = self._spec
        argv = command.op_compiler_command(spec)
        extraction = extraction_for(install_path=spec.toolchain.install_path)
        self._claim(os.getpid())
        self._directory.make_scratch()
        command.write_records(spec)
        package = self._compile(argv)
        staging = Staging(spec, package)
        self._install(extraction, package, staging)
        self._stop.check()
        verdict = verify(extraction.ai_core(self._directory), spec)
        kernels = staging.kernels(verdict, self._watch, self._share(), self._between_kernels)
        return _Made(staging.made if kernels else None, kernels, self._failures(verdict), verdict.notes)

    def _compile(self, argv: list[str]) -> Path:
        """Run op_compiler; the package that it made."""
        heard = SuccessLine()
        ended = self._compiler = self._execute(argv, "op_compiler", started=True, on_line=heard.hear)
        self._compiled_at = time.monotonic()
        self._tell(self._watch.progress(self._compiled_at))
        self._tell(JobEnding())
        if ended.stopped:
            raise self._stopped(ended, "op_compiler")
        packages = find_packages(self._directory.out)
        failure = outcome.judge(
            ended.code or 0,
            packages=packages,
            announced=heard.announced,
            tail=ended.tail,
            records=len(self._spec.items),
            out_of_memory=self._memory.seen(),
        )
        if failure is not None:
            raise RunFailed(
                failure.reason,
                transient=failure.transient,
                blame=outcome.killed_by(ended.code) is None,
                outcome=failure.outcome,
                narrow=failure.narrow,
            )
        return self._directory.out / packages[0]

    def _install(self, extraction: Extraction, package: Path, staging: Staging) -> None:
        """Let the package install itself into the job's own root; ``staging`` has its bytes as they were before it ran."""
        self._directory.out.joinpath(staging.made.name).chmod(0o700)
        environment = extraction.prepare(self._directory, self._environment)
        ended = self._execute(extraction.command(package, self._directory), "installer", environment=environment)
        if ended.stopped:
            raise self._stopped(ended, "the run package's installer")
        if ended.code:
            said = outcome.last_error(ended.tail)
            why = f": {said}" if said else ""
            raise RunFailed(f"the run package's installer ended with exit status {ended.code}{why}", transient=True)

    def _failures(self, verdict: Verdict) -> tuple[KeyFailed, ...]:
        """Why each key without a kernel has none: it was refused, its log complains, or it was left out without a word."""
        absent = [item for item in self._spec.items if item.key not in verdict.kernels and item.key not in verdict.refused]
        said = complog.match(absent, self._complaints())
        code = self._compiler.code if self._compiler else 0
        with_status = f" (op_compiler ended with exit status {code})" if code else ""
        failed = [KeyFailed(key, KeyOutcome.FAILED, reason, transient=True) for key, reason in verdict.refused.items()]
        for item in absent:
            if item.key in self._hung:
                failed.append(self._hung_failed(item))
            elif (complaint := said.get(item.key)) is not None:
                failed.append(_blamed(item, complaint))
            else:
                reason = f"op_compiler's run package has no kernel for this record{with_status}"
                failed.append(KeyFailed(item.key, KeyOutcome.LEFT_OUT, reason, transient=False))
        return tuple(failed)

    # ---- what they use -----------------------------------------------------------------------------------------------

    def _execute(
        self,
        argv: list[str],
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        started: bool = False,
        on_line: Callable[[str], None] | None = None,
    ) -> Exit:
        """Run a program of this job; one that is taken to be stuck is ended, but op_compiler is first given a chance to go on."""
        self._stop.check()
        spec = self._spec
        limits = Limits(self._began + spec.deadline_s, spec.grace_s, spec.log_bytes)
        program = Program(
            argv,
            name=name,
            directory=self._directory,
            environment=self._environment if environment is None else environment,
            limits=limits,
            on_line=on_line,
        )

        def begin() -> None:
            self._claim(program.pid)
            if started:
                self._tell(JobStarted(program.pid, program.pid, tuple(argv)))

        def tick() -> None:
            self._tick()
            self._tell(self._watch.progress(time.monotonic()))

        ended = program.run(
            self._stop,
            begin=begin,
            tick=tick,
            free=(lambda why: self._free(program, why)) if started else (lambda _why: False),
        )
        self._stuck += ended.stuck
        return ended

    def _free(self, program: Program, why: str) -> bool:
        """End what op_compiler waits for, so that it packs what it has finished; False: it has not gone on since that was last done."""
        told = self._watch.progress(time.monotonic())
        before, self._freed_at = self._freed_at, (told.done, told.begun)
        if self._freed_at == before:
            return False
        failed = complog.match(self._spec.items, self._complaints())
        at_work = [key for key, seen in self._watch.seen().items() if seen is Seen.WORKING and key not in {*self._hung, *failed}]
        if not at_work or not program.end_children():
            return False
        self._hung |= dict.fromkeys(at_work, f"{why}, and what compiled it was ended")
        return True

    def _claim(self, leader: int) -> None:
        if (known := identity(leader)) is not None:
            self._leaders += (known,)
        self._directory.claim(Owner(self._spec.job_id, self._token, boot_id(), self._leaders))

    def _complaints(self) -> list[Complaint]:
        return complog.complaints(self._places, out_of_memory=self._memory.seen())

    def _between_kernels(self) -> None:
        self._stop.check()
        if time.monotonic() >= self._began + self._spec.deadline_s:
            reason = f"the job did not end within {self._spec.deadline_s:g} s"
            raise RunFailed(reason, transient=True, outcome=KeyOutcome.TIMED_OUT)

    def _stopped(self, ended: Exit, who: str) -> RunFailed:
        if not ended.late:
            return RunFailed(ended.stopped, transient=True)
        current = self._watch.progress(time.monotonic()).current
        at_work = f"; at work: {', '.join(current)}" if current else ""
        late = time.monotonic() >= self._began + self._spec.deadline_s
        what = f"did not end within {self._spec.deadline_s:g} s" if late else f"was ended: {ended.stopped}"
        reason = f"{who} {what}{at_work}"
        return RunFailed(reason, transient=True, outcome=KeyOutcome.TIMED_OUT, narrow=bool(current))

    def _share(self) -> float:
        """What one kernel cost on average, for those that were too fast to be watched."""
        end = self._compiled_at or time.monotonic()
        begun = self._watch.began
        if begun is None or begun >= end:  # too fast to be watched: the whole run, start-up and all
            begun = self._began
        spent = max(end - begun, 0.0)
        return spent * min(self._spec.jobs, len(self._spec.items)) / max(len(self._spec.items), 1)

    def _measured(self) -> RunSeen:
        """What this run tells of later ones; of one that failed only what memory it took."""
        # The largest of all processes that were started and have ended here: getrusage(2), in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        ended, begun = self._compiled_at, self._watch.began
        if ended is None or begun is None or self._compiler is None or self._compiler.code != 0:
            return RunSeen(peak_bytes=peak or None)
        return RunSeen(max(begun - self._began, 0.0), max(time.monotonic() - ended, 0.0), peak or None)

    def _all_failed(self, failure: RunFailed) -> tuple[KeyFailed, ...]:
        """Every key failed; where op_compiler ended by itself, a key's own log has the last word about it."""
        items: Sequence[JobItem] = self._spec.items
        said = complog.match(items, self._complaints()) if failure.blame else {}
        seen = self._watch.seen() if failure.narrow else dict.fromkeys((item.key for item in items), Seen.UNTOUCHED)
        return tuple(
            self._hung_failed(item)
            if item.key in self._hung
            else _blamed(item, said[item.key])
            if item.key in said
            else KeyFailed(item.key, failure.outcome, failure.reason, failure.transient, failure.narrow, seen[item.key])
            for item in items
        )

    def _hung_failed(self, item: JobItem) -> KeyFailed:
        reason = self._hung[item.key]
        return KeyFailed(item.key, KeyOutcome.TIMED_OUT, reason, transient=True, narrow=True, seen=Seen.WORKING)

    def _leave(self, made: _Made) -> None:
        """Keep the logs that may be asked for, remove the rest. What cannot be removed now goes with the directory later."""
        try:
            if made.failed:
                complog.keep_logs(self._places, self._directory.compile_log)
            if not made.kernels:
                Staging.discard(self._spec)
            self._directory.remove_scratch()
        except (OSError, NpgxError) as error:
            print(f"cannot clean up {self._directory.root}: {error}", flush=True)  # noqa: T201 -- into worker.log


def _blamed(item: JobItem, complaint: Complaint) -> KeyFailed:
    return KeyFailed(item.key, complaint.outcome, complaint.reason, complaint.transient)
