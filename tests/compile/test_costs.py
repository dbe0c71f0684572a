from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npgxd.compile import costs as costs_module
from npgxd.compile.costs import WILD, Costs, Estimate, KernelSeen, RunSeen, size_of
from tools.cann_sim.records import concat, encode, matmul


def seen(op_type: str, *seconds: float, size: int = 3) -> list[KernelSeen]:
    return [KernelSeen(op_type, size, value) for value in seconds]


def test_without_history_there_are_priors() -> None:
    costs = Costs()
    assert not costs.known
    assert costs.kernel_s("Add", 3) == costs_module.KERNEL_S
    assert costs.start_up_s("9.1.0/x") == costs_module.START_UP_S
    assert costs.memory_bytes("9.1.0/x") == costs_module.MEMORY_BYTES


def test_an_op_type_that_was_never_seen_costs_what_is_usual_and_one_slow_operator_does_not_move_that() -> None:
    costs = Costs()
    for kind, value in (("Add", 1.0), ("Mul", 1.2), ("Conv3D", 90.0)):
        costs.learn(seen(kind, value))
    assert costs.kernel_s("New", 3) == pytest.approx(1.2)


def test_kernels_of_one_type_are_told_apart_by_size_once_a_few_of_a_size_were_seen() -> None:
    costs = Costs()
    costs.learn(seen("MatMulV2", *[2.0] * 4, size=4))
    costs.learn(seen("MatMulV2", *[20.0] * 4, size=8))
    assert costs.kernel_s("MatMulV2", 4) == pytest.approx(2.0)
    assert costs.kernel_s("MatMulV2", 8) > 10.0
    assert 2.0 < costs.kernel_s("MatMulV2", 6) < 20.0


def test_a_wild_measurement_moves_an_estimate_by_little_and_a_lasting_change_is_followed() -> None:
    costs = Costs()
    costs.learn(seen("Add", *[1.0] * 20))
    costs.learn(seen("Add", 3600.0))
    assert costs.kernel_s("Add", 3) < 1.5
    costs.learn(seen("Add", *[4.0] * 30))
    assert costs.kernel_s("Add", 3) == pytest.approx(4.0, rel=0.05)


def test_start_up_and_memory_are_each_toolchains_own_and_all_of_it_survives_as_rows() -> None:
    costs = Costs()
    changed = costs.learn(seen("Add", 2.0), "9.1.0/a", RunSeen(7.0, 0.25, 1000))
    again = Costs(Estimate(row.name, row.mean, row.n) for row in changed)
    assert (again.start_up_s("9.1.0/a"), again.ending_s("9.1.0/a"), again.memory_bytes("9.1.0/a")) == (7.0, 0.25, 1000)
    assert again.start_up_s("8.5.0/a") == costs_module.START_UP_S
    assert again.kernel_s("Add", 3) == 2.0


@given(first=st.floats(0.01, 100), values=st.lists(st.floats(0, 1e5), max_size=20))
def test_an_estimate_never_leaves_the_reach_of_what_was_seen(first: float, values: list[float]) -> None:
    estimate = Estimate("op/Add", 0.0, 0).with_seen(first)
    for value in values:
        after = estimate.with_seen(value)
        assert estimate.mean / WILD <= after.mean * 1.000001
        assert after.mean <= estimate.mean * WILD * 1.000001
        estimate = after


def test_size_classes_grow_with_the_elements_and_bad_records_have_none() -> None:
    assert size_of(encode(matmul(16, 64, 128))) < size_of(encode(matmul(4096, 4096, 4096)))
    assert size_of(encode(concat([(4, 8), (4, 8)], 0))) > 0
    for bad in (b"", b"[]", b'{"inputs": 3}', b'{"inputs": [{"shape": ["x"]}]}'):
        assert size_of(bad) == 0
