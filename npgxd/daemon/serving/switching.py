"""The call at which the ranks of a job change a graph to kernels that came late: proposed, promised, decided.

Pure decisions over what ranks say and times that are passed in.  Promise: COMMIT is told only for a call that every rank of the
agreement has promised not to begin without a decision, and that never changes afterwards; what is told can be lost, late or told
twice; a daemon that knows nothing finds a decision of an earlier one in what the ranks say.  The ranks themselves have the last word
at that call (docs/protocol.md, "Switching late"), so that one that hears of no decision holds nobody up.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from npgxd.daemon.refusals import Refused
from npgxd.wire.switch_messages import Switching, SwitchStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.wire.switch_messages import Switch

log = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0
"""How long ranks that are ready wait for others that do not say anything."""
LATE_S: Final = 3.0
"""How long a graph without collectives waits for ranks that have not asked for its kernels: they may never call it."""
AHEAD_S: Final = 1.5
"""The proposed call is this far ahead by the fastest rank's pace: every rank is to hear of it, and of the decision, before it is there."""
AHEAD_CALLS: Final = 2
MAX_TRIES: Final = 6
MAX_AGREEMENTS_PER_UID: Final = 1024


@dataclass(slots=True)
class _Member:
    said: Switch
    session: str


@dataclass(frozen=True, slots=True)
class Others:
    """What the daemon knows of the other ranks of a job, for one graph: how many still wait for its kernels, and how many ranks there are."""

    compiling: int = 0
    expected: int | None = None


@dataclass(slots=True)
class Agreement:
    """One graph of one job, from the first rank that is ready to the last that is over. Times are monotonic seconds."""

    began: float
    make_ballot: Callable[[], str]
    members: dict[str, _Member] = field(default_factory=dict)
    ballot: str | None = None
    at: int = 0
    decided: bool = False
    never: str = ""
    tries: int = 0
    since: float = 0.0
    """When the present proposal was made."""
    left: set[int] = field(default_factory=set)
    """Ranks that go on as they are."""

    @property
    def state(self) -> str:
        """For people: what is agreed, or why nothing is."""
        if self.decided:
            return f"its ranks change to their new kernels at call {self.at}"
        return f"its ranks do not change together: {self.never}" if self.never else "not agreed on yet"

    def hear(self, said: Switch, session: str, others: Others, now: float) -> Switching:
        """Take what a rank says, and tell it what to do."""
        known = self.members.get(said.member)
        if known is None or said.turn >= known.said.turn:
            self.members[said.member] = _Member(said, session)
        else:
            said = known.said  # an older message that was overtaken
        if said.over:
            return self._over(said)
        self._find_decision()
        if not self.decided and not self.never:
            self._go_on(others, now)
        return self._told(said)

    def gone(self, session: str) -> None:
        """A connection has ended. Its rank may come back on another one, and then says all of it again."""
        for name in [name for name, member in self.members.items() if member.session == session]:
            del self.members[name]

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def _over(self, said: Switch) -> Switching:
        del self.members[said.member]
        if not self.decided and said.rank is not None:
            self.left.add(said.rank)
        return Switching(step=SwitchStep.WAIT)

    def _find_decision(self) -> None:
        """What was decided is known to somebody who was told, also by an earlier daemon."""
        for member in self.members.values():
            if member.said.committed and not self.decided:
                self.ballot, self.at, self.decided, self.never = member.said.ballot, member.said.at, True, ""

    def _go_on(self, others: Others, now: float) -> None:
        missing = self._missing()
        if missing & self.left:
            self.never = f"{_ranks(missing & self.left)} with its own kernels for this graph"
        elif missing or others.compiling or self._may_grow(others, now):
            waited = now - (self.since or self.began)
            if waited >= PATIENCE_S and not others.compiling:
                self.never = (
                    f"{_ranks(missing)} did not ask to change this graph" if missing else "the ranks did not agree in time"
                )
        elif self._all_armed():
            self.decided = True
        elif self.ballot is None or self._passed():
            self._propose(now)
        elif now - self.since >= PATIENCE_S:
            self.never = "not every rank answered the proposal in time"

    def _missing(self) -> set[int]:
        """Ranks that somebody exchanges data with in this graph, and that have not said that they are ready."""
        wanted = {rank for member in self.members.values() for rank in member.said.partners}
        return wanted - {member.said.rank for member in self.members.values() if member.said.rank is not None}

    def _may_grow(self, others: Others, now: float) -> bool:
        """Whether ranks that nobody depends on may still come: they are welcome, and not waited for long."""
        if any(member.said.partners for member in self.members.values()):
            return False
        return len(self.members) < (others.expected or 1) and now - self.began < LATE_S

    def _all_armed(self) -> bool:
        """Every member has promised to wait at one and the same call (a daemon that was restarted learns of the proposal here)."""
        said = {(member.said.ballot, member.said.at) for member in self.members.values()}
        if len(said) != 1 or None in {ballot for ballot, _ in said}:
            return False
        ((self.ballot, self.at),) = said
        return True

    def _passed(self) -> bool:
        """Somebody was faster than the proposal. Nobody was told of a decision, so another one can be made."""
        return any(member.said.ballot != self.ballot and member.said.call >= self.at for member in self.members.values())

    def _propose(self, now: float) -> None:
        if self.tries >= MAX_TRIES:
            self.never = f"the ranks could not be brought to one call in {MAX_TRIES} tries"
            return
        pace = max(member.said.calls_per_s for member in self.members.values())
        ahead = max(AHEAD_CALLS, math.ceil(pace * AHEAD_S)) * 2**self.tries
        self.at = max(max(member.said.call, member.said.at) for member in self.members.values()) + ahead
        self.ballot, self.since, self.tries = self.make_ballot(), now, self.tries + 1

    def _told(self, said: Switch) -> Switching:
        count = len(self.members)
        if self.decided:
            if said.ballot == self.ballot:
                return Switching(SwitchStep.COMMIT, self.ballot, self.at, count)
            return Switching(SwitchStep.NEVER, members=count, reason="the other ranks have agreed without this one")
        if self.never:
            return Switching(SwitchStep.NEVER, members=count, reason=self.never)
        if self.ballot is None:
            return Switching(SwitchStep.WAIT, members=count)
        return Switching(SwitchStep.ARM, self.ballot, self.at, count)


