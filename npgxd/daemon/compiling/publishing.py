"""Publishing what jobs made, a few kernels at a time and in slices, so that hundreds of them do not keep the loop from everybody else.

What is told is on the disk; what a fault or an end of the daemon leaves over is compiled again.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from npgxd.compile import KeyFailed
from npgxd.daemon.keeping.metrics_histograms import KERNEL_COMPILE
from npgxd.daemon.slices import Task
from npgxd.errors import StoreError
from npgxd.oplib.sweeping import Step
from npgxd.wire.printable import counted
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from npgxd.compile import JobResult, MadeKernel
    from npgxd.daemon.demand.flights import Need
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.errors import NpgxError
    from npgxd.oplib.sweeping import Steps
    from npgxd.store.kernels import Staged

log = logging.getLogger(__name__)

TOGETHER: Final = 4
"""Kernels that are shown at once: half a dozen fsyncs, which are not divided. Getting them ready is, kernel by kernel."""


@dataclass(slots=True)
class Result:
    """One job's result on its way into the store."""

    job: str
    needs: dict[str, Need]
    result: JobResult
    left: deque[MadeKernel] = field(default_factory=deque)
    failed: list[KeyFailed] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    published: int = 0
    work: Task[None] | None = None


class Publishing:
    """Takes results apart. ``toolchain`` in what it learns names the CANN that the job ran under."""

    def __init__(self, stores: Stores, keyer: Keyer, coordinator: Coordinator) -> None:
        self._stores = stores
        self._keyer = keyer
        self._coordinator = coordinator

    def begin(self, job: str, needs: dict[str, Need], result: JobResult, toolchain: str) -> Result:
        """A job has ended: its package is kept and its costs are learned; the kernels are still to be published."""
        begun = Result(job, needs, result, deque(result.kernels), list(result.failed))
        try:
            if result.package is not None and begun.left:
                self._stores.publish_package(result.package)
        except StoreError as error:
            self._refused(begun, list(begun.left), error)
            begun.left.clear()
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
        while begun.left:
            chosen = self._current(begun, [begun.left.popleft() for _ in range(min(TOGETHER, len(begun.left)))])
            try:
                yield from self._publish(begun, chosen)
            except StoreError as error:
                self._refused(begun, chosen, error)
            if begun.left:
                yield Step("publishing", begun.published, len(begun.needs))

    def _publish(self, begun: Result, chosen: list[MadeKernel]) -> Steps[None]:
        ready: dict[str, Staged] = {}
        for kernel in chosen:
            ready[kernel.key] = self._stores.number_kernel(kernel)
            yield Step("publishing", begun.published, len(begun.needs))
        for staged in ready.values():  # all of them are on their way to the disk by now
            self._stores.kernels.make_durable(staged)
            yield Step("publishing", begun.published, len(begun.needs))
        published = self._stores.publish_kernels([ready[kernel.key] for kernel in self._current(begun, chosen)])
        begun.published += len(published)
        for manifest in published:
            self._stores.tally(**KERNEL_COMPILE.counted(manifest.making.cost_s))
        self._coordinator.landed(published)

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
        log.info(
            "job %s: %d of %s in %.1f s%s",
            begun.job,
            begun.published,
            counted(len(begun.needs), "kernel"),
            begun.result.wall_s,
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
        begun.failed += [KeyFailed(kernel.key, KeyOutcome.FAILED, error.message, transient=True) for kernel in kernels]
