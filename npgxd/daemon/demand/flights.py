"""Keys in flight: which kernels are being compiled or wait for it, who waits for each, and what a failed try means for the next.

Pure state, no I/O.  Promise: a key is in at most one running batch; every waiter of a key gets its outcome; the number of tries of a key
is bounded; a batch has one user's records only.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.compile import PlanItem, size_of
from npgxd.daemon.demand.lines import Lines, Waiter
from npgxd.daemon.demand.tries import GivenUp, Tried, Try, judge
from npgxd.toolchain.flags import CompilerFlags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, KeysView, Mapping

    from npgxd.compile import Costs
    from npgxd.daemon.demand.lines import Line
    from npgxd.toolchain.record import Record
    from npgxd.wire.messages import CompileOptions

ENDED: Final = 2000
"""Flights that have ended, of which the tries are kept for whoever asks."""


@dataclass(frozen=True, slots=True)
class Need:
    """One kernel that somebody needs: its key and everything that compiling it takes."""

    key: str
    record: Record
    fingerprint: str
    options: CompileOptions
    uid: int
    flags: CompilerFlags = field(default_factory=CompilerFlags)
    """Under which its key was made."""


class Company(NamedTuple):
    """Whose records may be in one op_compiler run: those of one user, with one set of options. The only place that decides it.

    Users do not trust each other.  A key that two of them need is compiled once, from the record of either: its bytes decide the key.
    """

    uid: int
    options: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, need: Need) -> Company:
        """The company of one need."""
        return cls(need.uid, tuple(sorted(need.options.super_kernel.items())))


@dataclass(slots=True)
class Flight:
    """A key in flight. ``job`` is None while it waits for a worker."""

    need: Need
    """As the first who asked for it gave it; what is compiled in another user's batch is that user's record."""
    size: int
    cost_s: float
    """Seconds that it is expected to take on one compiler process."""
    since: float = 0.0
    """When it was first asked for (monotonic seconds)."""
    needs: dict[int, Need] = field(default_factory=dict)
    """uid -> that user's need of the same key."""
    waiters: dict[str, Waiter] = field(default_factory=dict)
    job: str | None = None
    processes: int = 0
    mates: int = 0
    """How many keys its batch has, itself among them."""
    part: str = ""
    """Set once a batch has failed because of it or one of its company: it is tried with nobody outside this part."""
    most: int = 0
    """At most so many processes in its batch; 0: as many as there are."""
    tries: list[Tried] = field(default_factory=list)
    planned: dict[int, PlanItem] = field(default_factory=dict)
    """uid -> as the planner last saw it."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often it was tried, by what the tries count as (``tries.judge``)."""


