"""Publishing what jobs made, a few kernels at a time and in slices, so that hundreds of them do not keep the loop from everybody else.

Nor does the disk: what is to reach it is waited for beside the loop.  What is told is on the disk; what a fault or an end of the daemon
leaves over is compiled again.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from npgxd.compile import KeyFailed, outcome_of
from npgxd.daemon.beside import until
from npgxd.daemon.keeping.metrics_histograms import KERNEL_COMPILE
from npgxd.daemon.slices import Task
from npgxd.errors import StoreError
from npgxd.oplib.sweeping import Step
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.compile import JobResult, MadeKernel
    from npgxd.daemon.demand.flights import Need
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.errors import NpgxError
    from npgxd.oplib.sweeping import Steps
    from npgxd.store.kernels import Staged
    from npgxd.store.waits import Waits

log = logging.getLogger(__name__)

T = TypeVar("T")

DISK_S: Final = 10.0
"""So long an end waits for the disk, for results that are being published."""
TOGETHER: Final = 8
"""Kernels that are shown at once: their renames, and one commit of the catalog, are not divided. That is what the loop still waits for."""


@dataclass(slots=True, eq=False)
class Result:
    """One job's result on its way into the store."""

    job: str
    needs: dict[str, Need]
    result: JobResult
    left: deque[MadeKernel] = field(default_factory=deque)
    failed: list[KeyFailed] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    published: int = 0
    near: int = 0
    """Kernels that are being published now: no longer ``left``, and not in the store yet."""
    work: Task[None] | None = None
    disk: Future[None] | None = None
    """What is done for it beside the loop: until that has ended there is nothing else to do for it."""

    @property
    def remaining(self) -> int:
        """Kernels that were made and are not in the store yet."""
        return len(self.left) + self.near


class Publishing:
    """Takes results apart. ``toolchain`` in what it learns names the CANN that the job ran under."""

    def __init__(self, stores: Stores, keyer: Keyer, coordinator: Coordinator) -> None:
        self._stores = stores
        self._keyer = keyer
        self._coordinator = coordinator
        self._queue: deque[Result] = deque()

    # ---- whose turn it is --------------------------------------------------------------------------------------------

    def put(self, begun: Result) -> None:
        """Something is to be done for it. Results take turns, so that a small one is not behind a large one."""
        self._queue.append(begun)

    @property
    def ready(self) -> bool:
        """Whether one of them does not wait for the disk."""
        return any(not _waits(begun) for begun in self._queue)

    def next(self) -> Result | None:
        """Take the one whose turn it is; None: there is none, or all of them wait for the disk."""
        begun = next((begun for begun in self._queue if not _waits(begun)), None)
        if begun is not None:
            self._queue.remove(begun)
        return begun

    def await_disk(self, limit_s: float) -> bool:
        """Wait until one of them can go on, for so long at most; whether one can."""
        asked = [begun.disk for begun in self._queue if begun.disk is not None]
        return bool(wait(asked, max(0.0, limit_s), FIRST_COMPLETED).done)

    # ---- one result --------------------------------------------------------------------------------------------------

    def begin(self, job: str, needs: dict[str, Need], result: JobResult, toolchain: str) -> Result:
        """A job has ended: its costs are learned; its package and its kernels are still to be published."""
        begun = Result(job, needs, result, deque(result.kernels), list(result.failed))
        try:
            self._stores.learn(result, needs, toolchain)
            self._coordinator.prospects.reprice()
        except StoreError as error:
            log.error("after job %s: %s", job, error)
        return begun

    def slice(self, begun: Result, now: float) -> bool:
        """Publish and tell kernels that were made under a toolchain that is still the same, for one slice; whether those were the last."""
        self._keyer.refresh(now)
        if begun.work is None:
            begun.work = Task(self._steps(begun))
        if not begun.work.run(at_least_once=True):
            return False
        if begun.work.error is not None:
            self._refused(begun, list(begun.left), begun.work.error)
            begun.left.clear()
        return True

    def _steps(self, begun: Result) -> Steps[None]:
        if begun.result.package is not None and begun.left:
            yield from self._waiting(begun, self._stores.publishing_package(begun.result.package))
        while begun.left:
            chosen = self._current(begun, [begun.left.popleft() for _ in range(min(TOGETHER, len(begun.left)))])
            begun.near = len(chosen)
            try:
                yield from self._publish(begun, chosen)
            except StoreError as error:
                self._refused(begun, chosen, error)
            begun.near = 0
            if begun.left:
                yield Step("publishing", begun.published, len(begun.needs))

    def _publish(self, begun: Result, chosen: list[MadeKernel]) -> Steps[None]:
        ready: dict[str, Staged] = {}
        for kernel in chosen:
            ready[kernel.key] = self._stores.number_kernel(kernel)
            yield Step("publishing", begun.published, len(begun.needs))
        yield from self._beside(begun, partial(self._stores.kernels.make_durable, list(ready.values())))
        current = [ready[kernel.key] for kernel in self._current(begun, chosen)]
        published = yield from self._waiting(begun, self._stores.publishing_kernels(current))
        begun.published += len(published)
        for manifest in published:
            self._stores.tally(**KERNEL_COMPILE.counted(manifest.making.cost_s))
        self._coordinator.landed(published)

    def _waiting(self, begun: Result, acts: Waits[T]) -> Steps[T]:
        """Go through an act of the store; what only waits for the disk is done beside the loop."""
        with closing(acts):
            while True:
                try:
                    act = next(acts)
                except StopIteration as end:
                    result: T = end.value
                    return result
                yield from self._beside(begun, act)

    def _beside(self, begun: Result, act: Callable[[], None]) -> Steps[None]:
        begun.disk = self._stores.beside.begin(act)
        yield from until(begun.disk, Step("publishing", begun.published, len(begun.needs)))

    def _current(self, begun: Result, kernels: list[MadeKernel]) -> list[MadeKernel]:
        """Those of the toolchain as it is now; the others are noted."""
        current = [kernel for kernel in kernels if self._keyer.is_current(begun.needs[kernel.key])]
        begun.moved += [kernel.key for kernel in kernels if kernel not in current]
        return current

    def end(self, begun: Result, now: float) -> list[KeyFailed]:
        """All kernels are published: what else was staged goes. Gives the keys without a kernel whose toolchain has not moved."""
        try:
            self._stores.discard_staged(begun.job)
        except StoreError as error:
            log.error("after job %s: %s", begun.job, error)
        notes = "".join(f"; {note}" for note in begun.result.notes[:3])
        # Where some were published, the operators that failed are told one by one.
        why = "" if begun.published or not begun.failed else f": {begun.failed[0].reason}"
        log.info(
            "job %s: %d of %s in %.1f s%s%s",
            begun.job,
            begun.published,
            counted(len(begun.needs), "kernel"),
            begun.result.wall_s,
            why,
            notes,
        )
        moved = {*begun.moved, *(one.key for one in begun.failed if not self._keyer.is_current(begun.needs[one.key]))}
        if moved:
            anew = counted(len(moved), "kernel is", "kernels are")
            log.warning("the toolchain changed while job %s ran: %s asked for anew", begun.job, anew)
            self._coordinator.moved(moved, now)
        return [one for one in begun.failed if one.key not in moved]

    def _refused(self, begun: Result, kernels: list[MadeKernel], error: NpgxError) -> None:
        log.error("cannot publish: %s", error)
        begun.failed += [KeyFailed(kernel.key, outcome_of(error), error.message, transient=True) for kernel in kernels]


def _waits(begun: Result) -> bool:
    return begun.disk is not None and not begun.disk.done()
