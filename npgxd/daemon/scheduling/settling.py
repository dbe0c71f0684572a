"""The end of a round: every key has its outcome, and its kernels become a view, or something turns out stale and it waits again.

Rounds are settled one after the other, in the order in which they became complete, and a large view is made in slices, so that the last
kernel of many ranks does not keep the loop from everybody else.  Until a round is settled it is unsettled for everybody: its kernels are
held, and it is in the journal if its process was told that it is accepted.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.daemon.demand.rounds import Assembled, why_store
from npgxd.daemon.slices import SLICE_S, Task
from npgxd.errors import StoreError
from npgxd.wire.states import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.library.placing import Placed, Placing
    from npgxd.daemon.scheduling.assembly import Assembly
    from npgxd.daemon.scheduling.ledger import Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """A round whose turn is over. ``told``: what it is told; None: it waits for the op library, or for keys again."""

    done: Round
    told: Assembled | None = None


@dataclass(frozen=True, slots=True)
class _Work:
    """The view of one round in the making, and what it was begun on."""

    task: Task[Assembled]
    ground: tuple[object, ...]


class Settling:
    """The rounds that are complete and not settled. ``clock`` bounds the slices; all other times are monotonic seconds, passed in."""

    def __init__(
        self,
        keyer: Keyer,
        ledger: Ledger,
        assembly: Assembly,
        placing: Placing,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keyer = keyer
        self._ledger = ledger
        self._assembly = assembly
        self._placing = placing
        self.clock = clock
        self._rounds: dict[str, Round] = {}
        """In their order."""
        self._works: dict[str, _Work] = {}

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[str]:
        """Their names, in the order of their turns."""
        return iter(self._rounds)

    def add(self, done: Round) -> None:
        """A round is complete: it is settled when those before it are."""
        if done.id not in self._placing:
            self._rounds.setdefault(done.id, done)

    def at_once(self, done: Round, now: float) -> Ended | None:
        """A round is complete whose process waits for the answer to this very request: settled now if that is little work.

        It is where its view is there already, or is a small one; else None, and it has its turn like the others.
        """
        self.add(done)
        return self._work(done, now, 0.0) if done.id in self._rounds else None

    def slice(self, now: float) -> Ended | None:
        """Work for one slice; the round that ended with it, if one did."""
        first = next(iter(self._rounds.values()), None)
        return None if first is None else self._work(first, now, SLICE_S)

    def placed(self, done: Round | None, name: str, placed: Placed) -> Ended | None:
        """A round's kernels are in the shared op library now, or cannot be."""
        told = self._placing.ended(name, placed)
        if told is None or done is None or done.result is not None:
            return None
        if placed.incomplete and self._ledger.mend(done):  # the store's copies are damaged
            return Ended(done)
        if all(self._keyer.is_current(need) for need in done.needs.values()):
            return Ended(done, told)
        self.add(done)
        return None

    def stop(self) -> None:
        """The daemon ends: what is not settled is in the journal, and settled by the next one."""
        for work in self._works.values():
            work.task.stop()
        self._works.clear()
        self._rounds.clear()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _work(self, done: Round, now: float, slice_s: float) -> Ended | None:
        work = self._works.get(done.id)
        if work is None:
            # What turns out stale is asked for anew, a bounded number of times: then the round has open keys again.
            if self._ledger.renew(done):
                return self._end(done)
            task = Task(self._assembly.of(done), clock=self.clock)
            work = self._works[done.id] = _Work(task, self._ground(done))
        try:
            if not work.task.run(slice_s, at_least_once=True):
                return None
        except Exception:  # a fault of ours in one round may neither keep the others waiting nor its own process
            log.exception("internal error in round %s", done.id[:8])
            return self._end(done, Assembled(None, 0, {}, problem="the daemon failed at making its view"), now)
        assembled, error = work.task.result, work.task.error
        if error is not None:
            if self._ledger.mend(done):
                return self._end(done)
            log.error("round %s has no view: %s", done.id[:8], error)
            why = why_store(error) if isinstance(error, StoreError) else Reason.STORE_FAILED
            assembled = Assembled(None, 0, {}, problem=error.message, hint=error.hint, why=why)
        self._keyer.refresh(now)
        if self._ground(done) != work.ground or not self._is_current(done):
            # The toolchain moved, or the process has loaded other kernels or is another one: from the beginning, after the others.
            del self._works[done.id]
            self._rounds[done.id] = self._rounds.pop(done.id)
            return None
        return self._end(done, assembled, now)

    def _end(self, done: Round, assembled: Assembled | None = None, now: float = 0.0) -> Ended:
        del self._rounds[done.id]
        self._works.pop(done.id, None)
        return Ended(done, None if assembled is None else self._placing.begin(done, assembled, now))

    def _ground(self, done: Round) -> tuple[object, ...]:
        return self._keyer.moves, *self._assembly.ground(done)

    def _is_current(self, done: Round) -> bool:
        """Whether every kernel that is told is of the toolchain as it is now."""
        return all(self._keyer.is_current(done.needs[key]) for key, told in done.settlements.items() if told.kernel)
