"""What workers tell of keys, told on to the rounds that wait for them: made, failed for good, moved away, out of space, expired.

Every method gives the rounds that it touched; settling those that are complete is the coordinator's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from npgxd.daemon.demand.rounds import Settlement
from npgxd.errors import StoreError
from npgxd.wire.printable import counted
from npgxd.wire.states import KeyOutcome, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npgxd.daemon.demand.flights import Flight, Flights
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.demand.tries import GivenUp, Try
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.store.manifest import KernelManifest

log = logging.getLogger(__name__)

MAX_NAMED: Final = 8
"""Operators that one line of the log names."""


class Outcomes:
    """The outcomes of one daemon's keys; ``rounds`` is the coordinator's, ``remember_s`` is how long passing reasons are remembered."""

    def __init__(self, rounds: Mapping[str, Round], flights: Flights, stores: Stores, remember_s: float) -> None:
        self._rounds = rounds
        self._flights = flights
        self._stores = stores
        self.remember_s = remember_s

    def landed(self, manifests: Iterable[KernelManifest]) -> set[str]:
        """These kernels are published."""
        landed = list(manifests)
        self._stores.count(compiled=len(landed))
        touched: set[str] = set()
        for manifest in landed:
            if (flight := self._flights.landed(manifest.key)) is not None:
                touched |= self._tell(flight, Settlement(KeyOutcome.COMPILED, kernel=manifest.id))
        return touched

    def failed(self, tries: Iterable[Try], now: float) -> set[str]:
        """These tries of one run ended without a kernel: what is given up is told, the rest waits for a worker again."""
        touched: set[str] = set()
        operators: dict[str, list[str]] = {}
        for lost in self._flights.failed(tries, now):
            operators.setdefault(lost.reason, []).append(lost.flight.need.record.op_type)
            self._remember(lost)
            why = Reason.NO_SPACE if lost.outcome is KeyOutcome.NO_SPACE else Reason.COMPILE_FAILED
            touched |= self._tell(lost.flight, Settlement(lost.outcome, reason=lost.reason, why=why))
        for reason, without in operators.items():  # a run that fails as a whole says the same of hundreds of them
            log.warning("%s: %s", _without_kernel(without), reason)
        return touched

    def moved(self, keys: Iterable[str]) -> set[str]:
        """The toolchain changed under these keys; whoever waits for them needs other ones."""
        return {name for flight in self._flights.drop(keys) for name in flight.waiters} & self._rounds.keys()

    def refused(self, reason: str, why: Reason) -> set[str]:
        """Nothing can be compiled just now; what was published stays, and what waits may be asked for again at any time."""
        outcome = KeyOutcome.NO_SPACE if why is Reason.NO_SPACE else KeyOutcome.FAILED
        touched: set[str] = set()
        for flight in self._flights.drop_waiting():
            touched |= self._tell(flight, Settlement(outcome, reason=reason, why=why))
        if touched:
            log.error("%s told: %s", counted(len(touched), "round is", "rounds are"), reason)
        return touched

    def expired(self, taken: Round, waited_s: float) -> set[str]:
        """Nobody has waited for a round for too long: those of its keys that no worker has are given up for it."""
        left = self._flights.leave(taken.id, taken.open_keys)
        reason = f"no process has waited for it for {waited_s:.0f} s ([compile] background_s)"
        for key in left:
            taken.settle_key(key, Settlement(KeyOutcome.EXPIRED, reason=reason, why=Reason.EXPIRED))
        if not left:
            return set()
        self._stores.count(expired=len(left))
        lost = counted(len(left), "kernel is", "kernels are")
        log.warning("round %s of job %s: %s not compiled: %s", taken.id[:8], taken.job, lost, reason)
        return {taken.id}

    def _tell(self, flight: Flight, settlement: Settlement) -> set[str]:
        told = flight.waiters.keys() & self._rounds.keys()
        for name in told:
            self._rounds[name].settle_key(flight.need.key, settlement)
        return told

    def _remember(self, lost: GivenUp) -> None:
        try:
            self._stores.remember_failure(lost, self.remember_s)
        except StoreError as error:
            log.error("this failure is not remembered: %s", error)


def _without_kernel(operators: list[str]) -> str:
    """The operators of records that came to nothing, in words."""
    names = sorted(set(operators))
    if len(operators) == 1:
        return f"{names[0]} has no kernel"
    shown = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
    return f"{len(operators)} records of {shown} have no kernel"
