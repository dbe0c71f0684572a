"""Whether all ranks that a graph exchanges data with capture it: a collective is captured by every rank, or by none.

Asked once for each shape, after a rank's own capture and before its first replay, which runs the collective that all of them meet in. The
first decision that anyone writes into the ranks' own store holds for all: "capture" when all have said that they can, "eager" when one
cannot or did not come in time. Ranks that did not come once are not waited for again: their graphs run eagerly.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.client.background import Place

logger = logging.getLogger("npugraph_ex")

PATIENCE_S: Final = 10.0
"""How long a rank waits for the others' word. They are about to meet in a collective in any case."""
_POLL_S: Final = 0.01


class Ballots:
    """The votes of this process, counted by the ranks that take part: they run the graphs that they share in one order."""

    def __init__(self, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, ...], int] = {}
        self._apart: set[tuple[int, ...]] = set()

    def agree(self, place: Place, what: str, mine: bool, *, store: Any = None) -> bool:  # noqa: FBT001 -- a fact
        """Whether all of ``place.partners`` capture ``what`` (the same text in every rank); ``mine``: this one could."""
        with self._lock:
            number = self._counts[place.partners] = self._counts.get(place.partners, 0) + 1
            if place.partners in self._apart:
                mine = False
        digest = hashlib.sha256(what.encode()).hexdigest()[:16]
        ballot = f"npgxd/{os.getuid()}/capture/{'.'.join(map(str, place.partners))}/{number}"
        try:
            return self._vote(store or _store(), place, ballot, digest if mine else "")
        except Exception as error:  # noqa: BLE001 -- whatever a store raises: the collective after this will say it better
            logger.debug("npugraph_ex: the vote on a capture failed: %s", error)
            return False

    def _vote(self, store: Any, place: Place, ballot: str, word: str) -> bool:
        store.set(f"{ballot}/{place.rank}", word or "no")
        everyone = [f"{ballot}/{rank}" for rank in place.partners]
        until = self._clock() + self._patience_s
        while word and self._clock() < until and not store.check([f"{ballot}/decision"]):
            if store.check(everyone):
                same = all(bytes(store.get(key)).decode() == word for key in everyone)
                return _decided(store, ballot, "capture" if same else "eager")
            time.sleep(_POLL_S)
        if word and self._clock() >= until:
            with self._lock:
                self._apart.add(place.partners)
        return _decided(store, ballot, "eager")


def _decided(store: Any, ballot: str, proposal: str) -> bool:
    """The decision: ``proposal``, unless there is one already."""
    return bytes(store.compare_set(f"{ballot}/decision", "", proposal)) == b"capture"


def _store() -> Any:
    from torch.distributed import distributed_c10d  # noqa: PLC0415 -- only where it is there

    return distributed_c10d._get_default_store()  # noqa: SLF001 -- the one that all ranks share


BALLOTS: Final = Ballots()
"""This process's."""
