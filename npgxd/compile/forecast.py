"""When a round will be done, as the planner goes about it: what runs, whose turn comes first, start-ups, and the work itself. Pure.

An estimate for people, of the planner's own model: queues share the slots, nobody is overtaken by more work than it has itself, and
every batch begins with a start-up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Run:
    """A batch that runs: its processes, and the seconds that it still takes."""

    processes: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Node:
    """What all forecasts of one moment share. ``slots`` and ``runs`` as granted; ``bound_s`` is how long a batch may take."""

    slots: int
    runs: int
    start_up_s: float
    ending_s: float
    bound_s: float
    running: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is. Seconds; ``estimate_s`` and ``elapsed_s`` are of the whole run, start-up and ending included.

    ``part`` is how much of its kernels' work is done (0 to 1).
    """

    estimate_s: float
    elapsed_s: float
    start_up_s: float
    part: float = 0.0


def run_left_s(run: Standing) -> float | None:
    """Seconds that a run still takes: as estimated, and the more it has done, the more as its own progress tells.

    When it is late only its progress counts; None if that tells nothing.
    """
    planned = run.estimate_s - run.elapsed_s
    worked = run.elapsed_s - run.start_up_s
    told = worked * (1 - run.part) / run.part if 0 < run.part < 1 and worked > 0 else None
    if planned <= 0 or told is None:
        return planned if planned > 0 else told
    return planned + (told - planned) * run.part


def part_done(costs: Sequence[float], processes: int, done: int) -> float:
    """How much of the work of a run is done (0 to 1): that of its first ``done`` kernels, and half of what is at work then."""
    total = sum(costs)
    if not done or total <= 0:
        return 0.0
    return (sum(costs[:done]) + sum(costs[done : done + processes]) / 2) / total


def queued_s(own_s: float, longest_s: float, others_s: Sequence[float], node: Node) -> float:
    """Seconds until a queue with ``own_s`` of work (seconds of one process) is empty, beside others with ``others_s`` each."""
    slots = max(node.slots, 1)
    beside = [min(other, own_s) for other in others_s]
    # A start-up leaves its batch's slots idle: what it costs is counted as work of as many processes.
    lanes = max(1, min(node.runs, slots, 1 + len(beside)))
    batches = sum(math.ceil(max(work, 1e-9) / (max(node.bound_s, 1e-9) * slots)) for work in (own_s, *beside))
    running = sum(run.processes * run.left_s for run in node.running)
    shared = (running + own_s + sum(beside)) / slots + node.start_up_s * batches / lanes
    return max(shared, node.start_up_s + longest_s) + node.ending_s
