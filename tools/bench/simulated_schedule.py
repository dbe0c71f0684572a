"""The planner without a daemon: jobs that are made up, time that is only counted, and the ideal beside it.

``simulate`` runs ``npgxd.compile.next_batch`` as the daemon does, over true costs that differ from its estimates.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import time
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npgxd.compile import Costs, Estimate, PlanItem, Slots, Terms, next_batch
from npgxd.compile.batches import last_end, longest_first, makespan
from npgxd.compile.costs import KERNEL_S, START_UP_S
from npgxd.compile.forecast import Run, Standing, part_done, run_left_s
from npgxd.daemon.demand.flights import Flights, Need
from npgxd.daemon.demand.lines import Waiter
from npgxd.toolchain.record import Record
from npgxd.wire.messages import CompileOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npgxd.compile import Planned
    from tools.demo.children import Children

WORKLOADS = 100
PLANS = 20
WAITING = 50_000


@dataclass(slots=True)
class Job:
    """What one job asks for, and when; ``costs`` are (key, true seconds, estimated seconds). It is a queue of the planner's."""

    name: str
    arrives: float
    costs: dict[str, tuple[float, float]]
    uid: int = 0
    background: bool = False
    running: int = 0
    since: float = 0.0
    waiting: dict[str, PlanItem] = field(default_factory=dict)
    done_at: float = 0.0
    left: set[str] = field(default_factory=set)

    @property
    def cost_s(self) -> float:
        """Of what waits."""
        return sum(item.cost_s for item in self.waiting.values())

    def keys(self) -> list[str]:
        """What waits."""
        return list(self.waiting)

    def items(self) -> list[PlanItem]:
        """The same, with its costs."""
        return list(self.waiting.values())


@dataclass(frozen=True, slots=True)
class Node:
    """``start_up_s`` is what op_compiler really takes; the planner knows it, but on a ``cold`` node nothing before a run has ended."""

    slots: int
    runs: int
    start_up_s: float
    batch_s: float = 30.0
    cold: bool = False


@dataclass(slots=True)
class _Run:
    """One that runs. ``ends`` are the times at which its kernels are done, in order."""

    planned: Planned
    began: float
    ends: list[float]


@dataclass(slots=True)
class Schedule:
    """How it went. Seconds."""

    end: float = 0.0
    batches: int = 0
    most_processes: int = 0


def simulate(jobs: list[Job], node: Node, *, watch: Callable[[float, Planned], None] = lambda _now, _planned: None) -> Schedule:
    """Run all jobs to their end; ``watch`` is told of every batch that is started."""
    run = _Simulation(jobs, node, watch)
    while run.goes_on():
        run.step()
    run.told.end = run.now
    return run.told


