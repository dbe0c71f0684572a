from __future__ import annotations

import pytest

from tools.cann_sim import FREE, Costs
from tools.cann_sim.compiler.record import Record
from tools.cann_sim.records import elementwise, many, matmul

ADD, LARGE_ADD, MATMUL = (Record(item) for item in (elementwise("Add", (4,)), elementwise("Add", (4096, 4096)), matmul(4, 4, 4)))


def test_nothing_costs_anything_when_scaled_to_zero():
    costs = Costs(startup_s=5, per_op_s=5, scale=0)
    assert costs.startup() == costs.seconds(MATMUL) == costs.ideal([MATMUL], 1) == FREE.seconds(ADD) == 0


def test_costs_depend_on_the_op_type_and_a_little_on_size():
    costs = Costs(per_op_s=1.0)
    assert costs.seconds(MATMUL) > 1.9 * costs.seconds(ADD)
    assert costs.seconds(ADD) < costs.seconds(LARGE_ADD) < 1.5 * costs.seconds(ADD)
    assert costs.seconds(ADD) == costs.seconds(Record(elementwise("Add", (4,))))


def test_single_op_types_can_have_their_own_cost():
    costs = Costs(per_op_s=1.0, scale=0.5, per_op_type={"Add": 8.0})
    assert costs.seconds(ADD) == costs.seconds(LARGE_ADD) == 4.0


@pytest.mark.parametrize(("slots", "seconds"), [(1, 1 + 8), (2, 1 + 4), (8, 1 + 3)])
def test_the_ideal_is_startup_and_the_larger_of_share_and_longest(slots: int, seconds: float):
    costs = Costs(startup_s=1.0, per_op_type={"Add": 3.0, "MatMulV2": 2.0})
    assert costs.ideal([ADD, LARGE_ADD, MATMUL], slots) == seconds


def test_the_ideal_of_nothing_is_nothing():
    assert Costs(startup_s=1.0).ideal([], 4) == 0


def test_settings_survive_the_home(bench):
    costs = Costs(startup_s=0.5, per_op_s=0.25, scale=2.0, object_bytes=99, per_op_type={"Add": 1.0})
    bench.cann.set_costs(costs)
    assert bench.cann.costs == costs


def test_a_run_takes_at_least_what_the_model_says(bench):
    bench.cann.set_costs(Costs(startup_s=0.2, per_op_s=0.05))
    records = many(8)
    assert bench.compile(records, "-f", "true", "-j", "4").status == 0
    (run,) = bench.cann.runs()
    assert run.seconds is not None
    assert run.seconds >= bench.cann.costs.ideal([Record(item) for item in records], 4)
