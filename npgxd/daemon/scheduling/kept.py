"""Settled rounds, kept for whoever asks again: within bounds on number, age and memory, the one settled longest ago forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npgxd.daemon.demand.rounds import Round

KEPT_ROUNDS: Final = 1024
"""Settled rounds whose outcome is kept for whoever asks again; while they are young, more."""
KEPT_BYTES: Final = 128 * 1024 * 1024
"""Records of settled rounds that are kept; beyond that the oldest rounds are forgotten, however young."""


class Kept:
    """The settled rounds of a daemon, in the order in which they were settled."""

    def __init__(self) -> None:
        self._rounds: OrderedDict[str, Round] = OrderedDict()
        self._bytes = 0

    def add(self, settled: Round) -> None:
        """A round is settled (again)."""
        self.drop(settled.id)
        self._rounds[settled.id] = settled
        self._bytes += settled.size

    def drop(self, name: str) -> None:
        """A round is under way again, or gone."""
        known = self._rounds.pop(name, None)
        if known is not None:
            self._bytes -= known.size

    def excess(self, now: float, young_s: float) -> Iterator[Round]:
        """Take out what is over the bounds; never the newest, which is somebody's answer just now."""
        while len(self._rounds) > 1:
            oldest = next(iter(self._rounds.values()))
            many = len(self._rounds) > KEPT_ROUNDS and now - oldest.settled_at > young_s
            if self._bytes <= KEPT_BYTES and not many:
                return
            self.drop(oldest.id)
            yield oldest
