"""The soak's verdict on memory: what levels off is flat, what grows faster than bounded histories may fill is told."""

from __future__ import annotations

import random

import pytest

from tools.bench.soak import _growth, _Samples, errors_told

SAMPLES = 120


def samples(mb_each: float, *, rounds: int = 100) -> _Samples:
    """Ten minutes, a sample each 5 s: RSS after the first half grows by so much from one to the next, as noisily as it does."""
    chance = random.Random(1)
    taken = _Samples()
    for number in range(SAMPLES):
        taken.at.append(5.0 * number)
        grown = mb_each * max(0, number - SAMPLES // 2)
        taken.rss.append(40 + min(30, number) + grown + chance.uniform(-0.3, 0.3))
        taken.rounds.append(rounds * number)
    return taken


def test_what_levels_off_is_flat() -> None:
    assert _growth(samples(0.0)).startswith("flat: ")


@pytest.mark.parametrize("mb_each", [0.1, 0.5])
def test_what_grows_without_end_is_told(mb_each: float) -> None:
    assert _growth(samples(mb_each)).startswith("GROWS: ")


def test_histories_that_are_not_full_may_still_fill() -> None:
    assert _growth(samples(0.05, rounds=50)).startswith("flat: "), "the trace is full after 4000 rounds"
    assert _growth(samples(0.05, rounds=500)).startswith("GROWS: ")


def test_each_kind_of_error_is_told_once() -> None:
    lines = [
        "2026-11-29 23:00:00,001 npgxd ERROR cannot tidy up after job 0a1b2c3d4e5f6071: it is gone",
        "2026-11-29 23:00:01,001 npgxd INFO fine",
        "2026-11-29 23:00:02,001 npgxd ERROR cannot tidy up after job ffffffffffffffff: it is gone",
        "2026-11-29 23:00:03,001 npgxd ERROR counters are not kept: full",
    ]
    told = errors_told("\n".join(lines))
    assert told == "cannot tidy up after job 0a1b2c3d4e5f6071: it is gone (2x); counters are not kept: full"
    assert errors_told("all is well") == "none"