class _Simulation:
    """Jobs that have arrived, batches that run, and the time."""

    def __init__(self, jobs: list[Job], node: Node, watch: Callable[[float, Planned], None]) -> None:
        self.told = Schedule()
        self.now = 0.0
        self._node = node
        self._watch = watch
        self._true = {key: true for job in jobs for key, (true, _) in job.costs.items()}
        self._arrivals = sorted(jobs, key=lambda job: job.arrives)
        self._present: list[Job] = []
        self._estimates = {key: estimate for job in jobs for key, (_, estimate) in job.costs.items()}
        self._known = not node.cold
        self._ends: list[tuple[float, int, _Run]] = []
        self._started: set[str] = set()
        self._used = 0

    def goes_on(self) -> bool:
        """Whether something is still to happen."""
        return bool(self._arrivals or self._ends or any(job.waiting for job in self._present))

    def step(self) -> None:
        """Let arrive who has come, start what can be started, and go to the next arrival or end."""
        while self._arrivals and self._arrivals[0].arrives <= self.now:
            self._arrive(self._arrivals.pop(0))
        while (planned := self._plan()) is not None:
            self._start(planned)
        arrival = self._arrivals[0].arrives if self._arrivals else math.inf
        self.now = min(arrival, self._ends[0][0] if self._ends else math.inf)
        while self._ends and self._ends[0][0] <= self.now:
            self._end(heapq.heappop(self._ends)[2].planned)

    def _plan(self) -> Planned | None:
        running = tuple(Run(run.planned.processes, self._left_s(run)) for _, _, run in self._ends)
        slots = Slots(self._node.slots, self._node.slots - self._used, self._node.runs - len(self._ends), running=running)
        return next_batch(self._present, slots, Terms(self._node.batch_s, self._start_up_s))

    @property
    def _start_up_s(self) -> float:
        return self._node.start_up_s if self._known else START_UP_S

    def _estimate_s(self, key: str) -> float:
        return self._estimates[key] if self._known else KERNEL_S

    def _left_s(self, run: _Run) -> float:
        """What the daemon would say."""
        costs = [self._estimate_s(key) for key in run.planned.batch.keys]
        part = part_done(costs, run.planned.processes, bisect_right(run.ends, self.now))
        estimate_s = self._start_up_s + last_end(costs, run.planned.processes)
        return run_left_s(Standing(estimate_s, self.now - run.began, self._start_up_s, part)) or 0.0

    def _arrive(self, job: Job) -> None:
        job.since = job.arrives
        job.left = set(job.costs)
        waiting = (key for key in job.costs if key not in self._started)
        job.waiting = {key: PlanItem(key, "Op", key, self._estimate_s(key), job.uid) for key in waiting}
        self._present.append(job)

    def _start(self, planned: Planned) -> None:
        self._watch(self.now, planned)
        self._started.update(planned.batch.keys)
        for job in self._present:
            job.running += job.name in planned.queues
            for key in planned.batch.keys:
                job.waiting.pop(key, None)
        self._used += planned.processes
        self.told.batches += 1
        self.told.most_processes = max(self.told.most_processes, self._used)
        run = _Run(planned, self.now, [])
        loads = [self.now + self._node.start_up_s] * planned.processes
        for key in planned.batch.keys:
            run.ends.append(loads[0] + self._true[key])
            heapq.heapreplace(loads, run.ends[-1])
        run.ends.sort()
        heapq.heappush(self._ends, (run.ends[-1], self.told.batches, run))

    def _end(self, planned: Planned) -> None:
        self._used -= planned.processes
        self._known = True
        for job in self._present:
            job.waiting = {key: replace(item, cost_s=self._estimate_s(key)) for key, item in job.waiting.items()}
            if job.name in planned.queues:
                job.running -= 1
                job.since = job.since if job.running else self.now
            if not job.left.isdisjoint(planned.batch.keys):
                job.left.difference_update(planned.batch.keys)
                job.done_at = job.done_at if job.left else self.now


def ideal_s(jobs: list[Job], node: Node) -> float:
    """The least that all jobs together can take: one start-up, and an equal share of the work, or the longest kernel."""
    costs = {key: true for job in jobs for key, (true, _) in job.costs.items()}
    return node.start_up_s + max(sum(costs.values()) / node.slots, max(costs.values(), default=0.0))


def group(rng: random.Random, *, kernels: int, mean_s: float, wrong: float, name: str = "job", arrives: float = 0.0) -> Job:
    """A job of so many kernels, a few of them long; estimates are off by up to a factor of ``wrong``, either way."""
    costs = {}
    off = math.log(wrong)
    for number in range(kernels):
        true = rng.lognormvariate(0.0, 0.8) * mean_s
        costs[f"{name}-{number}"] = (true, true * math.exp(rng.uniform(-off, off)))
    return Job(name, arrives, costs)


def _terms(node: Node) -> Terms:
    return Terms(node.batch_s, node.start_up_s)


