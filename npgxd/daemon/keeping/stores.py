"""Everything that the daemon keeps on the disk, opened together, and the few questions and acts that it has for it."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.compile import Costs, Estimate, KernelSeen, size_of
from npgxd.daemon.beside import Beside
from npgxd.daemon.demand.tries import Hold
from npgxd.daemon.keeping.disk_watch import DiskWatch
from npgxd.daemon.keeping.troubles import Troubles
from npgxd.errors import StoreError
from npgxd.oplib.leases import Leases
from npgxd.oplib.pins import Pins
from npgxd.oplib.recovery import recover
from npgxd.oplib.sweeping import Step
from npgxd.oplib.views import Views
from npgxd.store.artifacts import ArtifactStore
from npgxd.store.catalog import Catalog
from npgxd.store.history import CompileHistory, FailureRow
from npgxd.store.kernels import KernelStore, scan
from npgxd.store.packages import PackageStore
from npgxd.store.past import Past
from npgxd.store.reserve import Reserve
from npgxd.store.rounds import RoundJournal
from npgxd.store.state import StateDirectory
from npgxd.wire.messages import Package
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npgxd.compile import JobResult, MadeKernel, MadePackage
    from npgxd.daemon.demand.flights import Need
    from npgxd.daemon.demand.tries import GivenUp
    from npgxd.oplib.sweeping import Steps
    from npgxd.store.kernels import Staged
    from npgxd.store.manifest import KernelManifest
    from npgxd.store.waits import Waits

log = logging.getLogger(__name__)

SHOWN_FAILURES = 50
ARTIFACT_COUNTERS = ("hits", "misses", "not_cacheable", "published", "evicted", "quarantined")
FLUSH_S = 1.0
_COUNTERS = "counters are not kept"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Stores:
    """An opened state directory with all that lies in it; this process owns it until ``close``."""

    def __init__(self, state: StateDirectory) -> None:
        self.boot = BOOT_ID.read_text(encoding="ascii").strip()
        self.state = state
        self.beside = Beside()
        """Does what only waits for the disk."""
        self.disk_watch = DiskWatch(state)
        self.troubles = Troubles()
        self.reserve = Reserve(state)
        self.reserve.give()  # the catalog cannot be opened without any room at all
        self.catalog = Catalog(state.catalog, rebuild=lambda: scan(state), disk=state.disk)
        self.kernels = KernelStore(state, self.catalog)
        self.packages = PackageStore(state, self.catalog)
        self.rounds = RoundJournal(state)
        self.views = Views(state, self.kernels, self.boot)
        self.leases = Leases(state, self.boot)
        self.pins = Pins(state)
        self.artifacts = ArtifactStore(state, self.catalog)
        self.history = CompileHistory(self.catalog)
        self.past = Past(self.catalog)
        self.costs = Costs(Estimate(*row) for row in self.history.estimates())
        self._counted: Counter[str] = Counter()
        self._flushed_at = time.monotonic()
        self.spared = False
        """Whether ``releasing`` kept views that nobody has leased: it is to be called again."""

    @classmethod
    def open(cls, path: Path) -> Stores:
        """Own the state directory; AlreadyRunning or StateRefused if that cannot be."""
        return cls(StateDirectory.open(path))

    def close(self) -> None:
        """Give it up."""
        self.beside.close()
        self.flush()
        self.catalog.close()
        self.disk_watch.close()
        self.state.close()

    def recover(self) -> None:
        """Drop what an earlier life left unfinished."""
        done = recover(self.state, self.views, self.leases)
        adopted, gone = self.artifacts.reconcile()
        if adopted or gone:
            log.info(
                "compile cache: %s that the catalog did not list, %d that only it listed",
                counted(adopted, "entry", "entries"),
                gone,
            )
        if done.staged or done.temporary or done.leases or done.views:
            log.info(
                "recovered: dropped %s, %s, %s, %s without a lease",
                counted(done.staged, "unfinished result"),
                counted(done.temporary, "temporary file"),
                counted(done.leases, "ended lease"),
                counted(done.views, "view"),
            )

    # ---- publishing --------------------------------------------------------------------------------------------------

    def publishing_package(self, made: MadePackage) -> Waits[Path]:
        """Keep the run package that a job produced."""
        return self.packages.publishing(self.state.staging / made.staged, made.digest, made.name)

    def number_kernel(self, made: MadeKernel) -> Staged:
        """Begin to publish a verified, staged kernel; ``kernels.make_durable`` and ``publishing_kernels`` are to follow."""
        return self.kernels.number(self.state.staging / made.staged)

    def publishing_kernels(self, staged: Sequence[Staged]) -> Waits[list[KernelManifest]]:
        """Publish kernels that are ready, together; they are no longer known to fail."""
        published = yield from self.kernels.showing(staged)
        try:
            self.history.made([manifest.key for manifest in published])
            self.past.made([(manifest.key, manifest.origin.record_digest) for manifest in published])
        except StoreError as error:
            log.error("%s may be shown as failed although it is there: %s", counted(len(published), "kernel"), error)
        return published

    def discard_staged(self, job: str) -> None:
        """What a job staged is published or not wanted: its directory goes, out of sight at once and then beside the loop."""
        staged = self.state.staging / job
        if os.path.lexists(staged):
            self._drop(self.state.hide(staged))

    def _drop(self, away: Path) -> None:
        self.beside.later(partial(self.state.disk.remove_tree, away), str(away))

    def learn(self, result: JobResult, needs: Mapping[str, Need], toolchain: str) -> None:
        """Let what a job took flow into the estimates."""
        kernels = [
            KernelSeen(needs[made.key].record.op_type, size_of(needs[made.key].record.canonical), made.cost_s)
            for made in result.kernels
            if made.key in needs
        ]
        changed = self.costs.learn(kernels, toolchain, result.measured)
        self.history.keep_estimates((row.name, row.mean, row.n) for row in changed)

    def remember_failure(self, lost: GivenUp, passing_s: float) -> None:
        """Remember a key that was given up for as long as its reason can hold; its key has the toolchain's fingerprint in it.

        ``passing_s``: for so long where the reason is this node's memory, or time.
        """
        lasts = {Hold.FINAL: 0.0, Hold.PASSING: passing_s}.get(lost.hold)
        if lasts is None or (lost.hold is Hold.PASSING and not passing_s):
            return
        need, now = lost.flight.need, time.time()
        self.history.remember(
            FailureRow(
                key=need.key,
                op_type=need.record.op_type,
                fingerprint=need.fingerprint,
                outcome=str(lost.outcome),
                reason=lost.reason[:2000],
                attempts=len(lost.flight.tries),
                job=lost.job,
                at=now,
                until=now + lasts if lasts else 0.0,
            )
        )

    def count(self, **counts: int) -> None:
        """Add to the counters. They reach the disk together, once in a while: a kill loses the last second's, never a round's time."""
        self._counted.update(counts)
        if time.monotonic() - self._flushed_at >= FLUSH_S:
            self.flush()

    def tally(self, **counts: int) -> None:
        """Add to the counters without a look at the time: they reach the disk with the next ``flush``."""
        self._counted.update(counts)

    def _not_written(self) -> Counter[str]:
        """What was counted since the last ``flush``, what another thread has given out included."""
        if given := self.artifacts.rows.count_glances():
            self.tally(artifact_hits=given)
        return self._counted

    def flush(self) -> None:
        """Write counters and last uses down; what cannot be written is told in the log."""
        counted, self._counted, self._flushed_at = self._not_written(), Counter(), time.monotonic()
        try:
            if counted:
                self.catalog.count(counted, durable=False)
            self.kernels.uses.flush()
            self.artifacts.flush()
        except StoreError as error:
            self.troubles.tell(_COUNTERS, error)
        else:
            self.troubles.over(_COUNTERS)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def package(self, digest: str) -> Package | None:
        """A run package as clients are told of it; None if it is gone."""
        path = self.packages.path(digest)
        if not path.is_file():
            return None
        return Package(digest=digest, name=self.packages.name(digest), path=path.relative_to(self.state.path).as_posix())

    def releasing(self, keep: Callable[[], set[str]]) -> Steps[None]:
        """Drop leases whose processes have ended, and then the views that nobody holds and that are not in ``keep``, bit by bit.

        ``keep`` is asked when all leases were looked at; nothing that is leased meanwhile goes.  At the end the views are out of sight;
        their files go beside the loop.
        """
        released, leased = 0, set[str]()
        with self.leases.watched() as offered:
            for gone in self.leases.each_released():
                released += gone is not None
                yield Step("leases", released, 0)
            for views in self.leases.each_in_use():
                leased |= views
                yield Step("leases", released, 0)
            told = keep()
            look, self.spared = bool(released or self.spared), bool(told - leased - offered)
            dropped = self.views.hide_unleased(keep=told | leased | offered) if look or self.spared else []
        if released:
            log.debug("%s ended, %s dropped", counted(released, "lease"), counted(len(dropped), "view"))
        for away in self.views.take_hidden():
            self._drop(away)

    # ---- for the status document -------------------------------------------------------------------------------------

    def describe(self) -> dict[str, object]:
        """Numbers of what is kept."""
        return {
            "count": self.kernels.count(),
            "bytes": self.catalog.kernel_bytes(),
            "packages": self.packages.count(),
            "views": self.views.count(),
            "leases": self.leases.count(),
        }

    def counters(self) -> dict[str, int]:
        """Counters that survive restarts."""
        names = ("hits", "compiled", "failed", "expired", "rounds", "records")
        counted = Counter(self.catalog.counters()) + self._not_written()
        return {name: counted[name] for name in names}

    def all_counters(self) -> dict[str, int]:
        """Every counter that survives restarts, by its name in the catalog."""
        return dict(Counter(self.catalog.counters()) + self._not_written())

    def artifact_counters(self) -> dict[str, int]:
        """Those of the compile cache."""
        counted = Counter(self.catalog.counters()) + self._not_written()
        return {name: counted[f"artifact_{name}"] for name in ARTIFACT_COUNTERS}

    def failures(self) -> list[dict[str, object]]:
        """The newest remembered failures."""
        return [asdict(row) for row in self.history.latest_failures(SHOWN_FAILURES)]
