from __future__ import annotations

from npgxd.compile import Grant
from npgxd.config import CompileSection
from npgxd.daemon.compiling.capacity import STARVED_S, Busy, Capacity

GB = 1_000_000_000
PROCESS = GB


class Machine:
    """What it grants is set by the test."""

    def __init__(self, processors: float = 8.0, memory: int = 100 * GB) -> None:
        self.processors = processors
        self.memory = memory

    def grant(self) -> Grant:
        return Grant(self.processors, self.memory, ("processors", "memory"))


def test_a_part_of_the_granted_processors_is_used_and_never_none() -> None:
    machine = Machine(192)
    capacity = Capacity(CompileSection(), machine)
    assert capacity.slots(Busy(), PROCESS, 0.0).total == 50, "half of 100 GB, 1 GB each"
    machine.memory = 4000 * GB
    assert capacity.slots(Busy(), PROCESS, 0.0).total == 144
    machine.processors = 0.2
    slots = capacity.slots(Busy(), PROCESS, 0.0)
    assert (slots.total, slots.free, slots.runs) == (1, 1, 1)


def test_what_runs_counts_against_the_grant_and_has_its_memory_already() -> None:
    machine = Machine(16, memory=4 * GB)
    capacity = Capacity(CompileSection(cpu_share=1.0), machine)
    assert capacity.slots(Busy(), PROCESS, 0.0).total == 2
    machine.memory = 2 * GB  # two processes have taken theirs
    slots = capacity.slots(Busy(runs=1, processes=2, background=1), PROCESS, 0.0)
    assert (slots.total, slots.free, slots.background) == (3, 1, 1)


def test_a_grant_that_shrinks_below_what_runs_frees_nothing() -> None:
    machine = Machine(8)
    capacity = Capacity(CompileSection(cpu_share=1.0), machine)
    assert capacity.slots(Busy(1, 8), PROCESS, 0.0).free == 0
    machine.processors = 2
    assert capacity.slots(Busy(1, 8), PROCESS, 0.0).free == 0


def test_explicit_numbers_win() -> None:
    capacity = Capacity(CompileSection(workers=3, jobs=40), Machine(2, memory=0))
    slots = capacity.slots(Busy(runs=1, processes=10), PROCESS, 0.0)
    assert (slots.total, slots.free, slots.runs) == (40, 30, 2)
    assert capacity.describe(0.0) == {"limit": 3, "processes": 40, "bound_by": "[compile] jobs", "starved": None}


def test_a_configured_size_of_a_process_wins_over_a_measured_one() -> None:
    capacity = Capacity(CompileSection(process_mb=5000, cpu_share=1.0), Machine(64))
    assert capacity.slots(Busy(), PROCESS, 0.0).total == 10


def test_fc12_after_memory_ran_out_there_are_half_as_many_for_a_while_and_then_step_by_step_more() -> None:
    capacity = Capacity(CompileSection(cpu_share=1.0), Machine(16))
    assert capacity.slots(Busy(), PROCESS, 0.0).total == 16
    capacity.starved(16, 0.0)
    assert capacity.slots(Busy(), PROCESS, 1.0).total == 8
    told = capacity.describe(100.0)
    assert told["starved"] == {"processes": 8, "for_s": STARVED_S - 100.0}
    assert told["bound_by"] == "memory that ran out a while ago"
    capacity.starved(8, 2.0)
    assert capacity.slots(Busy(), PROCESS, 3.0).total == 4
    assert capacity.slots(Busy(), PROCESS, 2.0 + STARVED_S).total == 8
    assert capacity.slots(Busy(), PROCESS, 2.0 + 2 * STARVED_S).total == 16
    assert capacity.describe(3.0 + 2 * STARVED_S)["starved"] is None
    capacity.starved(1, 5000.0)
    assert capacity.slots(Busy(), PROCESS, 5001.0).total == 1
    assert capacity.slots(Busy(), PROCESS, 1e9).total == 16, "also when the clock jumps"
