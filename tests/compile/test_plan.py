from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from npgxd.compile.plan import PlanItem, plan

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


def test_nothing_to_compile_is_no_batch() -> None:
    assert plan([]) == []


def test_everything_goes_into_one_batch_longest_first() -> None:
    (batch,) = plan([item("a", 1.0), item("b", 3.0), item("c", 2.0)])
    assert batch.keys == ("b", "c", "a")
    assert batch.estimate_s(jobs=2) == 3.0
    assert batch.estimate_s(jobs=1) == 6.0


def test_records_that_a_kernel_cannot_tell_apart_are_never_in_one_batch() -> None:
    batches = plan([item("a", trace="same"), item("b", trace="same"), item("c")])
    assert [batch.keys for batch in batches] == [("a", "c"), ("b",)]


def test_a_bound_on_batches_is_kept_as_far_as_single_kernels_allow() -> None:
    batches = plan([item("a", 9.0), item("b", 2.0), item("c", 2.0), item("d", 2.0)], jobs=1, max_batch_s=5.0)
    assert [batch.keys for batch in batches] == [("a",), ("b", "c"), ("d",)]


@given(items=ITEMS, jobs=st.integers(1, 8), bound=st.none() | st.floats(0.1, 30))
def test_a_plan_covers_every_key_once_and_separates_equal_traces(items: list[PlanItem], jobs: int, bound: float | None) -> None:
    batches = plan(items, jobs=jobs, max_batch_s=bound)
    assert Counter(key for batch in batches for key in batch.keys) == Counter({i.key: 1 for i in items})
    for batch in batches:
        assert len({i.trace for i in batch.items}) == len(batch.items)
        assert [i.cost_s for i in batch.items] == sorted((i.cost_s for i in batch.items), reverse=True)
        assert bound is None or len(batch.items) == 1 or batch.estimate_s(jobs) <= bound


@given(items=ITEMS)
def test_a_plan_does_not_depend_on_the_order_of_arrival(items: list[PlanItem]) -> None:
    unique = list({i.key: i for i in items}.values())
    assert plan(unique) == plan(reversed(unique))
