"""From keys that wait to op_compiler runs and back: it plans batches, starts workers, publishes what they made, and tells the coordinator."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.compile import (
    CompilerFacts,
    Event,
    Job,
    JobFailed,
    JobItem,
    JobProgress,
    JobResult,
    JobSpec,
    JobStarted,
    PlanItem,
    Pool,
    plan,
    prune_jobs,
)
from npgxd.daemon.flights import Flight, Need, Try
from npgxd.daemon.housekeeping import MB, Room
from npgxd.daemon.job_history import JobHistory
from npgxd.daemon.placing import reason_of
from npgxd.errors import NpgxError, StoreError
from npgxd.oplib.shared_root_place import LibraryError
from npgxd.wire.states import KeyOutcome, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.config import Config
    from npgxd.daemon.coordinator import Coordinator
    from npgxd.daemon.housekeeping import Housekeeping
    from npgxd.daemon.keyer import Keyer
    from npgxd.daemon.stores import Stores
    from npgxd.store.manifest import KernelManifest
    from npgxd.toolchain.discovery import Toolchain

log = logging.getLogger(__name__)


MIN_START_S = 0.25
MAX_START_S = 8.0
"""Workers that cannot be started (no processes, no space) are tried again after twice this, then twice that, up to the most."""


@dataclass(slots=True)
class _Running:
    """A job and what it compiles."""

    job: Job
    needs: dict[str, Need]
    started_at: float
    done: int = 0
    current: tuple[str, ...] = ()
    broken: bool = False
    """We failed at what it told."""


class Dispatcher:
    """The worker pool's other half. ``draining``: nothing new is started, what runs may finish."""

    def __init__(self, config: Config, stores: Stores, keyer: Keyer, coordinator: Coordinator) -> None:
        self._config = config
        self._stores = stores
        self._keyer = keyer
        self._coordinator = coordinator
        self._pool = Pool(config.compile.workers)
        self._running: dict[int, _Running] = {}
        self.history = JobHistory(stores.state.jobs)
        self.draining = False
        self._start_at = float("-inf")
        self._start_failures = 0
        self.housekeeping: Housekeeping | None = None
        """Makes room before a compile; without one there is always room."""

    @property
    def busy(self) -> int:
        """Jobs that have not ended."""
        return len(self._running)

    def filenos(self) -> set[int]:
        """What to poll for reading."""
        return set(self._running)

    def describe(self, now: float) -> dict[str, object]:
        """For the status document."""
        return {
            "busy": self.busy,
            "jobs": [
                {
                    "job": running.job.spec.job_id,
                    "pid": running.job.pid,
                    "keys": len(running.needs),
                    "done": running.done,
                    "current": list(running.current),
                    "elapsed_s": round(now - running.started_at, 3),
                    "deadline_s": running.job.spec.deadline_s,
                }
                for running in self._running.values()
            ],
        }

    # ---- starting ----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Start what can be started and end what is overdue; when to look again (``inf``: only when something happens)."""
        self._pool.enforce(now)
        while not self.draining and self._pool.free and now >= self._start_at:
            flights = self._coordinator.flights.next_batch()
            if not flights or self._room(now) is not Room.YES or not self._start(flights, now):
                break
        following = self._pool.next_check()
        retry = (
            self._start_at if self._start_at > now and self._coordinator.flights.waiting and not self.draining else float("inf")
        )
        return retry if following is None else min(following, retry)

    def _room(self, now: float) -> Room:
        """Whether what is compiled can be kept, and installed; where not, every key that waits is told why, and may be asked for again."""
        try:
            self._coordinator.placing.check()
        except LibraryError as error:
            self._coordinator.refuse_waiting(str(error), reason_of(error), now)
            return Room.NO
        room = self.housekeeping.room(now) if self.housekeeping is not None else Room.YES
        if room is Room.NO and self.housekeeping is not None:
            self._coordinator.refuse_waiting(self.housekeeping.why_no_room(), Reason.NO_SPACE, now)
        return room

    def _start(self, flights: Sequence[Flight], now: float) -> bool:
        self._keyer.refresh(now)
        toolchain = self._keyer.toolchain
        needs = {flight.need.key: flight.need for flight in flights}
        moved = [key for key, need in needs.items() if toolchain is None or not self._keyer.is_current(need)]
        if moved or toolchain is None:
            self._coordinator.moved(moved, now)
            return True
        batch = plan(
            (
                PlanItem(key, need.record.op_type, need.record.trace, self._stores.cost_of(need.record.op_type))
                for key, need in needs.items()
            ),
            jobs=self._config.jobs,
        )[0]
        chosen = {key: needs[key] for key in batch.keys}
        spec = self.spec_of(toolchain, list(chosen.values()))
        try:
            job = self._pool.start(spec)
        except NpgxError as error:
            self._start_failures += 1
            self._start_at = now + min(MAX_START_S, MIN_START_S * 2**self._start_failures)
            log.error("cannot start a compile; the next try is in %.1f s: %s", self._start_at - now, error)
            self._coordinator.flights.start(list(chosen), spec.job_id)
            self._coordinator.failed([Try(key, KeyOutcome.FAILED, error.message, transient=True) for key in chosen], now)
            return False
        self._start_failures = 0
        self._coordinator.flights.start(list(chosen), spec.job_id)
        self.history.begun(spec.job_id, next(iter(chosen.values())).uid, chosen, time.time())
        self._running[job.fileno()] = _Running(job, chosen, now)
        self._coordinator.compiling(list(chosen), now)
        log.info("job %s: compiling %d kernels with -j %d", spec.job_id, len(chosen), spec.jobs)
        return True

    def spec_of(self, toolchain: Toolchain, needs: Sequence[Need]) -> JobSpec:
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
            jobs=self._config.jobs,
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
            self._close(running, now)

    def _close(self, running: _Running, now: float) -> None:
        """The job is over: what it holds is given back, and no key of it is left without a word."""
        job = running.job.spec.job_id
        try:
            running.job.close()
            self._prune()
        except (NpgxError, OSError) as error:
            log.error("cannot tidy up after job %s: %s", job, error)
        untold = self._coordinator.flights.of_job(job)
        reason = "the job ended without a word of this kernel"
        self._coordinator.failed([Try(key, KeyOutcome.FAILED, reason, transient=True) for key in untold], now)

    def _take(self, running: _Running, events: Iterable[Event], now: float) -> None:
        for event in events:
            if isinstance(event, JobResult | JobFailed):
                self.history.ended(running.job.spec.job_id, event)
            if isinstance(event, JobStarted):
                self.history.started(running.job.spec.job_id, event.argv)
                log.debug("job %s: %s", running.job.spec.job_id, " ".join(event.argv))
            elif isinstance(event, JobProgress):
                running.done, running.current = event.done, event.current
                self._coordinator.compiling(list(running.needs), now, event.current)
            elif isinstance(event, JobResult):
                self._result(running, event, now)
            else:
                log.warning("job %s failed: %s", running.job.spec.job_id, event.reason)
                self._failed(event, now)

    def _failed(self, event: JobFailed, now: float) -> None:
        self._coordinator.failed([Try(f.key, f.outcome, f.reason, f.transient) for f in event.failed], now)

    def _result(self, running: _Running, result: JobResult, now: float) -> None:
        """Publish, kernel by kernel, what was made under a toolchain that is still the same; tell the rest as failed tries."""
        tries = [Try(f.key, f.outcome, f.reason, f.transient) for f in result.failed]
        published: list[KernelManifest] = []
        self._keyer.refresh(now)
        moved = {key for key, need in running.needs.items() if not self._keyer.is_current(need)}
        made = [kernel for kernel in result.kernels if kernel.key not in moved]
        try:
            if result.package is not None and made:
                self._stores.publish_package(result.package)
            published = self._stores.publish_kernels(made)
        except StoreError as error:
            log.error("cannot publish: %s", error)
            tries += [Try(kernel.key, KeyOutcome.FAILED, error.message, transient=True) for kernel in made]
        try:
            self._stores.discard_staged(running.job.spec.job_id)
            self._stores.learn(result, {key: need.record.op_type for key, need in running.needs.items()})
        except StoreError as error:
            log.error("after job %s: %s", running.job.spec.job_id, error)
        log.info(
            "job %s: %d of %d kernels in %.1f s%s",
            running.job.spec.job_id,
            len(published),
            len(running.needs),
            result.wall_s,
            "".join(f"; {note}" for note in result.notes[:3]),
        )
        self._coordinator.landed(published, now)
        self._coordinator.failed([told for told in tries if told.key not in moved], now)
        if moved:
            log.warning("the toolchain changed while job %s ran: %d keys are asked for anew", running.job.spec.job_id, len(moved))
            self._coordinator.moved(moved, now)

    def _prune(self) -> None:
        kept = {running.job.spec.job_id for running in self._running.values()}
        prune_jobs(self._stores.state.jobs, self._config.compile.keep_jobs, self._config.store.logs_mb * MB, running=kept)

    def stop(self) -> None:
        """End everything that still runs; its rounds stay in the journal."""
        for job, _events in self._pool.stop_all("the daemon stops"):
            job.close()
        self._running.clear()
