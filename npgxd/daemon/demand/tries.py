"""What a failed try of a key means: with whom it is tried next, on how many processes, or that it is given up, and for how long.

Pure decisions.  Promise: every key is tried a bounded number of times, whatever fails and in whatever company; a key that the compiler
refuses, or dies of, is given up after it failed twice, the last time alone; one that only was there when another failed is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from npgxd.compile import Seen, narrow
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npgxd.daemon.demand.flights import Flight

TWICE: Final = 2
BYSTANDER: Final = 12
"""A key may be in so many runs that failed because of others. Each of those found, or halved, its culprits."""
_FINAL: Final = frozenset({KeyOutcome.UNSUPPORTED})
"""Outcomes about which the compiler does not change its mind."""


class Hold(StrEnum):
    """How long a reason holds."""

    NOT = "not"  # about that moment: tried again whenever somebody asks
    PASSING = "passing"  # about this node: memory, time
    FINAL = "final"  # the compiler refuses this record, or dies of it, twice, alone: until the toolchain changes


@dataclass(frozen=True, slots=True)
class Try:
    """How one try of a key ended without a kernel.

    ``transient``: the reason is about the run, not about the record.  ``narrow``: the whole run failed, and one of its keys may be
    the cause; ``seen`` is where the compiler was with this one.
    """

    key: str
    outcome: KeyOutcome
    reason: str
    transient: bool
    narrow: bool = False
    seen: Seen = Seen.UNTOUCHED
    job: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """A try that is over, for whoever asks why. ``at``: monotonic seconds."""

    job: str
    outcome: KeyOutcome
    reason: str
    at: float
    processes: int
    mates: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A key that is not tried again for now."""

    flight: Flight
    outcome: KeyOutcome
    reason: str
    hold: Hold
    job: str = ""


def judge(tries: Sequence[Try], flights: Mapping[str, Flight], attempts: int, now: float) -> dict[str, GivenUp]:
    """The keys that are given up; the others' flights are told with whom, and on how many processes, they go on."""
    split = narrow({one.key: one.seen for one in tries if _accuses(one, flights[one.key])})
    parts = {key: f"{number}" for number, part in enumerate(split.parts) for key in part}
    lost: dict[str, GivenUp] = {}
    for one in tries:
        flight = flights[one.key]
        flight.tries.append(Tried(one.job, one.outcome, one.reason, now, flight.processes, flight.mates))
        hold = _next(one, flight, parts, attempts)
        if hold is not None:
            count = len(flight.tries)
            reason = one.reason if count == 1 else f"{one.reason} (tried {count} times)"
            lost[one.key] = GivenUp(flight, one.outcome, reason, hold, one.job)
    return lost


def _accuses(one: Try, flight: Flight) -> bool:
    """Whether this try says that one of several keys did it. Out of memory with a single process it was one kernel's need, too."""
    starved = one.outcome is KeyOutcome.OUT_OF_MEMORY and one.transient and flight.processes <= 1
    return flight.mates > 1 and (one.narrow or starved)


def _next(one: Try, flight: Flight, parts: Mapping[str, str], attempts: int) -> Hold | None:
    """How long the reason holds if the key is given up; None: it is tried again, as its flight now says."""
    alone = flight.mates <= 1
    if not one.transient:
        return _refused(one, flight, alone=alone)
    if _accuses(one, flight) and parts:
        if one.key in parts:
            flight.part = f"{one.job or 'run'}:{parts[one.key]}"
            return None
        flight.part = ""
        return Hold.NOT if _counted(flight, "bystander") >= BYSTANDER else None
    if one.outcome is KeyOutcome.OUT_OF_MEMORY and flight.processes > 1:
        flight.most = max(1, flight.processes // 2)
        return None
    if alone and one.narrow:
        return _hold_of(one) if _counted(flight, "alone") >= TWICE else None
    return _hold_of(one) if _counted(flight, "passing") >= attempts else None


def _refused(one: Try, flight: Flight, *, alone: bool) -> Hold | None:
    if one.outcome in _FINAL or (_counted(flight, "refused") >= TWICE and alone):
        return Hold.FINAL
    flight.part = f"alone:{one.key}"
    return None


def _hold_of(one: Try) -> Hold:
    match one.outcome:
        case KeyOutcome.CRASHED:
            return Hold.FINAL
        case KeyOutcome.OUT_OF_MEMORY | KeyOutcome.TIMED_OUT:
            return Hold.PASSING
        case _:
            return Hold.NOT


def _counted(flight: Flight, what: str) -> int:
    flight.counts[what] += 1
    return flight.counts[what]
