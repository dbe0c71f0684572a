"""Keys in flight: which kernels are being compiled or wait for it, who waits for each, and what a failed try means for the next.

Pure state, no I/O.  Promise: a key is in at most one running batch; every waiter of a key gets its outcome; the number of tries of a key
is bounded; a batch never mixes users or options.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.toolchain.record import Record
    from npgxd.wire.messages import CompileOptions
    from npgxd.wire.states import KeyOutcome

REFUSED_TRIES = 2
"""A key that the compiler refuses, or leaves out, is tried once more alone; then the refusal is remembered."""


@dataclass(frozen=True, slots=True)
class Need:
    """One kernel that somebody needs: its key and everything that compiling it takes."""

    key: str
    record: Record
    fingerprint: str
    options: CompileOptions
    uid: int


@dataclass(slots=True)
class Flight:
    """A key in flight. ``job`` is None while it waits for a worker."""

    need: Need
    waiters: set[str] = field(default_factory=set)
    job: str | None = None
    tries: int = 0
    refusals: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Try:
    """How one try of a key ended without a kernel."""

    key: str
    outcome: KeyOutcome
    reason: str
    transient: bool


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A key that is not tried again. ``remember`` tells whether the reason holds until the toolchain changes."""

    flight: Flight
    outcome: KeyOutcome
    reason: str
    remember: bool


class Flights:
    """All keys in flight on this node, in the order in which they were asked for."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._flights: dict[str, Flight] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def waiting(self) -> int:
        """Keys without a worker."""
        return sum(flight.job is None for flight in self._flights.values())

    def join(self, key: str, waiter: str) -> bool:
        """Let ``waiter`` wait for ``key`` if it is in flight already."""
        flight = self._flights.get(key)
        if flight is None:
            return False
        flight.waiters.add(waiter)
        return True

    def add(self, need: Need, waiter: str) -> None:
        """Put a key in flight for ``waiter``; one that is there already is joined."""
        self._flights.setdefault(need.key, Flight(need)).waiters.add(waiter)

    def running(self, keys: Iterable[str]) -> int:
        """How many of ``keys`` a worker has."""
        return sum((flight := self._flights.get(key)) is not None and flight.job is not None for key in keys)

    def of_job(self, job: str) -> list[str]:
        """The keys that are with ``job``."""
        return [key for key, flight in self._flights.items() if flight.job == job]

    def next_batch(self) -> list[Flight]:
        """The waiting flights that may go into one op_compiler run together: one user, one set of options, or one key alone."""
        waiting = [flight for flight in self._flights.values() if flight.job is None]
        if not waiting:
            return []
        first = waiting[0]
        if first.alone:
            return [first]
        return [
            flight
            for flight in waiting
            if not flight.alone and flight.need.uid == first.need.uid and flight.need.options == first.need.options
        ]

    def start(self, keys: Sequence[str], job: str) -> None:
        """These keys are now with ``job``."""
        for key in keys:
            flight = self._flights[key]
            if flight.job is not None:
                raise RuntimeError(f"key {key} is already being compiled by job {flight.job}")
            flight.job = job
            flight.tries += 1

    def landed(self, key: str) -> Flight | None:
        """The kernel of ``key`` is published: the flight ends, and its waiters are told."""
        return self._flights.pop(key, None)

    def failed(self, attempt: Try) -> GivenUp | None:
        """One try ended without a kernel: the key waits again (None), or is given up."""
        flight = self._flights.get(attempt.key)
        if flight is None:
            return None
        flight.job = None
        if not attempt.transient:
            flight.refusals += 1
        refused_for_good = not attempt.transient and (flight.alone or flight.refusals >= REFUSED_TRIES)
        if refused_for_good or flight.tries >= self._attempts:
            del self._flights[attempt.key]
            reason = attempt.reason if flight.tries == 1 else f"{attempt.reason} (tried {flight.tries} times)"
            return GivenUp(flight, attempt.outcome, reason, remember=not attempt.transient)
        # What went wrong in company is narrowed down by trying each key by itself.
        flight.alone = flight.alone or not attempt.transient or flight.tries > 1
        return None

    def drop_waiting(self) -> list[Flight]:
        """End every flight that no worker has; they may be asked for again at any time."""
        waiting = [flight for flight in self._flights.values() if flight.job is None]
        for flight in waiting:
            del self._flights[flight.need.key]
        return waiting

    def abandon(self) -> list[Flight]:
        """End all flights (the daemon stops); their rounds stay in the journal."""
        left = list(self._flights.values())
        self._flights.clear()
        return left
