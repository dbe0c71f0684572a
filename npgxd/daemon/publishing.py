"""Publishing what jobs made, a few kernels at a time, so that hundreds of them do not keep the loop from everybody else.

Each slice is on the disk, and told, before the next one is begun; what a fault or an end of the daemon leaves over is compiled again.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from npgxd.compile import KeyFailed
from npgxd.daemon.metrics_histograms import KERNEL_COMPILE
from npgxd.errors import StoreError
from npgxd.wire.printable import counted
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from npgxd.compile import JobResult, MadeKernel
    from npgxd.daemon.coordinator import Coordinator
    from npgxd.daemon.flights import Need
    from npgxd.daemon.keyer import Keyer
    from npgxd.daemon.stores import Stores

log = logging.getLogger(__name__)

SLICE: Final = 4
"""Kernels that are published at once: some ten fsyncs, for which everybody else waits."""


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
        """Publish and tell the next kernels that were made under a toolchain that is still the same; whether that were the last."""
        self._keyer.refresh(now)
        chosen = [begun.left.popleft() for _ in range(min(SLICE, len(begun.left)))]
        current = [kernel for kernel in chosen if self._keyer.is_current(begun.needs[kernel.key])]
        begun.moved += [kernel.key for kernel in chosen if kernel not in current]
        try:
            published = self._stores.publish_kernels(current)
        except StoreError as error:
            self._refused(begun, current, error)
        else:
            begun.published += len(published)
            for manifest in published:
                self._stores.tally(**KERNEL_COMPILE.counted(manifest.making.cost_s))
            self._coordinator.landed(published)
        return not begun.left

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

    def _refused(self, begun: Result, kernels: list[MadeKernel], error: StoreError) -> None:
        log.error("cannot publish: %s", error)
        begun.failed += [KeyFailed(kernel.key, KeyOutcome.FAILED, error.message, transient=True) for kernel in kernels]
