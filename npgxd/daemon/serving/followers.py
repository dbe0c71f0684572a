"""Who is told of which round: looked up by round for each event, and by connection when one ends, both without a look at all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Followers:
    """The connections (by identity) that follow rounds (by name)."""

    def __init__(self) -> None:
        self._of: dict[str, set[bytes]] = {}
        self._rounds: dict[bytes, set[str]] = {}

    def __len__(self) -> int:
        """How many rounds are followed, or were a moment ago."""
        return len(self._of)

    def __iter__(self) -> Iterator[str]:  # over a copy: the body may drop rounds
        return iter(list(self._of))

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def __getitem__(self, name: str) -> frozenset[bytes]:
        """The connections that follow a round."""
        return frozenset(self._of.get(name, ()))

    def add(self, name: str, identity: bytes) -> None:
        """A connection follows a round from now on."""
        self._of.setdefault(name, set()).add(identity)
        self._rounds.setdefault(identity, set()).add(name)

    def rounds_of(self, identity: bytes) -> frozenset[str]:
        """The rounds that a connection follows."""
        return frozenset(self._rounds.get(identity, ()))

    def leave(self, name: str, identity: bytes) -> None:
        """It follows this one no more."""
        if name in self._of:
            self._of[name].discard(identity)
        self._forget(identity, name)

    def gone(self, identity: bytes) -> None:
        """It has ended."""
        for name in self._rounds.pop(identity, ()):
            self._of[name].discard(identity)

    def drop(self, name: str) -> None:
        """Nobody is told of this round any more."""
        for identity in self._of.pop(name, ()):
            self._forget(identity, name)

    def _forget(self, identity: bytes, name: str) -> None:
        rounds = self._rounds.get(identity)
        if rounds is not None:
            rounds.discard(name)
            if not rounds:
                del self._rounds[identity]