class Agreements:
    """All agreements of this node's jobs. An agreement ends with its last member."""

    def __init__(self, make_ballot: Callable[[], str]) -> None:
        self._make_ballot = make_ballot
        self._agreements: dict[tuple[int, str, str], Agreement] = {}

    def __len__(self) -> int:
        return len(self._agreements)

    def hear(self, said: Switch, *, uid: int, job: str, session: str, others: Others, now: float) -> Switching:
        """What the rank behind ``session`` is to do. Refused (LIMIT) if its user has too many graphs under way."""
        place = (uid, job, said.graph)
        agreement = self._agreements.get(place)
        if agreement is None:
            if sum(owner == uid for owner, _, _ in self._agreements) >= MAX_AGREEMENTS_PER_UID:
                raise Refused(
                    "LIMIT", f"user {uid} changes {MAX_AGREEMENTS_PER_UID} graphs already", hint="wait for some of them"
                )
            agreement = self._agreements[place] = Agreement(now, self._make_ballot)
        before = agreement.state
        told = agreement.hear(said, session, others, now)
        if agreement.state != before:
            log.info("graph %r of job %s: %s", said.graph[:80], job, agreement.state)
        if not agreement.members:
            del self._agreements[place]
        return told

    def gone(self, session: str) -> None:
        """A connection has ended."""
        for place, agreement in list(self._agreements.items()):
            agreement.gone(session)
            if not agreement.members:
                del self._agreements[place]


def _ranks(ranks: set[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")  # noqa: PLR2004 -- enough for a line
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
