"""The planner over whole schedules that are only counted: how near the ideal, how fair, and how true its forecasts are."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from npgxd.compile.forecast import Node as Outlook
from npgxd.compile.forecast import Run, Standing, part_done, queued_s, run_left_s
from tools.bench.simulated_schedule import Job, Node, group, ideal_s, simulate

if TYPE_CHECKING:
    from npgxd.compile import Planned

SEEDS = range(12)


def workload(seed: int) -> tuple[random.Random, Node]:
    rng = random.Random(seed)
    return rng, Node(slots=rng.choice((2, 8, 16, 64)), runs=16, start_up_s=rng.uniform(0.5, 15.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_one_job_alone_is_done_within_an_eighth_of_the_ideal_and_never_on_more_than_is_granted(seed: int) -> None:
    rng, node = workload(seed)
    jobs = [group(rng, kernels=rng.randint(60, 600), mean_s=rng.uniform(0.3, 6.0), wrong=1.0)]
    told = simulate(jobs, node)
    assert told.end <= 1.125 * ideal_s(jobs, node)
    assert told.most_processes <= node.slots


@pytest.mark.parametrize(("slots", "kernels"), [(4, 1500), (16, 1500), (64, 6000)])
def test_a_large_job_alone_comes_within_a_fifteenth_of_the_ideal(slots: int, kernels: int) -> None:
    rng = random.Random(slots)
    node = Node(slots=slots, runs=16, start_up_s=5.0)
    jobs = [group(rng, kernels=kernels, mean_s=min(slots / 4, 4.0), wrong=1.0)]
    assert simulate(jobs, node).end <= (1 + 1 / 15) * ideal_s(jobs, node)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_job_starts_at_the_next_end_of_a_batch_of_a_large_one(seed: int) -> None:
    rng, node = workload(seed)
    large = group(rng, kernels=800, mean_s=1.0, wrong=1.5, name="large")
    small = group(rng, kernels=10, mean_s=1.0, wrong=1.5, name="small", arrives=5.0)
    small.uid = 1
    after: list[str] = []
    simulate([large, small], node, watch=lambda now, planned: after.extend(planned.queues if now >= small.arrives else ()))
    assert after.index("small") == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_in_a_stream_of_small_jobs_a_large_one_waits_for_no_turn_of_those_that_came_after_it(seed: int) -> None:
    rng, node = workload(seed)
    large = group(rng, kernels=200, mean_s=2.0, wrong=1.5, name="large")
    small = [group(rng, kernels=30, mean_s=node.slots / 4, wrong=1.5, name=f"a{at}", arrives=at * 2.0) for at in range(30)]
    for at, job in enumerate(small):
        job.uid = at + 1
    late: list[str] = []

    def watch(_now: float, planned: Planned) -> None:
        if large.waiting and not large.running and "large" not in planned.queues:
            late.extend(job.name for job in small if job.name in planned.queues and job.since > large.since)

    simulate([large, *small], node, watch=watch)
    assert late == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_forecast_is_of_the_right_size_from_the_start(seed: int) -> None:
    rng, node = workload(seed)
    jobs = [group(rng, kernels=rng.randint(60, 600), mean_s=rng.uniform(0.3, 6.0), wrong=1.0, name=f"j{n}") for n in range(2)]
    for at, job in enumerate(jobs):
        job.uid = at
    works = [sum(true for true, _ in job.costs.values()) for job in jobs]
    longest = max(true for true, _ in jobs[0].costs.values())
    outlook = Outlook(node.slots, node.runs, node.start_up_s, 0.0, node.batch_s)
    told = queued_s(works[0], longest, [works[1]], outlook)
    simulate(jobs, node)
    assert 0.4 * jobs[0].done_at <= told <= 2.5 * jobs[0].done_at


def test_a_forecast_counts_what_runs_and_what_is_before_and_no_more_of_others_than_ones_own() -> None:
    node = Outlook(slots=4, runs=4, start_up_s=5.0, ending_s=1.0, bound_s=30.0)
    assert queued_s(40.0, 2.0, [], node) == 40 / 4 + 5 + 1
    busy = Outlook(4, 4, 5.0, 1.0, 30.0, (Run(4, 20.0),))
    assert queued_s(40.0, 2.0, [], busy) == 20 + 40 / 4 + 5 + 1
    assert queued_s(40.0, 2.0, [1e6], busy) == queued_s(40.0, 2.0, [40.0], busy)
    assert queued_s(4.0, 90.0, [], node) == 5 + 90 + 1, "never before its longest kernel"


def test_a_run_that_is_late_is_told_by_its_own_progress_or_not_at_all() -> None:
    assert run_left_s(Standing(60.0, 20.0, 5.0)) == 40.0
    assert run_left_s(Standing(60.0, 65.0, 5.0, part=0.5)) == 60.0
    assert run_left_s(Standing(60.0, 65.0, 5.0)) is None
    assert run_left_s(Standing(60.0, 65.0, 5.0, part=1.0)) is None


def test_what_a_run_says_counts_the_more_the_further_it_is() -> None:
    early, late = run_left_s(Standing(105.0, 15.0, 5.0, part=0.25)), run_left_s(Standing(105.0, 35.0, 5.0, part=0.75))
    assert (early, late) == (90 + (30 - 90) * 0.25, 70 + (10 - 70) * 0.75)
    assert part_done([4.0, 2.0, 1.0, 1.0], 2, 0) == 0.0
    assert part_done([4.0, 2.0, 1.0, 1.0], 2, 1) == (4 + 3 / 2) / 8
    assert part_done([4.0, 2.0, 1.0, 1.0], 2, 4) == 1.0


@pytest.mark.parametrize("seconds", [0.02, 0.3, 3.0])
def test_a_large_job_of_which_nothing_is_known_ends_on_all_lanes_at_about_the_same_time(seconds: float) -> None:
    rng = random.Random(4)
    node = Node(slots=4, runs=4, start_up_s=1.0, batch_s=3.0, cold=True)
    job = group(rng, kernels=1300, mean_s=seconds, wrong=1.0)
    assert simulate([job], node).end <= ideal_s([job], node) * 1.06 + 2 * node.start_up_s


def test_kernels_that_two_jobs_share_are_started_once() -> None:
    rng = random.Random(0)
    first = group(rng, kernels=50, mean_s=1.0, wrong=1.0)
    second = Job("second", 0.0, first.costs, uid=1)
    started: list[str] = []
    simulate([first, second], Node(4, 4, 1.0), watch=lambda _now, planned: started.extend(planned.batch.keys))
    assert sorted(started) == sorted(first.costs)
    assert first.done_at == second.done_at