class Flights:
    """All keys in flight on this node; ``costs`` tells what each is expected to take."""

    def __init__(self, attempts: int, costs: Costs) -> None:
        self.attempts = attempts
        self._costs = costs
        self._flights: dict[str, Flight] = {}
        self._waiting = 0
        self._ended: deque[tuple[str, list[Tried]]] = deque(maxlen=ENDED)
        self.lines = Lines()
        self.totals: Counter[str] = Counter()
        """Flights that were ``added``, and how they ended: ``landed``, ``given_up``, ``dropped``."""

    def __contains__(self, key: str) -> bool:
        return key in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    def get(self, key: str) -> Flight | None:
        """The flight of a key."""
        return self._flights.get(key)

    @property
    def waiting(self) -> int:
        """Keys without a worker."""
        return self._waiting

    def add(self, need: Need, waiter: Waiter, now: float) -> None:
        """Put a key in flight for ``waiter``; one that is there already is joined."""
        flight = self._flights.get(need.key)
        if flight is None:
            size = size_of(need.record.canonical)
            flight = self._flights[need.key] = Flight(need, size, self._costs.kernel_s(need.record.op_type, size), now)
            self._waiting += 1
            self.totals["added"] += 1
        flight.needs.setdefault(need.uid, need)
        if waiter.round not in flight.waiters:
            flight.waiters[waiter.round] = waiter
            if flight.job is None:
                self.lines.join(need.key, flight.cost_s, waiter, now)

    def running(self, keys: Iterable[str]) -> int:
        """How many of ``keys`` a worker has."""
        return sum((flight := self._flights.get(key)) is not None and flight.job is not None for key in keys)

    def waiters(self, keys: Iterable[str]) -> set[str]:
        """The rounds that wait for any of ``keys``."""
        return {name for key in keys if (flight := self._flights.get(key)) is not None for name in flight.waiters}

    def of_job(self, job: str) -> list[str]:
        """The keys that are with ``job``."""
        return [key for key, flight in self._flights.items() if flight.job == job]

    def tries_of(self, key: str) -> list[Tried]:
        """How a key was tried, in flight or not long ago."""
        flight = self._flights.get(key)
        if flight is not None:
            return flight.tries
        return next((tries for ended, tries in reversed(self._ended) if ended == key), [])

    # ---- who waits ---------------------------------------------------------------------------------------------------

    def attend(self, waiter: Waiter, keys: Iterable[str], now: float) -> None:
        """The waiter of these keys is somebody, or is nobody any more (``waiter.background``): they change lines."""
        for key in keys:
            flight = self._flights.get(key)
            before = flight.waiters.get(waiter.round) if flight is not None else None
            if flight is None or before is None or before == waiter:
                continue
            flight.waiters[waiter.round] = waiter
            if flight.job is None:
                self.lines.leave(key, flight.cost_s, before)
                self.lines.join(key, flight.cost_s, waiter, now)

    def leave(self, round_id: str, keys: Iterable[str]) -> list[str]:
        """A round no longer waits for those of ``keys`` that no worker has; keys without a waiter end. Gives what it left."""
        left = []
        for key in keys:
            flight = self._flights.get(key)
            if flight is None or flight.job is not None or (waiter := flight.waiters.pop(round_id, None)) is None:
                continue
            self.lines.leave(key, flight.cost_s, waiter)
            left.append(key)
            if not flight.waiters:
                self._end(flight, "dropped")
        return left

    def reprice(self) -> None:
        """Costs were learned: what waits is estimated anew."""
        for flight in self._flights.values():
            flight.cost_s = self._costs.kernel_s(flight.need.record.op_type, flight.size)
        for line in self.lines:
            line.cost_s = sum(self._flights[key].cost_s for key in line.keys)

    def cost_of(self, need: Need) -> float:
        """Seconds that a kernel is expected to take on one compiler process."""
        flight = self._flights.get(need.key)
        if flight is not None:
            return flight.cost_s
        return self._costs.kernel_s(need.record.op_type, size_of(need.record.canonical))

    # ---- for the planner ---------------------------------------------------------------------------------------------

    def queues(self) -> list[Queued]:
        """What waits, a queue for each job and one for each that nobody waits for any more."""
        return [Queued(line, self._flights) for line in self.lines]

    def records(self, keys: Iterable[str], uid: int) -> list[Need]:
        """What one user gave for these keys."""
        return [self._flights[key].needs[uid] for key in keys]

    # ---- tries -------------------------------------------------------------------------------------------------------

    def start(self, keys: Iterable[str], job: str, processes: int = 1, turns: tuple[str, ...] = ()) -> None:
        """These keys are now with ``job``, in the turns of these queues; ``over`` ends them."""
        chosen = [self._flights[key] for key in keys]
        for flight in chosen:
            if flight.job is not None:
                raise RuntimeError(f"key {flight.need.key} is already being compiled by job {flight.job}")
        self.lines.begin(job, turns)
        for flight in chosen:
            flight.job, flight.processes, flight.mates = job, processes, len(chosen)
            self._waiting -= 1
            for waiter in flight.waiters.values():
                self.lines.leave(flight.need.key, flight.cost_s, waiter)

    def over(self, job: str, now: float) -> None:
        """The job has ended, and every key of it has been told."""
        self.lines.end(job, now)

    def landed(self, key: str) -> Flight | None:
        """The kernel of ``key`` is published: the flight ends, and its waiters are told."""
        flight = self._flights.get(key)
        return None if flight is None else self._end(flight, "landed")

    def failed(self, tries: Iterable[Try], now: float) -> list[GivenUp]:
        """These tries of one run ended without a kernel: each key waits again, or is given up and told."""
        told = [attempt for attempt in tries if attempt.key in self._flights]
        verdict = judge(told, self._flights, self.attempts, now)
        for attempt in told:
            flight = self._flights[attempt.key]
            if attempt.key in verdict:
                self._end(flight, "given_up")
            elif flight.job is not None:
                flight.job = None
                self._waiting += 1
                for waiter in flight.waiters.values():
                    self.lines.join(attempt.key, flight.cost_s, waiter, now)
        return list(verdict.values())

    def drop(self, keys: Iterable[str]) -> list[Flight]:
        """End these flights: what they were for is not wanted under this key any more."""
        return [self._end(flight, "dropped") for key in keys if (flight := self._flights.get(key)) is not None]

    def drop_waiting(self) -> list[Flight]:
        """End every flight that no worker has; they may be asked for again at any time."""
        waiting = [flight for flight in self._flights.values() if flight.job is None]
        return [self._end(flight, "dropped") for flight in waiting]

    def _end(self, flight: Flight, how: str) -> Flight:
        key = flight.need.key
        del self._flights[key]
        self.totals[how] += 1
        if flight.job is None:
            self._waiting -= 1
            for waiter in flight.waiters.values():
                self.lines.leave(key, flight.cost_s, waiter)
        if flight.tries:
            self._ended.append((key, flight.tries))
        return flight


@dataclass(frozen=True, slots=True)
class Queued:
    """One line as the planner sees it (``compile.plan.Queue``)."""

    line: Line
    flights: Mapping[str, Flight]

    @property
    def name(self) -> str:
        """The line's name."""
        return self.line.name

    @property
    def background(self) -> bool:
        """Whether no process waits for it."""
        return self.line.background

    @property
    def running(self) -> int:
        """How many of its batches run."""
        return self.line.running

    @property
    def since(self) -> float:
        """Since when it waits without one."""
        return self.line.since

    @property
    def cost_s(self) -> float:
        """What all its keys cost, in seconds of one process."""
        return self.line.cost_s

    def keys(self) -> KeysView[str]:
        """The keys that wait."""
        return self.line.keys.keys()

    def items(self) -> Iterator[PlanItem]:
        """The same, as this line's user has them."""
        return (self._item(self.flights[key]) for key in self.line.keys)

    def _item(self, flight: Flight) -> PlanItem:
        """Made once, and again only when something of it has changed: thousands are asked for before each start."""
        known = flight.planned.get(self.line.uid)
        if known is not None and (known.cost_s, known.part, known.most) == (flight.cost_s, flight.part, flight.most):
            return known
        need = flight.needs[self.line.uid]
        flight.planned[self.line.uid] = made = PlanItem(
            need.key,
            need.record.op_type,
            need.record.trace,
            flight.cost_s,
            Company.of(need),
            part=flight.part,
            most=flight.most,
            since=flight.since,
        )
        return made
