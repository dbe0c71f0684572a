"""Churn is found by how new kernels come, round after round of one process, and never by how many a start-up asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npgxd.config import LimitsSection
from npgxd.daemon.scheduling.churn import ALL_GRAPHS, Changing, Churn, Graph
from npgxd.toolchain.record import Record, parse_record
from npgxd.wire.states import ClientState, KeyOutcome, Reason
from tools.cann_sim import records

if TYPE_CHECKING:
    from collections.abc import Iterable

ME = Graph(7, "job", "rank 0, pid 1", "decode")


def churn(shapes: int = 4, const_data: int = 4) -> Churn:
    return Churn(LimitsSection(churn_shapes=shapes, churn_const_data=const_data))


def missing(*described: dict[str, Any]) -> Iterable[tuple[str, Record]]:
    for item in described:
        record = parse_record("r", records.encode(item))
        yield record.digest, record


def reduced(value: int, *, rows: int = 16) -> dict[str, Any]:
    """One ReduceSum whose axes are a constant."""
    return records.reduce("ReduceSum", (rows, 64), [2 * value + 1])


def test_constants_that_change_round_after_round_are_capped_and_named() -> None:
    counted = churn()
    for value in range(4):
        assert counted.take(ME, missing(reduced(value))) == {}
    capped = counted.take(ME, missing(reduced(4), records.matmul(16, 32, 64)))
    ((key, reason),) = capped.items()
    assert key == next(missing(reduced(4)))[0]
    assert reason.startswith("its const_data changed in 4 rounds of this graph")
    assert "[limits] churn_const_data = 4" in reason
    assert "tensor that is no constant" in reason
    (told,) = counted.describe()
    assert (told["op_type"], told["what"], told["rounds"], told["not_compiled"]) == ("ReduceSum", "const_data", 4, 1)
    assert (told["uid"], told["job"], told["process"], told["graph"]) == ME


def test_shapes_that_change_round_after_round_are_capped_and_named() -> None:
    counted = churn()
    capped = [counted.take(ME, missing(records.matmul(16 * (turn + 1), 32, 64))) for turn in range(6)]
    assert [len(each) for each in capped] == [0, 0, 0, 0, 1, 1]
    assert counted.describe()[0]["what"] == "shapes"
    assert counted.describe()[0]["not_compiled"] == 2


def test_a_start_up_of_431_kernels_with_many_shapes_is_no_churn_whatever_the_limit() -> None:
    counted = churn(shapes=2, const_data=2)
    whole = [*records.many(431), *(reduced(value) for value in range(200))]
    assert counted.take(ME, missing(*whole)) == {}
    assert counted.take(ME, missing(*whole)) == {}, "asked for again, for example since the first attempt failed"
    assert counted.take(ME, missing(*records.many(431))) == {}
    assert counted.describe() == []


def test_a_start_up_that_captures_67_batch_sizes_on_16_ranks_is_no_churn_by_default() -> None:
    counted = Churn(LimitsSection())
    for batch in range(67):
        layer = list(missing(*(records.matmul(8 * (batch + 1), 64, 32 * (part + 1)) for part in range(4))))
        for rank in range(16):
            assert counted.take(ME._replace(process=f"rank {rank}, pid {rank + 100}", name=str(batch)), layer) == {}


def test_a_model_of_200_graphs_each_with_constants_and_shapes_of_its_own_is_no_churn_by_default() -> None:
    counted = Churn(LimitsSection())
    for layer in range(200):
        new = missing(reduced(layer), records.matmul(16 * layer + 16, 32, 64))
        assert counted.take(ME._replace(name=str(layer)), new) == {}


def test_where_every_round_names_its_graph_anew_the_rounds_of_the_process_count() -> None:
    counted = churn(const_data=2)
    capped = [counted.take(ME._replace(name=str(turn)), missing(reduced(turn))) for turn in range(2 * ALL_GRAPHS + 1)]
    assert [len(each) for each in capped] == [*[0] * 2 * ALL_GRAPHS, 1]
    assert f"its const_data changed in {2 * ALL_GRAPHS} rounds of this process" in next(iter(capped[-1].values()))
    assert counted.describe()[0]["graph"] == ""


def test_values_that_were_asked_for_before_are_asked_for_again() -> None:
    counted = churn()
    for value in range(8):
        counted.take(ME, missing(reduced(value)))
    assert counted.take(ME, missing(reduced(0), reduced(3))) == {}
    assert len(counted.take(ME, missing(reduced(7)))) == 1


def test_each_graph_of_each_process_and_each_operator_call_is_counted_by_itself() -> None:
    counted = churn()
    for value in range(4):
        counted.take(ME, missing(reduced(value)))
    assert counted.take(ME._replace(process="rank 1, pid 2"), missing(reduced(9))) == {}
    assert counted.take(ME._replace(uid=8), missing(reduced(9))) == {}
    assert counted.take(ME, missing(reduced(9, rows=32))) == {}, "another shape is another call"
    assert len(counted.take(ME, missing(reduced(9)))) == 1


def test_a_limit_of_zero_is_none() -> None:
    counted = churn(shapes=0, const_data=0)
    for turn in range(20):
        assert counted.take(ME, missing(reduced(turn), records.matmul(16 * (turn + 1), 32, 64))) == {}


def test_what_is_forgotten_is_counted_anew_by_operator_or_all() -> None:
    counted = churn(shapes=1, const_data=1)
    for turn in range(3):
        counted.take(ME, missing(reduced(turn), records.matmul(16 * (turn + 1), 32, 64)))
    assert {call["op_type"] for call in counted.describe()} == {"ReduceSum", "MatMulV2"}
    assert counted.forget("ReduceSum") == 1, "by its graph; the process's own count had not come so far"
    assert counted.take(ME, missing(reduced(10))) == {}
    assert counted.forget() == 1
    assert counted.describe() == []


@pytest.mark.parametrize("constant", [[1, 2], [[1], [2, 3]], 'a "text", with ] and }', "NULL", 5, None])
def test_only_the_constant_and_the_shapes_are_left_out_of_a_call(constant: Any) -> None:
    def described(value: Any) -> dict[str, Any]:
        made = records.matmul(16, 32, 64)
        made["inputs"][1] |= {"value_depend": True, "const_data": value}
        made["attrs"].append(records.attribute("shape", "str", 'a "const_data":[1] and a "shape":[2]', 2))
        return made

    counted = churn(shapes=1, const_data=1)
    counted.take(ME, missing(described([7])))
    assert len(counted.take(ME, missing(described(constant)))) == 1
    assert counted.describe()[0]["what"] == Changing.CONST_DATA
    other = described([7])
    other["attrs"][2]["value"] = 'a "const_data":[2] and a "shape":[2]'
    assert counted.take(ME, missing(other)) == {}, "an attribute that looks like a constant is none"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.daemon.scheduling.churn.MAX_CALLS", 20)
    monkeypatch.setattr("npgxd.daemon.scheduling.churn.MAX_VALUES", 10)
    counted = churn(shapes=0, const_data=0)
    for turn in range(30):
        counted.take(ME, missing(records.elementwise("Add", (4, 64), impl_mode=str(turn))))
    counted.take(ME, missing(*(records.matmul(16 * (turn + 1), 32, 64) for turn in range(30))))
    (calls,) = counted._calls.values()
    assert len(calls) == 20
    assert max(len(call.values) for call in calls.values()) == 10


def test_what_is_remembered_of_all_calls_of_a_user_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.daemon.scheduling.churn.MAX_ALL_VALUES", 50)
    counted = churn(shapes=0, const_data=0)
    for turn in range(12):
        counted.take(ME, missing(*(records.elementwise("Add", (16 * size, 64), impl_mode=str(turn)) for size in range(1, 10))))
    (calls,) = counted._calls.values()
    assert 40 <= sum(len(call.values) for call in calls.values()) <= 50
    assert counted.take(ME, missing(records.elementwise("Add", (16, 64), impl_mode="11"))) == {}
    counted.forget()
    assert counted._values[ME.uid] == 0


# ---- in a daemon -----------------------------------------------------------------------------------------------------


def test_a_capped_kernel_degrades_its_round_with_the_operators_name_and_the_rest_is_compiled(parts) -> None:
    parts.coordinator.churn = churn(const_data=1)
    session = parts.session()
    first = parts.take(session, reduced(2), graph="decode[8]")
    parts.drive(lambda: first.result is not None)
    assert first.result.state is ClientState.INSTALLED
    second = parts.take(session, reduced(3), records.matmul(16, 32, 64), graph="decode[16]")
    parts.drive(lambda: second.result is not None)
    assert (second.result.state, second.result.reason) == (ClientState.DEGRADED, Reason.CHURN)
    assert second.result.compiled == 1
    (failure,) = second.result.failures
    assert (failure.op_type, failure.outcome) == ("ReduceSum", KeyOutcome.CAPPED)
    assert "const_data" in failure.reason
    assert parts.take(session, reduced(2)).result.state is ClientState.INSTALLED, "what has a kernel is served"
    assert parts.stores.failures() == [], "another process may have it compiled"
