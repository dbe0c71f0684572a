from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from npgxd.compile.batches import Batch, PlanItem, apart, fill, longest_first, makespan

ITEMS = st.lists(
    st.builds(
        PlanItem,
        key=st.integers(0, 40).map(lambda n: f"{n:064x}"),
        op_type=st.sampled_from(["Add", "MatMulV2"]),
        trace=st.sampled_from("abcdefgh"),
        cost_s=st.floats(0, 60),
    ),
    max_size=40,
)


def item(key: str, cost_s: float = 1.0, trace: str | None = None) -> PlanItem:
    return PlanItem(key, "Add", trace if trace is not None else key, cost_s)


def test_a_batch_is_listed_longest_first_and_estimated_on_so_many_processes() -> None:
    batch, left = fill(longest_first([item("a", 1.0), item("b", 3.0), item("c", 2.0)]), 2, 10.0)
    assert (batch.keys, left) == (("b", "c", "a"), 0)
    assert batch.estimate_s(2) == 3.0
    assert batch.estimate_s(1) == 6.0


def test_what_does_not_fit_gives_way_to_shorter_ones_that_do() -> None:
    batch, left = fill(longest_first([item("a", 4.0), item("b", 3.0), item("c", 1.0)]), 1, 5.0)
    assert (batch.keys, left) == (("a", "c"), 3.0)


def test_a_kernel_longer_than_any_batch_is_compiled_all_the_same() -> None:
    batch, _ = fill([item("a", 90.0)], 4, 30.0)
    assert batch.keys == ("a",)


def test_a_batch_asks_for_no_more_processes_than_it_can_use() -> None:
    assert Batch((item("a", 20.0), *(item(f"b{n}", 1.0) for n in range(10)))).useful(16) == 2
    assert Batch(tuple(item(f"b{n}", 1.0) for n in range(32))).useful(16) == 16
    assert Batch((item("a"),)).useful(16) == 1


@given(items=ITEMS)
def test_records_that_a_kernel_cannot_tell_apart_are_never_in_one_batch_and_none_is_lost(items: list[PlanItem]) -> None:
    batches = apart(items)
    assert Counter(key for batch in batches for key in batch.keys) == Counter({one.key: 1 for one in items})
    for batch in batches:
        assert len({one.trace for one in batch.items}) == len(batch.items)
        assert [one.cost_s for one in batch.items] == sorted((one.cost_s for one in batch.items), reverse=True)


@given(items=ITEMS, processes=st.integers(1, 8), bound=st.floats(0.1, 60))
def test_a_full_batch_keeps_its_bound_as_far_as_single_kernels_allow(items: list[PlanItem], processes: int, bound: float) -> None:
    batch, _ = fill(longest_first(items), processes, bound)
    assert bool(batch.items) == bool(items)
    assert len({one.trace for one in batch.items}) == len(batch.items)
    assert batch.estimate_s(processes) <= max(bound, *(one.cost_s for one in items), 0.0) * 1.000001


@given(items=ITEMS, processes=st.integers(1, 8))
def test_no_order_ends_later_than_all_one_after_another_or_earlier_than_an_equal_share(
    items: list[PlanItem], processes: int
) -> None:
    ordered = longest_first(items)
    total = sum(one.cost_s for one in ordered)
    assert total / processes - 1e-6 <= makespan(ordered, processes) <= total + 1e-6
