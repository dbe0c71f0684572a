"""Misses by reason: why a round's kernels were not there, counted once for each key of each round that is accepted."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.store.past import CHANGED, DAMAGED, FIRST, REMOVED
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from npgxd.daemon.demand.flights import Flights
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.keeping.stores import Stores

log = logging.getLogger(__name__)

PREFIX: Final = "miss_"
"""Of the counters' names."""
REASONS: Final = {
    FIRST: "no kernel was ever made for such a record, as far as is known",
    CHANGED: "the toolchain's fingerprint or the options changed for it",
    REMOVED: "its kernel was removed to make room",
    DAMAGED: "its kernel was found damaged and set aside, or its files got lost",
    "recompile": "the caller asked for a new compile",
    "in_flight": "it waits or compiles already, for somebody else",
    "failed": "it is remembered that it cannot be compiled",
    "capped": "its operator call keeps changing",
}


class Misses:
    """Counts into the counters that survive restarts."""

    def __init__(self, stores: Stores, flights: Flights) -> None:
        self._stores = stores
        self._flights = flights

    def count(self, taken: Round) -> None:
        """A round was taken, and what is known of its keys is settled; the counts reach the disk with the next others."""
        reasons = Counter(
            "capped" if told.outcome is KeyOutcome.CAPPED else "failed" for told in taken.settlements.values() if not told.kernel
        )
        missing = taken.open_keys
        if taken.recompile:
            reasons["recompile"] += len(missing)
        elif missing:
            flying = {key for key in missing if self._flights.get(key) is not None}
            reasons["in_flight"] += len(flying)
            wanted = {key: taken.needs[key].record.digest for key in missing if key not in flying}
            try:
                reasons.update(self._stores.past.why_missing(wanted).values())
            except StoreError as error:
                log.error("misses are not counted: %s", error)
        self._stores.tally(**{PREFIX + reason: number for reason, number in reasons.items() if number})
