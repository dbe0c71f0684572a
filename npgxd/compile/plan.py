"""Planning: which keys are started next, together, and on how many processes. Pure; nothing is read or measured here.

Each job that waits for kernels has a queue.  Promise:

- Turns: a queue with nothing running comes before one that has a batch, and of equals the one that has waited longest; background work
  comes after every rank.  So a small job starts at the next free slot, and a large one is never passed over by later ones for ever.
- Slots: the processes of all batches together never exceed what is granted; a batch gets as many as it can use, and leaves their
  part to smaller queues that could start now.
- Length: a batch that others wait behind ends within ``batch_s`` by estimate; where nobody does, it may take as long as makes its
  start-up a tenth.  A rest that costs less than a start-up is not left behind; kernels that are longer by themselves go apart.
- Lanes: a job that has the node to itself and needs more than one batch runs in two that end in turns, each on half the slots and for
  twice as long, or in three, if it is large: a start-up then leaves only a part of the slots idle, and whoever comes waits no longer for
  the next end.  Where what is left can end on all lanes at the same time, it does: what runs counts with what it still takes.
- Patience: within a queue the costly come before the cheap, and what is under suspicion last; but what newer keys have passed for
  longer than two batches may take is next, so that a job that keeps asking starves none of its own.
- Bounds: of a queue the first ``WINDOW`` keys are looked at, those that have waited longest, so that planning is as quick with any number.
- Company: what two small jobs need goes into one run if that makes neither wait longer than the start-up that it saves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from npgxd.compile.batches import Batch, fill, longest_first, makespan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from npgxd.compile.batches import PlanItem
    from npgxd.compile.forecast import Run

PATIENCE: Final = 2
"""A key is passed over by newer ones of its queue for at most so many times ``batch_s``."""
START_UPS: Final = 10
"""A batch that nobody waits behind may take so many start-ups."""
LANES: Final = 3
"""So many batches of one job at a time, at most: each has a start-up of its own."""
LARGE: Final = 3
"""A job has as many as that if it takes more than so many such batches on all slots, else two."""
GAP: Final = 1.5
"""Two batches end in turns if no more than so many times the distance lies between their ends that there is to be."""
WINDOW: Final = 4096
"""Many times what a batch holds, and milliseconds to look through."""


class Queue(Protocol):
    """What one job waits for, as the planner sees it."""

    @property
    def name(self) -> str:
        """The job."""

    @property
    def background(self) -> bool:
        """Whether no process waits for it."""

    @property
    def running(self) -> int:
        """How many of its batches run."""

    @property
    def since(self) -> float:
        """Since when it waits without one (monotonic seconds)."""

    @property
    def cost_s(self) -> float:
        """What all its keys cost, in seconds of one process."""

    def keys(self) -> Collection[str]:
        """The keys that wait, in the order in which they came; those that several of its rounds need stand once."""

    def items(self) -> Iterable[PlanItem]:
        """The same, in the same order, with everything that planning takes."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Compiler processes: how many are granted, how many are free, and how many of the others are background work's.

    ``runs`` is how many more op_compiler runs may be started; ``running``, what those that were still take of their slots.
    """

    total: int
    free: int
    runs: int
    background: int = 0
    running: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds: how long a batch may keep others waiting, and what op_compiler's start-up costs."""

    batch_s: float
    start_up_s: float

    def bound_s(self, *, others: bool) -> float:
        """How long a batch may take, by estimate."""
        return self.batch_s if others else max(self.batch_s, START_UPS * self.start_up_s)


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch to be started now on ``processes``, in the turns of these queues."""

    batch: Batch
    processes: int
    queues: tuple[str, ...]
    background: bool
    estimate_s: float
    """Seconds that its kernels take, without the start-up."""


def turns(queues: Iterable[Queue]) -> list[Queue]:
    """The queues that wait, in the order of their turns."""
    waiting = [queue for queue in queues if queue.keys()]
    return sorted(waiting, key=lambda one: (one.background, one.running > 0, one.since, one.cost_s, one.name))


def next_batch(queues: Iterable[Queue], slots: Slots, terms: Terms) -> Planned | None:
    """What to start now; None if nothing waits or nothing may be started. Ask again after starting it: more may fit."""
    order = turns(queues)
    free = _free(order[0], slots) if order else 0
    if free < 1 or slots.runs < 1:
        return None
    first = order[0]
    rivals = [one for one in order[1:] if one.background == first.background and not one.running]
    behind = [one for one in rivals if _outside(one, first, 1)]
    items = _candidates(islice(first.items(), WINDOW), PATIENCE * terms.batch_s)
    share = _share(first, behind, free, slots.runs)
    share = min(share, items[0].most) if items[0].most else share
    bound = terms.bound_s(others=bool(behind))
    endless = [item for item in items if item.cost_s > bound]
    if endless and slots.runs > 1:
        # They keep the slots of their whole run: it has nothing else, and leaves half of all slots to what ends sooner.
        share = share if len(endless) == len(items) else min(share, max(1, slots.total // 2))
        items = endless
    elif not behind:
        share, bound = _lane(first, share, bound, slots, terms.start_up_s)
    batch, left = fill(items, share, bound)
    if left:
        longer, rest = fill(items, share, bound + terms.start_up_s)
        batch = batch if rest else longer
    batch = Batch(tuple(longest_first(batch.items)))
    served = [first.name]
    for rival in behind:
        joined = _joined(batch, rival, share, free - share if slots.runs > 1 else 0, terms)
        if joined is not None:
            batch = joined
            served.append(rival.name)
    room = free if 1 < len(served) == 1 + len(behind) else share  # all have joined: nobody is left who could use the rest
    processes = batch.useful(min(room, items[0].most or room))
    return Planned(batch, processes, tuple(served), first.background, batch.estimate_s(processes))


def _free(first: Queue, slots: Slots) -> int:
    """Slots for whoever's turn it is: background work never takes more than half, so that a rank that comes can start."""
    if not first.background:
        return slots.free
    return min(slots.free, max(1, slots.total // 2) - slots.background)


def _share(first: Queue, behind: Sequence[Queue], free: int, runs: int) -> int:
    """All that is free, but for what smaller queues that may start now can use of an equal part: they are done with it soon."""
    able = [one for one in behind if one.cost_s < first.cost_s][: runs - 1]
    fair = math.ceil(free / (1 + len(able)))
    wanted = sum(_outside(one, first, fair) for one in able)
    return max(fair, free - wanted)


def _lane(first: Queue, free: int, bound: float, slots: Slots, start_up_s: float) -> tuple[int, float]:
    """How many slots, and how many seconds, the next batch of a job may have that nobody waits behind."""
    beside = len(slots.running)
    whole = (first.cost_s + sum(run.processes * run.left_s for run in slots.running)) / slots.total
    wanted = 1 if whole <= bound + start_up_s else 2 if whole <= LARGE * bound else LANES
    lanes = min(max(wanted, beside + 1), LANES, beside + slots.runs, slots.total)
    if lanes == 1 or first.background:
        return free, bound
    end, step = 0.0, bound + start_up_s / lanes
    for run in sorted(slots.running, key=lambda run: run.left_s):
        if run.left_s > end + GAP * step:
            break  # nothing would end for long
        end = run.left_s
    length = max(bound, min(lanes * bound, end + step - start_up_s))
    return math.ceil(free / max(1, lanes - beside)), min(length, _level(first.cost_s, free, slots.running, start_up_s))


def _level(work_s: float, free: int, running: Iterable[Run], start_up_s: float) -> float:
    """Seconds of kernels after which all of the work has ended at once, if whatever runs goes on with a part of it when it ends.

    What ends too late for more than a start-up has no part of it.
    """
    level, width = work_s / free, free
    for run in sorted(running, key=lambda run: run.left_s):
        if level <= run.left_s + start_up_s:
            break
        work_s += run.processes * run.left_s
        width += run.processes
        level = work_s / width
    return level


def _outside(one: Queue, first: Queue, most: int) -> int:
    """How many keys wait in one queue and not in the other; ``most`` if there are more."""
    keys = first.keys()
    inside = keys if isinstance(keys, AbstractSet) else frozenset(keys)
    return sum(1 for _ in islice((key for key in one.keys() if key not in inside), most))  # noqa: SIM118 -- a queue is no mapping


def _candidates(items: Iterable[PlanItem], patience_s: float) -> list[PlanItem]:
    """Those that may share a batch: what is under no suspicion before what is, the most work first; and of these the longest first.

    What newer ones have passed for longer than ``patience_s`` comes before all that, the oldest first.
    """
    waiting = list(items)
    overdue = max(item.since for item in waiting) - patience_s
    sets: defaultdict[tuple[object, str, int], list[PlanItem]] = defaultdict(list)
    for item in waiting:
        sets[item.company, item.part, item.most].append(item)

    def turn(members: list[PlanItem]) -> tuple[int, float, str, float, str]:
        oldest = min(item.since for item in members)
        work = (members[0].part, -sum(item.cost_s for item in members), members[0].key)
        return (0, oldest, *work) if oldest < overdue else (1, 0.0, *work)

    chosen = min(sets.values(), key=turn)
    return sorted(longest_first(chosen), key=lambda item: item.since if item.since < overdue else math.inf)


def _joined(batch: Batch, rival: Queue, share: int, spare: int, terms: Terms) -> Batch | None:
    """The batch with all that another queue waits for; None if that would make somebody wait longer than a start-up.

    ``spare``: slots on which the other one could start at once by itself.
    """
    before = batch.estimate_s(share)
    if rival.cost_s / (share + spare) - before > terms.start_up_s:  # so long at least: its keys need not be looked at
        return None
    has = set(batch.keys)
    traces = {item.trace for item in batch.items}
    more = longest_first(item for item in islice(rival.items(), WINDOW) if item.key not in has)
    like = batch.items[0]
    for item in more:
        if (item.company, item.part, item.most) != (like.company, like.part, like.most) or item.trace in traces:
            return None
        traces.add(item.trace)
    whole = Batch(tuple(longest_first((*batch.items, *more))))
    with_both = whole.estimate_s(share + spare)
    alone = makespan(more, spare) if spare else before + terms.start_up_s
    late = max(with_both - before, with_both - alone)
    return whole if late <= terms.start_up_s else None