def plans(_directory: Path, _children: Children) -> dict[str, str]:
    """The planner against the ideal schedule over random workloads, and what a small job waits for behind a large one."""
    told = {}
    for what, wrong, cold in (
        ("estimates exact", 1.0, False),
        ("estimates off by up to 3 x", 3.0, False),
        ("nothing known before a run has ended", 1.0, True),
    ):
        ratios, one_run = [], []
        for seed in range(WORKLOADS):
            rng = random.Random(seed)  # noqa: S311 -- a workload, always the same one
            node = Node(slots=rng.choice((2, 8, 16, 64)), runs=16, start_up_s=rng.uniform(0.5, 15.0), cold=cold)
            jobs = [group(rng, kernels=rng.randint(60, 1400), mean_s=rng.uniform(0.3, 6.0), wrong=wrong)]
            ideal = ideal_s(jobs, node)
            ratios.append(simulate(jobs, node).end / ideal)
            if cold or wrong > 1:
                continue
            whole = longest_first(PlanItem(key, "Op", key, true) for key, (true, _) in jobs[0].costs.items())
            one_run.append((node.start_up_s + makespan(whole, node.slots)) / ideal)
        told[f"one job, {WORKLOADS} simulated workloads, {what}: end / ideal"] = _ratios(ratios)
        if one_run:
            told["  the same, one op_compiler run on all of it"] = _ratios(one_run)
    starts, lates, lengths = [], [], []
    for seed in range(WORKLOADS):
        rng = random.Random(seed)  # noqa: S311 -- as above
        node = Node(slots=rng.choice((2, 8, 16, 64)), runs=16, start_up_s=rng.uniform(0.5, 15.0))
        large = group(rng, kernels=2000, mean_s=4.0, wrong=1.5, name="large")
        small = group(rng, kernels=20, mean_s=4.0, wrong=1.5, name="small", arrives=rng.uniform(1.0, 60.0))
        small.uid = 1
        alone = simulate([Job("small", 0.0, small.costs)], node).end
        begun: list[float] = []

        def watch(now: float, planned: Planned, begun: list[float] = begun) -> None:
            if "small" in planned.queues:
                begun.append(now)

        simulate([large, small], node, watch=watch)
        starts.append(begun[0] - small.arrives)
        lates.append(small.done_at - small.arrives - alone)
        lengths.append(_terms(node).bound_s(others=False) + node.start_up_s)
    told["20 kernels behind a job of 2000: seconds until they start"] = _ratios(starts)
    told["  the same, in batch lengths (30 s or 10 start-ups, and one)"] = _ratios(
        [start / length for start, length in zip(starts, lengths, strict=True)]
    )
    told["  seconds that they are done later than alone on the node"] = _ratios(lates)
    took = [_plan_ms(seed) for seed in range(PLANS)]
    told[f"planning the next batch, {WAITING} kernels waiting in 4 jobs"] = f"{_ratios(took)} ms of processor time"
    return told


def _plan_ms(seed: int) -> float:
    """Milliseconds of processor time that the planner takes before a start, as the daemon asks it: the loop does nothing else meanwhile."""
    rng = random.Random(seed)  # noqa: S311 -- a workload, always the same one
    flights = Flights(3, Costs(Estimate(f"op/Op{kind}", rng.uniform(0.3, 20.0), 9) for kind in range(200)))
    for number in range(WAITING):
        key = f"{rng.getrandbits(256):064x}"
        record = Record(name=f"{key}.json", op_type=f"Op{number % 200}", canonical=b"{}", digest="0" * 64, trace=key)
        waiter = Waiter(f"round{number % 8}", f"job{number % 4}", 0)
        flights.add(Need(key, record, "f" * 64, CompileOptions(), 0), waiter, number / 1000)
    first = next_batch(flights.queues(), Slots(64, 64, 16), Terms(30.0, 5.0))
    if first is None:
        raise SystemExit("nothing was planned")
    flights.start(first.batch.keys, "first", first.processes, first.queues)
    begun = time.thread_time()
    next_batch(flights.queues(), Slots(64, max(1, 64 - first.processes), 15), Terms(30.0, 5.0))
    return (time.thread_time() - begun) * 1000


def _ratios(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=20)
    return f"median {statistics.median(values):.3f}  p95 {cuts[18]:.3f}  max {max(values):.3f} (n={len(values)})"
