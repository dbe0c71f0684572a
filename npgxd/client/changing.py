"""One graph's calls, and the call at which it changes to kernels that came late.

Two threads meet here: the one that calls the graph, and one in the background that talks to the daemon.  Promise: a call at which nothing is
to be decided costs a comparison and takes no lock; a graph without collectives is never held up; one with collectives waits, once, for
``DECISION_S`` at most, and then does what all of its ranks do: at that call they vote in a box that they share, the first vote counts for
all, and a rank that has heard of no decision votes for staying as it is.
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Vote = Callable[[str, bool], bool]

DECISION_S: Final = 1.5
"""How long a rank that has come to the proposed call waits to hear of the decision."""


class Calls:
    """The calls of one graph in this process. ``begin`` and ``take`` belong to the thread that calls it."""

    def __init__(self) -> None:
        self.begun = 0
        """How many calls have begun; a count that several threads share may be too low."""
        self._due: float = math.inf
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._due = math.inf

    def _own(self) -> None:
        """A forked child has no thread that follows its parent's rounds, and its parent's lock may be held."""
        if self._pid != os.getpid():
            self._forget()

    def begin(self) -> bool:
        """Count a call that is about to run; True: call ``take`` before it does."""
        self.begun = call = self.begun + 1
        return call >= self._due

    def take(self) -> list[Change]:
        """The changes that are to be made before this call; each must then be told ``made``."""
        self._own()
        call = self.begun
        with self._lock:
            due = [change for change in self._changes if change.due <= call]
        return [change for change in due if change.decide(call)]

    def add(self, change: Change) -> None:
        """From now on ``change`` may become due."""
        self._own()
        with self._lock:
            self._changes.append(change)

    def update(self) -> None:
        """A change is due at another call than before, or at none any more."""
        with self._lock:
            self._changes = [change for change in self._changes if not change.is_over]
            self._due = min((change.due for change in self._changes), default=math.inf)


class Change:
    """One set of new kernels of a graph: agreed on from the background, made by the thread that calls the graph."""

    def __init__(
        self,
        calls: Calls,
        *,
        vote: Vote | None = None,
        decision_s: float = DECISION_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``vote(ballot, mine)`` returns the first vote that any rank gave on a ballot.

        It is given for a graph with collectives: its ranks change together or not at all.
        """
        self.calls = calls
        self.due: float = math.inf
        """The call before which something is to be decided."""
        self.ballot: str | None = None
        self.at = 0
        self.committed = False
        self.is_over = False
        self.made_at: int | None = None
        """The call at which it was made."""
        self.reason = ""
        """Why it will not be made, if so."""
        self._vote = vote
        self._decision_s = decision_s
        self._clock = clock
        self._said = threading.Condition()
        self._voting = False
        self.is_awaited = False
        """The thread that calls the graph waits for the decision."""
        calls.add(self)

    @property
    def exchanges(self) -> bool:
        """The graph has collectives."""
        return self._vote is not None

    # ---- in the background -------------------------------------------------------------------------------------------

    def arm(self, ballot: str, at: int) -> bool:
        """Promise not to begin call ``at`` without a decision; False if it has begun already, or if an earlier promise is being kept."""
        with self._said:
            if self.is_over or self._voting or self.committed:
                return False
            if ballot == self.ballot:
                return True
            before = self.due
            self._set_due(at)
            # The other thread counts first and looks second, this one sets first and looks second: one of them sees the other.
            if self.calls.begun >= at:
                self._set_due(before)
                return False
            self.ballot, self.at = ballot, at
            self._said.notify_all()
            return True

    def commit(self, ballot: str) -> bool:
        """The decision for what was promised; False if it comes too late, or is about something else."""
        with self._said:
            if self.is_over or self._voting or ballot != self.ballot:
                return False
            self.committed = True
            self._said.notify_all()
            return True

    def make_alone(self) -> None:
        """There is no agreement to be had, and none is needed: at the next call, or at the one that was promised."""
        with self._said:
            if not self.is_over and self.ballot is None:
                self._set_due(0)

    def withdraw(self, reason: str) -> None:
        """There is no agreement to be had, and one is needed. What was promised is kept: at that call this rank votes for staying."""
        with self._said:
            self.reason = self.reason or reason
            if self.ballot is None and not self._voting:
                self._end()
            self._said.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until something happens to it, or time is up; True if it is over."""
        with self._said:
            if not self.is_over:
                self._said.wait(timeout_s)
            return self.is_over

    # ---- by the thread that calls ------------------------------------------------------------------------------------

    def decide(self, call: int) -> bool:
        """Whether to make the change before call ``call``, which is due. ``made`` must follow if so."""
        with self._said:
            if self.is_over or self._voting or self.due > call:
                return False
            if self._vote is None:
                self._voting = True
                return True
            self._wait_for_decision(call)
            if self.is_over or self.due > call:
                return False  # another call was proposed meanwhile
            self._voting, mine, ballot = True, self.committed, self.ballot or ""
        if self._vote(ballot, mine):  # without the lock: the box may be on another machine
            return True
        with self._said:
            self.reason = self.reason or "no decision was heard of in time"
            self._end()
        return False

    def _wait_for_decision(self, call: int) -> None:
        until = self._clock() + self._decision_s
        self.is_awaited = True
        self._said.notify_all()
        while not (self.committed or self.reason or self.is_over or self.due > call):
            left = until - self._clock()
            if left <= 0:
                break
            self._said.wait(left)
        self.is_awaited = False

    def made(self) -> None:
        """The new kernels are in use from this call on."""
        with self._said:
            self.made_at = self.calls.begun
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self._set_due(math.inf)
        self._said.notify_all()

    def _set_due(self, due: float) -> None:
        self.due = due
        self.calls.update()
