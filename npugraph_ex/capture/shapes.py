"""What is known about one concrete shape of a graph: how it ran, where its inputs are, and its captures."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from npugraph_ex.capture.placing import MOVES, Placing

if TYPE_CHECKING:
    from npugraph_ex.capture.captured import Captured
    from npugraph_ex.capture.watching import Watched
    from npugraph_ex.options import Options


class Shape:
    """``captures`` are found by the addresses of the inputs that stay in place; ``reason``: why there will be none, "" if there may be."""

    def __init__(self, watched: Watched, index: int, options: Options, *, reason: str = "") -> None:
        self.watched = watched
        self.index = index
        self.reason = reason or watched.obstacle
        self.agreed = False
        """Whether the ranks that the graph exchanges data with capture this shape too."""
        self.placing = Placing.of(watched, options, frozenset())
        self.captures: dict[tuple[int, ...], Captured] = {}
        self._options = options
        self._last: tuple[int, ...] | None = None
        self._moves: Counter[int] = Counter()
        self._moved: frozenset[int] = frozenset()

    def settles(self, addresses: tuple[int, ...]) -> bool:
        """Whether a call with its inputs at ``addresses`` is captured beside the captures there are; False: those are of no use any more.

        Weights do not come back to where they were. What else moves too often is copied from now on: ``placing`` is another one then.
        """
        if self._last is None:
            return True
        pairs = zip(self.placing.in_place, addresses, self._last, strict=True)
        moved = {at for at, now, before in pairs if now != before}
        self._moves.update(moved & self.placing.movable)
        often = {at for at in moved & self.placing.movable if self._moves[at] > MOVES}
        if often:
            self._moved |= often
            self._last = None
            self.placing = Placing.of(self.watched, self._options, self._moved)
        return not often and not moved & self.placing.weights

    def add(self, addresses: tuple[int, ...], captured: Captured) -> None:
        """Keep a capture."""
        self.captures[addresses] = captured
        self._last = addresses
