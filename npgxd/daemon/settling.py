"""The end of a round: every key has its outcome, and its kernels become a view, or something turns out stale and it waits again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npgxd.daemon.rounds import Assembled, why_store
from npgxd.errors import StoreError

if TYPE_CHECKING:
    from npgxd.daemon.assembly import Assembly
    from npgxd.daemon.keyer import Keyer
    from npgxd.daemon.ledger import Ledger
    from npgxd.daemon.placing import Placed, Placing
    from npgxd.daemon.rounds import Round

log = logging.getLogger(__name__)


class Settling:
    """Ends rounds. What ``settle`` and ``placed`` give is to be told; None: the round waits for the op library, or for keys again."""

    def __init__(self, keyer: Keyer, ledger: Ledger, assembly: Assembly, placing: Placing) -> None:
        self._keyer = keyer
        self._ledger = ledger
        self._assembly = assembly
        self._placing = placing

    def settle(self, done: Round, now: float) -> Assembled | None:
        """Assemble the view of what this process does not have yet.

        What turns out stale or damaged just now is asked for anew, a bounded number of times: then the round has open keys again.
        """
        if done.id in self._placing or self._ledger.renew(done):
            return None
        try:
            assembled = self._assembly.of(done)
        except StoreError as error:
            if self._ledger.mend(done):
                return None
            log.error("round %s has no view: %s", done.id[:8], error)
            assembled = Assembled(None, 0, {}, problem=error.message, hint=error.hint, why=why_store(error))
        return self._placing.begin(done, assembled, now)

    def placed(self, done: Round | None, name: str, placed: Placed, now: float) -> Assembled | None:
        """A round's kernels are in the shared op library now, or cannot be."""
        told = self._placing.ended(name, placed)
        if told is None or done is None or done.result is not None:
            return None
        if placed.incomplete and self._ledger.mend(done):  # the store's copies are damaged
            return None
        current = all(self._keyer.is_current(need) for need in done.needs.values())
        return told if current else self.settle(done, now)
