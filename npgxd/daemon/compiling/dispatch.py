"""From keys that wait to op_compiler runs and back: what the planner chooses is started, what comes out is published and told."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from npgxd.compile import (
    CompilerFacts,
    Event,
    JobEnding,
    JobFailed,
    JobItem,
    JobProgress,
    JobResult,
    JobSpec,
    JobStarted,
    KeyFailed,
    Machine,
    Planned,
    Pool,
    Terms,
    next_batch,
    outcome_of,
    prune_jobs,
)
from npgxd.daemon.compiling.capacity import RUNS, Busy, Capacity
from npgxd.daemon.compiling.housekeeping import MB, Room
from npgxd.daemon.compiling.job_history import JobHistory
from npgxd.daemon.compiling.publishing import DISK_S, Publishing
from npgxd.daemon.compiling.runs import Running
from npgxd.daemon.compiling.stuck_runs import StuckRuns
from npgxd.daemon.demand.tries import Try
from npgxd.daemon.keeping.metrics_histograms import COMPILE_RUN
from npgxd.daemon.library.placing import reason_of
from npgxd.daemon.scheduling.tracing import Mark
from npgxd.errors import NpgxError
from npgxd.oplib.shared_root_place import LibraryError
from npgxd.wire.printable import counted
from npgxd.wire.states import KeyOutcome, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.config import Config
    from npgxd.daemon.compiling.housekeeping import Housekeeping
    from npgxd.daemon.compiling.runs import Stage
    from npgxd.daemon.demand.flights import Company, Need
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.toolchain.discovery import Toolchain

log = logging.getLogger(__name__)

MIN_START_S = 0.25
MAX_START_S = 8.0
"""Workers that cannot be started (no processes, no space) are tried again after twice this, then twice that, up to the most."""
LOOK_S = 1.0
"""While keys wait and nothing can be started, what the machine grants is read again this often."""


class Dispatcher:
    """The worker pool's other half. ``draining``: nothing new is started, what runs may finish."""

    def __init__(
        self, config: Config, stores: Stores, keyer: Keyer, coordinator: Coordinator, machine: Machine | None = None
    ) -> None:
        self._config = config
        self._stores = stores
        self._keyer = keyer
        self._coordinator = coordinator
        self._capacity = Capacity(config.compile, machine or Machine())
        # Runs whose op_compiler has ended hold a worker a little longer, and no slot.
        self._pool = Pool(self._most_workers)
        self._running: dict[int, Running] = {}
        self._stuck = StuckRuns(coordinator.flights, config.compile.stall_s)
        self._results = Publishing(stores, keyer, coordinator)
        self._publishing: dict[str, Running] = {}
        self.history = JobHistory(stores.state.jobs)
        self.draining = False
        self._start_at = float("-inf")
        self._start_failures = 0
        self._seen: tuple[int, int, int] | None = None
        self._look_at = float("-inf")
        self.housekeeping: Housekeeping | None = None
        """Makes room before a compile; without one there is always room."""
        self._look()

    @property
    def _most_workers(self) -> int:
        return 2 * (self._config.compile.workers or RUNS)

    def reconfigured(self) -> None:
        """The configuration was reloaded: more, or less, may be started from now on."""
        self._pool.limit, self._seen = self._most_workers, None
        self._stuck.stall_s = self._config.compile.stall_s
        self._look()

    def _look(self) -> None:
        """What the machine grants is told from the start, and after a reload, not only once something is compiled."""
        memory = self._stores.costs.memory_bytes(self._keyer.compiler)
        self._capacity.slots(self._busy(), memory, float("-inf"))

    @property
    def busy(self) -> int:
        """Jobs that have not ended, or whose kernels are being published."""
        return len(self._running) + len(self._publishing)

    @property
    def running(self) -> set[str]:
        """Their ids."""
        return {running.job.spec.job_id for running in self._all}

    @property
    def _all(self) -> list[Running]:
        return [*self._running.values(), *self._publishing.values()]

    def filenos(self) -> set[int]:
        """What to poll for reading."""
        return set(self._running)

    def describe(self, now: float) -> dict[str, object]:
        """For the status document."""
        return {
            **self._capacity.describe(now),
            "busy": self.busy,
            "jobs": [
                {
                    **running.describe(now),
                    "expected_s": round(self._coordinator.prospects.expected_s(running.job.spec.job_id), 3),
                    "silent_s": round(self._stuck.silent_s(running.job.spec.job_id, now), 3),
                }
                for running in self._all
            ],
        }

    def stage(self, job: str) -> Stage | None:
        """What a run is at; None: it is over."""
        return next((running.stage for running in self._all if running.job.spec.job_id == job), None)

    # ---- starting ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Start what can be started and end what is overdue; when to look again (``inf``: only when something happens)."""
        self._pool.enforce(now)
        if self._stores.disk_watch.slow:  # op_compiler writes to it, too
            self._stuck.excuse(now)
        check = self._stuck.tick(now)
        self._publish(now)
        startable = not self.draining and not self._coordinator.entering  # a group is planned as a whole
        while startable and now >= self._start_at and self._coordinator.flights.waiting and self._is_news(now):
            if not self._next(now):
                # What could not be started is tried again when its pause is over, whatever else happens.
                self._seen, self._look_at = self._situation if self._start_at <= now else None, now + LOOK_S
        if self._results.ready:
            return now
        following = self._pool.next_check()
        again = check
        if self._coordinator.flights.waiting and startable:
            again = min(again, self._start_at if self._start_at > now else self._look_at)
        return again if following is None else min(following, again)

    @property
    def _situation(self) -> tuple[int, int, int]:
        """Changes whenever something could be started that could not be before, but for the machine itself."""
        return self._coordinator.flights.lines.changes, self._busy().processes, self.busy

    def _is_news(self, now: float) -> bool:
        return now >= self._look_at or self._situation != self._seen

    def _busy(self) -> Busy:
        working = [running for running in self._running.values() if not running.ending]
        return Busy(
            runs=len(working),
            processes=sum(running.job.spec.jobs for running in working),
            background=sum(running.job.spec.jobs for running in working if running.background),
        )

    def _next(self, now: float) -> bool:
        """Start the next batch; False: nothing can be started now."""
        # Runs whose compiler has ended do not count as busy, nor do results that wait to be published: on a slow machine there may be
        # many, and what they hold on the disk is to be bounded.
        if not self._pool.free or self.busy >= self._pool.limit:
            return False
        name = self._keyer.compiler
        costs, prospects = self._stores.costs, self._coordinator.prospects
        slots = replace(self._capacity.slots(self._busy(), costs.memory_bytes(name), now), running=prospects.running(now))
        prospects.toolchain, prospects.slots, prospects.runs = name, slots.total, self._capacity.runs
        terms = Terms(self._config.compile.batch_s, costs.start_up_s(name))
        planned = next_batch(self._coordinator.flights.queues(), slots, terms)
        return planned is not None and self._room(now) is Room.YES and self._start(planned, terms, now)

    def _room(self, now: float) -> Room:
        """Whether what is compiled can be kept, and installed; where not, every key that waits is told why, and may be asked for again."""
        try:
            self._coordinator.placing.check()
        except LibraryError as error:
            self._coordinator.refuse_waiting(str(error), reason_of(error))
            return Room.NO
        room = self.housekeeping.room(now) if self.housekeeping is not None else Room.YES
        if room is Room.NO and self.housekeeping is not None:
            self._coordinator.refuse_waiting(self.housekeeping.why_no_room(), Reason.NO_SPACE)
        return room

    def _start(self, planned: Planned, terms: Terms, now: float) -> bool:
        self._keyer.refresh(now)
        toolchain, flights = self._keyer.toolchain, self._coordinator.flights
        company = cast("Company", planned.batch.items[0].company)
        needs = {need.key: need for need in flights.records(planned.batch.keys, company.uid)}
        moved = [key for key, need in needs.items() if toolchain is None or not self._keyer.is_current(need)]
        if moved or toolchain is None:
            self._coordinator.moved(moved, now)
            return True
        spec = self.spec_of(toolchain, list(needs.values()), planned.processes)
        if self.busy >= self._capacity.runs:
            with suppress(NpgxError, OSError):  # what cannot be removed now is told at the next end of a job
                self._prune(starting=1)
        try:
            job = self._pool.start(spec)
        except NpgxError as error:
            self._start_failures += 1
            self._start_at = now + min(MAX_START_S, MIN_START_S * 2**self._start_failures)
            log.error("cannot start a compile; the next try is in %.1f s: %s", self._start_at - now, error)
            flights.start(needs, spec.job_id, planned.processes)
            self._coordinator.failed([Try(key, outcome_of(error), error.message, transient=True) for key in needs], now)
            return False
        self._start_failures = 0
        flights.start(needs, spec.job_id, planned.processes, planned.queues)
        self.history.begun(spec.job_id, company.uid, needs, time.time())
        self._coordinator.trace.job(spec.job_id, [need.record.op_type for need in needs.values()], spec.jobs, now)
        self._running[job.fileno()] = Running(job, needs, now, planned.background)
        self._coordinator.prospects.began(spec.job_id, needs, spec.jobs, terms, now)
        self._coordinator.compiling(needs, now)
        self._stuck.began(job, needs, now)
        log.info(
            "job %s: compiling %s with -j %d for %s, about %.0f s",
            spec.job_id,
            counted(len(needs), "kernel"),
            spec.jobs,
            ", ".join(planned.queues),
            terms.start_up_s + planned.estimate_s,
        )
        return True

    def spec_of(self, toolchain: Toolchain, needs: Sequence[Need], processes: int) -> JobSpec:
        """One job for these needs, which may go together."""
        job_id = secrets.token_hex(8)
        return JobSpec(
            job_id=job_id,
            items=tuple(
                JobItem(n.key, n.record.digest, n.record.op_type, n.record.trace, n.record.canonical, n.fingerprint)
                for n in needs
            ),
            toolchain=CompilerFacts(
                op_compiler=str(toolchain.op_compiler),
                soc=toolchain.soc,
                family=toolchain.family,
                cann_version=toolchain.cann_version,
                environment=dict(toolchain.environment),
                install_path=toolchain.supports_install_path,
            ),
            flags=self._keyer.flags,
            job_dir=self._stores.state.jobs / job_id,
            staging_dir=self._stores.state.staging,
            jobs=processes,
            deadline_s=self._config.compile.deadline_s,
            super_kernel=tuple(sorted(needs[0].options.super_kernel.items())),
            nice=self._config.compile.nice,
        )

    # ---- what the workers tell ---------------------------------------------------------------------------------------

    def read(self, fileno: int, now: float) -> None:
        """Take what the job behind this descriptor has told."""
        running = self._running.get(fileno)
        if running is None:
            return
        try:
            self._take(running, running.job.receive(), now)
        except Exception:  # a fault of ours in one job is that job's end, not the node's: its keys are tried again
            log.exception("internal error in job %s", running.job.spec.job_id)
            running.broken = True
        if running.job.ended or running.broken:
            self._running.pop(fileno, None)
            if running.result is None or running.broken:
                self._close(running, now)
            else:
                self._publishing[running.job.spec.job_id] = running
                self._results.put(running.result)
                self._coordinator.trace.mark(Mark.PUBLISHING, running.job.spec.job_id, now)

    def _close(self, running: Running, now: float) -> None:
        """The job is over: what it holds is given back, and no key of it is left without a word."""
        job = running.job.spec.job_id
        try:
            running.job.close()
            self._prune()
        except (NpgxError, OSError) as error:
            log.error("cannot tidy up after job %s: %s", job, error)
        untold = self._coordinator.flights.of_job(job)
        reason = "the job ended without a word of this kernel"
        self._coordinator.failed([Try(key, KeyOutcome.FAILED, reason, transient=True, job=job) for key in untold], now)
        self._coordinator.flights.over(job, now)
        self._coordinator.prospects.ended(job)
        self._stuck.ended(job)
        self._coordinator.trace.mark(Mark.ENDED, job, now)

    def _take(self, running: Running, events: Iterable[Event], now: float) -> None:
        for event in events:
            if isinstance(event, JobResult | JobFailed):
                self.history.ended(running.job.spec.job_id, event)
                self._stores.count(**COMPILE_RUN.counted(event.wall_s))
            if isinstance(event, JobStarted):
                self.history.started(running.job.spec.job_id, event.argv)
                log.debug("job %s: %s", running.job.spec.job_id, " ".join(event.argv))
            elif isinstance(event, JobProgress):
                self._progress(running, event, now)
            elif isinstance(event, JobEnding):
                running.ending = True
                self._stuck.ending(running.job.spec.job_id, now)
                self._coordinator.prospects.ending(running.job.spec.job_id, now)
            elif isinstance(event, JobResult):
                name = self._keyer.compiler
                running.result = self._results.begin(running.job.spec.job_id, running.needs, event, name)
            else:
                log.warning("job %s failed: %s", running.job.spec.job_id, event.reason)
                self._failed(running, event.failed, now)

    def _progress(self, running: Running, event: JobProgress, now: float) -> None:
        running.done, running.current = event.done, event.current
        self._stuck.told(running.job.spec.job_id, event, now)
        self._coordinator.prospects.progressed(running.job.spec.job_id, event.done, event.begun, now)
        self._coordinator.compiling(running.needs, now, event.current)

    def _failed(self, running: Running, failed: Iterable[KeyFailed], now: float) -> None:
        """Tell failed tries; where memory ran out, less is started for a while."""
        spec = running.job.spec
        tries = [Try(f.key, f.outcome, f.reason, f.transient, f.narrow, f.seen, spec.job_id) for f in failed]
        if any(one.outcome is KeyOutcome.OUT_OF_MEMORY for one in tries):
            self._capacity.starved(self._busy().processes or spec.jobs, now)
        self._coordinator.failed(tries, now)

    def _publish(self, now: float) -> bool:
        """A slice of one of the results that wait to be published; False: there is none, or all of them wait for the disk."""
        result = self._results.next()
        if result is None:
            return False
        running, over = self._publishing[result.job], True
        try:
            over = self._results.slice(result, now)
            if over:
                self._failed(running, self._results.end(result, now), now)
        except Exception:  # as above
            log.exception("internal error in job %s", result.job)
        if over:
            self._close(self._publishing.pop(result.job), now)
        else:
            self._results.put(result)
        return True

    def _prune(self, starting: int = 0) -> None:
        """Runs whose kernels are still on their way into the store take the place of logs that are kept: the directories stay as many."""
        more = max(0, self.busy + starting - self._capacity.runs)
        keep = max(0, self._config.compile.keep_jobs - more)
        prune_jobs(self._stores.state.jobs, keep, self._config.store.logs_mb * MB, running=self.running)

    def stop(self) -> None:
        """End everything that still runs; its rounds stay in the journal. What has been made is published first, if the disk answers."""
        end = time.monotonic() + DISK_S
        while self._publish(time.monotonic()) or self._results.await_disk(end - time.monotonic()):
            pass
        if self._publishing:
            log.error("the disk does not answer: %s compiled again", counted(len(self._publishing), "job is", "jobs are"))
        for job, _events in self._pool.stop_all("the daemon stops"):
            job.close()
        self._running.clear()
