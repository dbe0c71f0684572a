"""Who still waits for a round: its process, one that took it over, or nobody; and when nobody has for too long.

A rank that ends, or loses its connection, is given a moment to come back; one that says that it waits no more, at its deadline for
example, is not, though its process lives on.  After that its keys drop to the background, where every
waiting rank comes first, and after ``[compile] background_s`` what is still queued of them is given up, and told so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.sessions import Sessions

GRACE_S: Final = 15.0
"""A rank may take this long to come back: a client tries for 10 s to reach a daemon that was restarted."""
CHECK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Changes:
    """What one look found: rounds that dropped to the background, and those for which nobody has waited for too long."""

    dropped: tuple[Round, ...] = ()
    expired: tuple[Round, ...] = ()


class Attendance:
    """The rounds of a daemon that are under way. Times are monotonic seconds: a wall clock that jumps makes nobody leave."""

    def __init__(self, sessions: Sessions, background_s: float) -> None:
        self._sessions = sessions
        self.background_s = background_s
        self._rounds: dict[str, Round] = {}
        self._next_check = float("inf")

    def begin(self, taken: Round, now: float) -> None:
        """A round is under way. What an administrator imports is nobody's from the start, and is kept however long it takes."""
        self._rounds[taken.id] = taken
        taken.given_up = False
        taken.left_at = None if self._is_there(taken) else now
        taken.background = taken.imported
        self._next_check = min(self._next_check, now + CHECK_S)

    def end(self, name: str) -> None:
        """It is settled."""
        self._rounds.pop(name, None)

    def gave_up(self, taken: Round, now: float) -> bool:
        """Its process says that it waits no more for it; whether that is news."""
        if taken.id not in self._rounds or taken.given_up or taken.imported:
            return False
        taken.given_up, taken.background = True, True
        taken.left_at = now if taken.left_at is None else taken.left_at
        return True

    def returned(self, taken: Round) -> bool:
        """A process asks for a round; whether that brings it back to the front."""
        taken.given_up = False
        back = taken.background and self._is_there(taken)
        if self._is_there(taken):
            taken.left_at, taken.background = None, False
        return back

    def tick(self, now: float) -> Changes:
        """Look who is still there, at most once a second."""
        if now < self._next_check:
            return Changes()
        dropped: list[Round] = []
        expired: list[Round] = []
        for taken in self._rounds.values():
            if taken.imported or self._is_there(taken):
                continue
            if taken.left_at is None:
                taken.left_at = now
            if not taken.background and now - taken.left_at >= GRACE_S:
                taken.background = True
                dropped.append(taken)
            if now - taken.left_at >= GRACE_S + self.background_s:
                expired.append(taken)
        self._next_check = now + CHECK_S if self._rounds else float("inf")
        return Changes(tuple(dropped), tuple(expired))

    @property
    def next_check(self) -> float:
        """When to look again; ``inf``: nothing is under way."""
        return self._next_check

    def _is_there(self, taken: Round) -> bool:
        return not taken.given_up and self._sessions.is_open(taken.session)
