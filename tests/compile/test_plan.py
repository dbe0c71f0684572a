"""What is started next: turns, slots, lengths and company, decided over queues that are made up here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from npgxd.compile.batches import PlanItem
from npgxd.compile.forecast import Run
from npgxd.compile.plan import WINDOW, Planned, Slots, Terms, next_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

TERMS = Terms(batch_s=30.0, start_up_s=5.0)


@dataclass
class Job:
    """A queue of kernels with the same cost."""

    name: str
    costs: list[float]
    since: float = 0.0
    background: bool = False
    running: int = 0
    uid: int = 0
    part: str = ""
    shared: list[PlanItem] = field(default_factory=list)

    @property
    def cost_s(self) -> float:
        return sum(one.cost_s for one in self.items())

    def keys(self) -> list[str]:
        return [one.key for one in self.items()]

    def items(self) -> list[PlanItem]:
        own = [
            PlanItem(f"{self.name}{n}", "Add", f"{self.name}{n}", cost, self.uid, self.part) for n, cost in enumerate(self.costs)
        ]
        return [*own, *self.shared]


def plan(
    *jobs: Job,
    total: int = 8,
    free: int | None = None,
    runs: int = 8,
    background: int = 0,
    terms: Terms = TERMS,
    running: tuple[Run, ...] = (),
) -> Planned:
    planned = next_batch(jobs, Slots(total, total if free is None else free, runs, background, running), terms)
    assert planned is not None
    return planned


def test_nothing_waits_or_nothing_is_free_nothing_is_started() -> None:
    assert next_batch([], Slots(8, 8, 8), TERMS) is None
    assert next_batch([Job("a", [])], Slots(8, 8, 8), TERMS) is None
    assert next_batch([Job("a", [1.0])], Slots(8, 0, 8), TERMS) is None
    assert next_batch([Job("a", [1.0])], Slots(8, 8, 0), TERMS) is None


def test_planning_looks_at_a_bounded_number_of_keys_those_that_have_waited_longest() -> None:
    looked: list[str] = []

    class Endless(Job):
        told_s = 3.0 * WINDOW

        @property
        def cost_s(self) -> float:
            return self.told_s

        def keys(self) -> list[str]:
            return [f"{self.name}{number}" for number in range(3 * WINDOW)]

        def items(self) -> Iterator[PlanItem]:
            for number in range(3 * WINDOW):
                looked.append(f"{self.name}{number}")
                yield PlanItem(f"{self.name}{number}", "Add", f"{self.name}{number}", 1.0, since=float(number) / 1000)

    class Small(Endless):
        told_s = 1.0

    planned = plan(Endless("a", [1.0]), Endless("b", [1.0], since=1.0), Small("c", [1.0], since=2.0))
    assert {int(key[1:]) for key in planned.batch.keys} <= set(range(WINDOW))
    assert {key[0]: int(key[1:]) for key in looked} == {"a": WINDOW - 1, "c": WINDOW - 1}, (
        "b is too large to join, which is plain"
    )


def test_one_job_that_fits_is_one_run_on_all_slots() -> None:
    planned = plan(Job("a", [2.0] * 100))
    assert (len(planned.batch.items), planned.processes, planned.queues) == (100, 8, ("a",))


def test_a_job_alone_that_is_more_than_one_batch_runs_in_two_lanes_that_end_in_turns_each_for_twice_as_long() -> None:
    bound = TERMS.bound_s(others=False)
    first = plan(Job("a", [1.0] * 1000))
    assert (first.processes, first.estimate_s) == (4, bound)
    second = plan(Job("a", [1.0] * 800, running=1), free=4, runs=7, running=(Run(4, bound + 5.0),))
    assert (second.processes, second.estimate_s) == (4, 2 * bound)


def test_a_large_job_alone_runs_in_three_lanes_that_end_in_turns() -> None:
    bound = TERMS.bound_s(others=False)
    job = Job("a", [1.0] * 4000)
    running: tuple[Run, ...] = ()
    for lane, (free, processes) in enumerate([(8, 3), (5, 3), (2, 2)]):
        planned = plan(job, free=free, runs=8 - lane, running=running)
        assert planned.processes == processes
        assert (lane + 1) * bound <= planned.estimate_s <= (lane + 1) * (bound + 5.0)
        running = (*running, Run(processes, planned.estimate_s + 5.0))
    soon = plan(job, free=3, runs=6, running=(Run(3, 50.0), Run(2, 100.0)))
    assert 100 + bound - 5.0 <= soon.estimate_s <= 100 + bound, "it ends a batch after the last of the others"
    assert plan(job, free=3, runs=6, running=(Run(3, 140.0), Run(2, 150.0))).estimate_s == bound, (
        "else nothing would end for long"
    )


def test_the_last_batches_of_a_job_end_together_whatever_the_other_lane_really_has_left() -> None:
    for left in (2.0, 12.0, 30.0, 44.0):
        planned = plan(Job("a", [0.1] * 2800, running=1), free=4, runs=7, running=(Run(4, left),))
        rest = 280.0 - sum(item.cost_s for item in planned.batch.items)
        assert planned.processes == 4
        assert abs(5.0 + planned.estimate_s - (left + 5.0 + rest / 4)) <= 0.3, "its end, and that of what the other one then does"
    alone = plan(Job("a", [0.1] * 2800, running=1), free=4, runs=7, running=(Run(4, 68.0),))
    assert len(alone.batch.items) == 2800, "the other one would have less to do than its start-up takes"


def test_a_job_is_not_run_in_lanes_where_that_helps_nobody() -> None:
    bound = TERMS.bound_s(others=False)
    assert plan(Job("a", [1.0] * 4000), runs=1).processes == 8, "no other run may be started"
    assert plan(Job("a", [1.0] * 430)).processes == 8, "one batch is enough, and what little is more goes with it"
    waited_for = plan(Job("a", [1.0] * 4000), Job("b", [1.0] * 4000, since=1.0, uid=1))
    assert waited_for.estimate_s == TERMS.batch_s < bound
    assert plan(Job("a", [1.0] * 4000, running=1), total=1).estimate_s == bound


def test_a_job_that_waits_comes_before_one_that_has_something_running_however_long_that_has_waited() -> None:
    assert plan(Job("large", [1.0] * 50, since=0.0, running=1), Job("small", [1.0], since=9.0)).queues[0] == "small"
    assert plan(Job("late", [1.0], since=9.0, uid=1), Job("early", [1.0], since=1.0)).queues[0] == "early"


def test_a_large_job_leaves_a_smaller_one_the_slots_that_it_can_use_and_a_small_one_takes_what_it_needs() -> None:
    large, smaller = Job("a", [20.0] * 100), Job("b", [20.0] * 90, since=1.0, uid=1)
    assert plan(large, smaller).processes == 4
    assert plan(large, Job("b", [1.0], since=1.0, uid=1)).processes == 7
    assert plan(large, smaller, runs=1).processes == 8, "where only one run may be started nobody else could use them"
    assert plan(Job("b", [1.0] * 6, since=0.0, uid=1), Job("a", [20.0] * 100, since=1.0)).processes == 6
    assert plan(Job("b", [1.0] * 24, since=0.0, uid=1), Job("a", [20.0] * 100, since=1.0)).processes == 8


def test_kernels_longer_than_a_batch_do_not_keep_slots_that_they_do_not_need() -> None:
    job = Job("a", [90.0, 90.0, *[1.0] * 100])
    planned = plan(job)
    assert (planned.batch.keys, planned.processes) == (("a0", "a1"), 2)
    assert len(plan(job, runs=1).batch.items) == 102, "where only one run may be started it takes all"


def test_a_batch_that_others_wait_behind_is_short_and_one_that_nobody_does_is_worth_its_start_up() -> None:
    large = Job("a", [1.0] * 1000)
    assert plan(large, total=2).estimate_s == 50.0
    assert plan(large, Job("b", [1.0] * 1000, since=1.0, uid=1), total=2).estimate_s == 30.0


def test_a_rest_that_costs_less_than_a_start_up_is_not_left_behind() -> None:
    assert len(plan(Job("a", [1.0] * 54), total=1).batch.items) == 54
    assert len(plan(Job("a", [1.0] * 70), total=1).batch.items) == 50


def test_small_jobs_of_one_user_share_a_run_and_a_large_one_does_not_hold_a_small_one_up() -> None:
    first, second = Job("a", [1.0] * 2), Job("b", [1.0] * 2, since=1.0)
    assert plan(first, second, total=1).queues == ("a", "b")
    assert plan(first, Job("b", [1.0] * 2, since=1.0, uid=1), total=1).queues == ("a",), "users do not trust each other"
    assert plan(first, Job("b", [1.0] * 20, since=1.0), total=1).queues == ("a",)


def test_two_jobs_that_wait_for_the_same_kernels_do_not_halve_the_slots() -> None:
    shared = [PlanItem(f"k{n}", "Add", f"k{n}", 1.0, 0) for n in range(50)]
    planned = plan(Job("a", [], shared=shared), Job("b", [], since=1.0, shared=shared))
    assert (planned.processes, len(planned.batch.items)) == (8, 50)


def test_background_work_comes_last_and_never_takes_more_than_half() -> None:
    nobody = Job("old", [9.0] * 100, background=True)
    assert plan(nobody, Job("new", [1.0], since=99.0)).queues == ("new",)
    assert plan(nobody).processes == 4
    assert plan(nobody, total=1).processes == 1
    assert next_batch([nobody], Slots(8, 4, 7, background=4), TERMS) is None


def test_suspects_keep_to_themselves_and_come_after_what_is_under_no_suspicion() -> None:
    suspects = [PlanItem(f"s{n}", "Add", f"s{n}", 50.0, 0, part=f"run:{n % 2}") for n in range(4)]
    job = Job("a", [1.0] * 3, shared=suspects)
    assert plan(job).batch.keys == ("a0", "a1", "a2")
    job.costs = []
    assert plan(job).batch.keys == ("s0", "s2")


def test_a_job_that_keeps_asking_starves_neither_its_cheap_kernels_nor_those_under_suspicion() -> None:
    """Each batch takes 30 s, and as much as that is asked for anew meanwhile, all of it costlier than what has waited from the start."""
    job = Job("a", [], shared=[PlanItem("cheap", "Add", "cheap", 0.1), PlanItem("bad", "Add", "bad", 5.0, part="alone:bad")])
    started: list[str] = []
    for turn in range(20):
        job.shared += [PlanItem(f"t{turn}n{n}", "Add", f"t{turn}n{n}", 10.0, since=30.0 * turn) for n in range(24)]
        planned = plan(job, Job("other", [1.0], since=1e9))
        assert [item.cost_s for item in planned.batch.items] == sorted((i.cost_s for i in planned.batch.items), reverse=True)
        started += planned.batch.keys
        job.shared = [item for item in job.shared if item.key not in started]
    assert {"cheap", "bad"} <= set(started)
    assert started.index("bad") < started.index("t5n0")


def test_what_ran_out_of_memory_gets_as_few_processes_as_it_may_have() -> None:
    planned = plan(Job("a", [], shared=[PlanItem(f"m{n}", "Add", f"m{n}", 1.0, 0, most=2) for n in range(20)]))
    assert (planned.processes, len(planned.batch.items)) == (2, 20)


JOBS = st.lists(
    st.builds(
        Job,
        name=st.sampled_from("abcdefgh"),
        costs=st.lists(st.floats(0.01, 60), max_size=30),
        since=st.floats(0, 10),
        background=st.booleans(),
        running=st.integers(0, 2),
        uid=st.integers(0, 1),
        part=st.sampled_from(["", "x:0"]),
    ),
    max_size=6,
    unique_by=lambda job: job.name,
)


@given(jobs=JOBS, total=st.integers(1, 16), used=st.integers(0, 15), left=st.floats(0, 1e4), start_up=st.floats(0, 20))
def test_a_plan_keeps_to_what_is_free_and_to_one_company_and_is_never_without_cause(
    jobs: list[Job], total: int, used: int, left: float, start_up: float
) -> None:
    free = max(0, total - used)
    slots = Slots(total, free, 4, running=(Run(used, left),) if used else ())
    planned = next_batch(jobs, slots, Terms(30.0, start_up))
    waiting = [job for job in jobs if job.keys()]
    if planned is None:
        assert not waiting or not free or all(job.background for job in waiting)
        return
    assert 1 <= planned.processes <= free
    assert len({(one.company, one.part, one.most) for one in planned.batch.items}) == 1
    assert len({one.trace for one in planned.batch.items}) == len(planned.batch.items)
    assert set().union(*(job.keys() for job in waiting)) >= set(planned.batch.keys)
    assert planned == next_batch(list(reversed(jobs)), slots, Terms(30.0, start_up)), "nor does the order matter"
