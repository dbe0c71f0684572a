"""When removal runs, what it must leave alone, and whether there is room to compile.

A pass runs every ``gc_interval_s``, when an administrator asks, when the toolchain changed, and before a compile for which the disk is
short.  It is driven in slices by the loop, and its kernels' files go beside the loop, so that look-ups go on meanwhile.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from npgxd.daemon.beside import until
from npgxd.daemon.refusals import Refused
from npgxd.daemon.slices import Task
from npgxd.errors import NpgxError, StoreError
from npgxd.oplib.removal import Budget, Marks, Removal, Report
from npgxd.oplib.sweeping import Step
from npgxd.store.past import REMOVED
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from npgxd.config import StoreSection
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.oplib.sweeping import Steps
    from npgxd.store.uses import Standing

log = logging.getLogger(__name__)

GB: Final = 1_000_000_000
MB: Final = 1_000_000
FLUSH_S: Final = 1.0
FIRST_PASS_S: Final = 30.0
"""How long after the start the first pass runs, at the latest."""
RETRY_S: Final = 5.0
"""After a pass that could not make room, so long nothing is compiled before another is tried."""
LOOK_S: Final = 10.0
"""How often the disk is looked at: others fill it too, and a round or a view needs room also where nothing is compiled."""
_REMOVAL: Final = "removal: the pass was not finished"
_USES: Final = "last uses are not kept"
GRACE: Final = "removal_grace"
REBUILT: Final = "the catalog was made anew, and knows no last uses yet: nothing is removed until npgxd was restarted once"
HELD: Final = "the catalog was made anew: nothing is removed until all processes of before the restart have ended"


class Room(Enum):
    """Whether there is space to compile."""

    YES = "yes"
    WAIT = "wait"
    """A pass of removal is making some."""
    NO = "no"


@dataclass(slots=True)
class _Last:
    """The last pass that was no dry run."""

    report: Report
    at: float
    seconds: float


class Housekeeping:
    """Removal, scheduled. All times are monotonic seconds, passed in."""

    def __init__(self, settings: StoreSection, stores: Stores, keyer: Keyer, coordinator: Coordinator) -> None:
        self._settings = settings
        self._stores = stores
        self._keyer = keyer
        self._coordinator = coordinator
        self._removal = Removal(stores.state, stores.views, stores.leases, stores.packages, stores.pins, done=self._done_beside)
        self._task: Task[Report] | None = None
        self._dry_run = False
        self._next_pass: float | None = None
        self._next_flush = float("inf")
        self._no_room_until = float("-inf")
        self._next_look = float("-inf")
        self._moves = keyer.moves
        self._last: _Last | None = None
        self.problem = ""
        """Why the last pass could not be finished; empty if it was."""
        self._before = self._grace()

    # ---- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do a slice of what is under way and start what is due; when to come back."""
        if self._next_pass is None:
            self._next_pass = now + min(FIRST_PASS_S, self._settings.gc_interval_s)
            self._stores.reserve.keep()
        if self._keyer.moves != self._moves:
            self._moves = self._keyer.moves
            self._next_pass = now
        if self._task is None and (now >= self._next_pass or self._is_short(now)):
            self._start(now)
        if self._task is not None and self._task.run():
            self._ended(self._task, now)
        if self._task is not None:
            return math.inf if self._task.step.waits else now
        return min(self._next_pass, self._next_look, self._flush(now))

    def _is_short(self, now: float) -> bool:
        """Whether a look at the disk is due and finds too little free, which the last pass did not end with already."""
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        known = self._last is not None and self._last.report.short
        return not known and self._removal.free() < int(self._settings.min_free_gb * GB)

    def reconfigured(self) -> None:
        """The configuration was reloaded: the next pass comes as soon as after a start, under the new limits."""
        self._next_pass = None

    def request(self, now: float, *, dry_run: bool = False) -> Task[Report]:
        """A pass that an administrator asked for; the one that is under way, if it is of the same kind."""
        if self._task is not None and self._dry_run == dry_run:
            return self._task
        if self._task is not None and dry_run:
            raise Refused("BUSY", "a pass of removal is under way", hint="npgxctl status tells what it did when it has ended")
        return self._start(now, dry_run=dry_run)

    def room(self, now: float) -> Room:
        """Whether something may be compiled now. Where the disk is short, a pass is started first."""
        wanted = int(self._settings.min_free_gb * GB)
        if self._removal.free() >= wanted:
            return Room.YES
        if self._task is not None and not self._dry_run:
            return Room.WAIT
        if now < self._no_room_until:
            return Room.NO
        log.warning("%d bytes are free on the disk of %s, min_free_gb is %g", self._removal.free(), self._place, wanted / GB)
        self._start(now)
        return Room.WAIT

    def why_no_room(self) -> str:
        """What a round is told that could not be compiled for lack of space."""
        free = self._removal.free() / GB
        return (
            f"no space: {free:.2f} GB are free on the disk of {self._place}, [store] min_free_gb is {self._settings.min_free_gb:g}, "
            "and removing all that nobody needs is not enough; free space there, or lower it, and submit again"
        )

    def stop(self) -> None:
        """The daemon stops: a pass ends where it is, which is safe anywhere."""
        if self._task is not None:
            self._task.stop()
            self._task = None
            self._stores.reserve.keep()  # a pass has given it back, and the next start may need it

    # ---- for the status document -------------------------------------------------------------------------------------

    def describe(self, now: float) -> dict[str, object]:
        """``removal`` in the status document."""
        said: dict[str, object] = {
            "running": self._task is not None,
            "problem": self.problem,
            "pins": len(self._stores.pins.all()),
            "pinned": len(self._stores.pins.keys()),
            "retired": self._last.report.retired if self._last else 0,
            "hold": self._hold(),
            "free_bytes": self._removal.free(),
            "max_bytes": int(self._settings.max_gb * GB),
            "min_free_bytes": int(self._settings.min_free_gb * GB),
            "last": None,
        }
        if self._last is not None:
            report = self._last.report
            said["last"] = {
                "ago_s": round(now - self._last.at, 3),
                "busy_s": round(self._last.seconds, 3),
                "scanned": report.scanned,
                "kept": dict(report.kept),
                "removed": report.removed,
                "freed_bytes": report.freed,
                "bytes": report.bytes,
                "over": report.over,
                "short": report.short,
            }
        return said

    # ---- inside ------------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return str(self._stores.state.path)

    def _start(self, now: float, *, dry_run: bool = False) -> Task[Report]:
        settings = self._settings
        if not dry_run:
            self._stores.reserve.give()
        wanted = int(settings.min_free_gb * GB)
        budget = Budget(
            max_bytes=int(settings.max_gb * GB),
            min_free=wanted + self._stores.reserve.missing() if wanted else 0,
            quarantine_bytes=settings.quarantine_mb * MB,
            recent_s=settings.recent_s,
        )
        if not dry_run:
            self._next_pass = float("inf")
        if self._task is not None:  # a dry run: it gives way
            self._task.stop()
        self._dry_run = dry_run
        self._task = Task(self._pass(budget, now, dry_run=dry_run))
        return self._task

    def _pass(self, budget: Budget, now: float, *, dry_run: bool) -> Steps[Report]:
        if not dry_run:
            yield from self._stores.releasing(lambda: self._coordinator.views_in_use(now))
        return (yield from self._removal.collect(budget, lambda: self._marking(now), self._is_retired, dry_run=dry_run))

    def _done_beside(self, act: Callable[[], object]) -> Steps[None]:
        yield from until(self._stores.beside.begin(act), Step("removing", 0, 0))

    def _ended(self, task: Task[Report], now: float) -> None:
        self._task = None
        if self._dry_run:
            return
        self._stores.reserve.keep()
        asked = math.inf if self._next_pass is None else self._next_pass  # meanwhile: the toolchain changed, or the limits did
        self._next_pass = min(asked, now + self._settings.gc_interval_s)
        self.problem = str(task.error) if task.error else ""
        report = task.result
        if report is None:
            self._stores.troubles.tell(_REMOVAL, task.error)
            self._no_room_until = now + RETRY_S
            return
        self._stores.troubles.over(_REMOVAL)
        known = self._last is not None and (self._last.report.over or self._last.report.short)
        self._last = _Last(report, now, task.busy_s)
        self._count(report)
        news = logging.INFO if report.removed or report.packages or report.views else logging.DEBUG  # there is a pass every 5 min
        log.log(
            logging.WARNING if (report.over or report.short) and not known else news,
            "removal: %s; %.0f ms of work in %.0f ms",
            report.line(),
            task.busy_s * 1000,
            max(now - task.began, task.busy_s) * 1000,  # a pass may begin and end within one turn of the loop
        )
        if report.short:
            self._no_room_until = now + RETRY_S

    def _count(self, report: Report) -> None:
        if not report.removed:
            return
        self._stores.count(removed=report.removed, removed_bytes=report.freed)
        try:
            self._stores.past.gone([victim.key for victim in report.victims], REMOVED)
        except StoreError as error:
            log.error("it is not remembered that %s removed: %s", counted(report.removed, "kernel was", "kernels were"), error)

    def _marking(self, now: float) -> Generator[Step, None, Marks]:
        """Everything that somebody needs: leases, rounds that are not settled, views that were just told; pins are looked at apart."""
        leased: set[str] = set()
        for views in self._stores.leases.each_in_use():
            leased |= views
            yield Step("leases", len(leased), 0)
        told = self._coordinator.views_in_use(now)
        kernels: dict[str, str] = {}
        keys: dict[str, str] = {}
        hold = self._hold()
        for waiting in self._coordinator.rounds.values():
            if waiting.result is None:
                keys.update(dict.fromkeys(waiting.needs, "needed by a round"))
                kernels.update((done.kernel, "needed by a round") for done in waiting.settlements.values() if done.kernel)
        for why, views in (("told to a process", told - leased), ("leased", leased)):
            for view in views:
                try:
                    kernels.update(dict.fromkeys(self._stores.views.kernels_of(view), why))
                except StoreError as error:
                    if view in self._stores.views:
                        hold = hold or f"a view that is in use cannot be read: {error.message}"
                yield Step("views", 0, 0)
        return Marks(views=frozenset(leased | told), kernels=kernels, keys=keys, hold=hold)

    def _is_retired(self, row: Standing) -> bool:
        """Whether the toolchain, as it is now, would compile another kernel for the same record."""
        if self._keyer.toolchain is None or not row.fingerprint:
            return False
        try:
            return self._keyer.fingerprint(row.op_type) != row.fingerprint
        except NpgxError:
            return False

    def _flush(self, now: float) -> float:
        uses = self._stores.kernels.uses
        if not uses.dirty:
            self._next_flush = float("inf")
        elif self._next_flush == float("inf"):
            self._next_flush = now + FLUSH_S
        elif now >= self._next_flush:
            self._next_flush = float("inf")
            try:
                uses.flush()
            except StoreError as error:
                self._stores.troubles.tell(_USES, error)
                self._next_flush = now + FLUSH_S
            else:
                self._stores.troubles.over(_USES)
        return self._next_flush

    # ---- after the catalog was made anew -----------------------------------------------------------------------------

    def _grace(self) -> set[str] | None:
        """The leases that must be proven free before anything is removed; None: no need to wait.

        A catalog that was made anew knows no last uses: until the next start, and until every lease of that time has ended, nothing goes.
        """
        catalog = self._stores.catalog
        if catalog.was_rebuilt and self._stores.kernels.count():
            catalog.count({GRACE: 1})
            return set()
        if catalog.counters().get(GRACE, 0):
            return {path.name for path in self._stores.state.leases.iterdir()}
        return None

    def _hold(self) -> str:
        catalog = self._stores.catalog
        if self._before is None:
            return ""
        if catalog.was_rebuilt:
            return REBUILT
        self._before = {lease for lease in self._before if self._stores.leases.is_held(lease)}
        if self._before:
            return HELD
        self._before = None
        catalog.count({GRACE: -catalog.counters().get(GRACE, 0)})
        return ""
