from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npgxd.store.history import CompileHistory, FailureRow
from tests.store.made import digest

if TYPE_CHECKING:
    from tests.store.made import House


def failure(name: str, *, op_type: str = "Add", at: float = 100.0, until: float = 0.0) -> FailureRow:
    return FailureRow(digest(name), op_type, digest("toolchain"), "failed", f"error E10001: {name}", 2, "job", at, until)


class Clock:
    """A wall clock that may jump."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(house: House, clock: Clock) -> CompileHistory:
    return CompileHistory(house.catalog, clock=clock)


def test_fc12_a_failure_is_remembered_with_all_that_is_known_of_it_over_a_restart(
    house: House, history: CompileHistory, clock: Clock
) -> None:
    for row in (failure("a"), failure("b", at=99.0, until=500.0)):
        history.remember(row)
    house.reopen()
    again = CompileHistory(house.catalog, clock=clock)
    assert again.failures([digest("a"), digest("c")]) == {digest("a"): failure("a")}
    assert again.latest_failures(50) == [failure("a"), failure("b", at=99.0, until=500.0)]
    assert again.latest_failures(1) == [failure("a")]


def test_fc12_a_reason_that_passes_is_forgotten_in_time_whatever_the_clock_does(history: CompileHistory, clock: Clock) -> None:
    history.remember(failure("a", until=200.0))
    history.remember(failure("b"))
    clock.now = 199.0
    assert set(history.failures([digest("a"), digest("b")])) == {digest("a"), digest("b")}
    clock.now = 50.0
    assert set(history.failures([digest("a"), digest("b")])) == {digest("b")}, (
        "a clock that was set back does not keep it for longer"
    )
    clock.now = 200.0
    assert set(history.failures([digest("a"), digest("b")])) == {digest("b")}
    assert [row.key for row in history.latest_failures(9)] == [digest("b")]


def test_failures_are_forgotten_by_the_first_digits_of_a_key_by_op_type_or_all(history: CompileHistory) -> None:
    for row in (failure("a"), failure("b", op_type="Mul"), failure("c"), failure("d")):
        history.remember(row)
    assert history.forget(keys=["nothing"]) == []
    assert [row.key for row in history.forget(keys=[digest("a")[:12]])] == [digest("a")]
    assert [row.key for row in history.forget(op_type="Mul")] == [digest("b")]
    assert {row.key for row in history.forget()} == {digest("c"), digest("d")}
    assert history.latest_failures(9) == []


def test_what_was_compiled_after_all_is_no_failure_any_more(history: CompileHistory) -> None:
    history.remember(failure("a"))
    history.made([digest("a"), digest("b")])
    assert history.failures([digest("a")]) == {}


def test_estimates_survive_a_restart(house: House, history: CompileHistory) -> None:
    history.keep_estimates([("op/Add", 1.0, 1), ("start-up/9.1.0/x", 5.0, 3)])
    history.keep_estimates([("op/Add", 1.5, 2)])
    house.reopen()
    assert sorted(CompileHistory(house.catalog).estimates()) == [("op/Add", 1.5, 2), ("start-up/9.1.0/x", 5.0, 3)]
