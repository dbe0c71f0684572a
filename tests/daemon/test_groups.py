from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from npgxd.config import GroupSection
from npgxd.daemon.scheduling.groups import Group, Standing, closes_at, expected_size

BOUNDS = GroupSection(window_s=2.0, quiet_s=0.2, recording_s=30.0)


def group(expected: int | None, arrivals: list[float]) -> Group:
    made = Group(id="g", job="j", opened_at=arrivals[0], expected=expected)
    for position, when in enumerate(arrivals):
        made.add(f"r{position}", f"s{position}", when)
    return made


def test_a_group_of_unknown_size_waits_for_nobody() -> None:
    assert closes_at(group(None, [10.0]), Standing(connected=3), BOUNDS) == -math.inf


def test_a_complete_group_closes_at_once() -> None:
    assert closes_at(group(2, [10.0, 10.5]), Standing(connected=0), BOUNDS) == -math.inf


def test_ranks_never_heard_of_are_waited_for_from_the_first_arrival() -> None:
    assert closes_at(group(4, [10.0, 11.0]), Standing(connected=0), BOUNDS) == 12.0


def test_ranks_that_are_connected_and_idle_are_waited_for_shortly() -> None:
    assert closes_at(group(4, [10.0, 11.0]), Standing(connected=2), BOUNDS) == 11.2


def test_a_rank_that_said_it_is_recording_is_waited_for_longest_and_not_for_ever() -> None:
    standing = Standing(connected=2, recording_since=(10.9, 9.0))
    assert closes_at(group(4, [10.0, 11.0]), standing, BOUNDS) == 40.9


def test_fc31_a_missing_or_contradictory_local_world_size_means_not_waiting_and_is_told() -> None:
    assert expected_size([4, 4], 0) == (4, "")
    size, note = expected_size([4, 8], 0)
    assert size is None
    assert "disagree" in note
    assert "4, 8" in note
    size, note = expected_size([4, None], 0)
    assert size is None
    assert "every rank" in note
    size, note = expected_size([None, None], 0)
    assert size is None
    assert "once" in note


def test_the_node_wide_default_fills_in_for_ranks_that_do_not_say() -> None:
    assert expected_size([None, None], 8) == (8, "")
    assert expected_size([2, 2], 8) == (2, "")
    assert expected_size([2, 4], 8)[0] is None


@given(
    expected=st.integers(1, 16),
    arrivals=st.lists(st.floats(0, 100), min_size=1, max_size=16).map(sorted),
    connected=st.integers(0, 20),
    recording=st.lists(st.floats(0, 100), max_size=4),
)
def test_no_window_stays_open_beyond_its_bounds(
    expected: int, arrivals: list[float], connected: int, recording: list[float]
) -> None:
    closing = closes_at(group(expected, arrivals), Standing(connected, tuple(recording)), BOUNDS)
    assert closing <= max([arrivals[-1] + 2.0, *(since + 30.0 for since in recording)])
