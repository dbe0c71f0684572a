"""Accepted rounds of an earlier life that cannot be taken up yet, for want of a toolchain."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from npgxd.daemon.refusals import Refused
from npgxd.errors import NpgxError, ToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.scheduling.ledger import Ledger
    from npgxd.store.rounds import RoundEntry

log = logging.getLogger(__name__)

TAKE_UP_S: Final = 5.0
"""How often a toolchain is looked for while accepted rounds wait for one."""


class Postponed:
    """Journal entries that are to become rounds."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: list[RoundEntry] = []
        self.due = float("inf")
        """When to try again (monotonic seconds); ``inf``: nothing waits."""

    def add(self, entries: Iterable[RoundEntry]) -> None:
        """These are to be taken up."""
        self._entries += entries

    def waiting(self) -> tuple[RoundEntry, ...]:
        """What waits."""
        return tuple(self._entries)

    def submitted(self, name: str, uid: int) -> None:
        """A rank submits a round under this name; Refused if an accepted one of another user has it."""
        if any(entry.round == name and entry.uid != uid for entry in self._entries):
            raise Refused("UNKNOWN_ROUND", "no such round of this user", hint="submit under a new round id")

    def forget(self, name: str) -> None:
        """Its own user has submitted it again."""
        self._entries = [entry for entry in self._entries if entry.round != name]

    def take_up(self, now: float) -> list[Round]:
        """The rounds of all entries whose keys can be told now; the others wait on."""
        taken: list[Round] = []
        left, self._entries = self._entries, []
        for entry in left:
            try:
                taken.append(self._ledger.round(entry, "", now))
            except ToolchainError as error:
                if not self._entries:
                    log.warning("an accepted round waits for a toolchain: %s", error)
                self._entries.append(entry)
            except NpgxError as error:  # written by a version with other options: its rank submits it again, if it still wants it
                log.error("round %s cannot be taken up: %s", entry.round[:8], error)
        self.due = now + TAKE_UP_S if self._entries else float("inf")
        return taken
