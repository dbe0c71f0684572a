# ruff: noqa: T201 -- a sample says how much of the whole it is (pytest -rP shows it)
"""Power loss at every step: whatever the file system may then hold, nothing is torn, and nothing acknowledged is lost."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from tests.crash.looking import SHOWN, look, look_at_two_lives
from tests.crash.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable

PER_MOMENT = int(os.environ.get("NPGXD_CRASH_STATES", "12"))
"""States looked at for each moment of a scenario at most; all of them where there are no more."""
FEWEST_STATES = 10
STRIDES = {"creation": 3, "publish": 5, "cold-round": 11, "removal": 3, "journal": 2, "package": 2, "artifacts": 5}
"""In long scenarios every few acts are enough for each run of the suite."""


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_fc07_whatever_a_power_loss_leaves_nothing_is_torn_and_nothing_acknowledged_is_lost(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    caplog.set_level(logging.CRITICAL)  # each state is warned about, which is right, and too much to read here
    looked = look(SCENARIOS[name](), name, monkeypatch, per_moment=PER_MOMENT)
    told = looked.told
    record_property("states", told.states)
    print(f"{name}: {told.states} states at {told.moments} moments, {told.exhaustive} of them in full; {told.legal:.3g} allowed")
    assert looked.strangers == [], "every act on the state goes through the disk module"
    assert told.states >= FEWEST_STATES
    assert not looked.wrong, "\n".join((f"{len(looked.wrong)} of {told.states} states", *looked.wrong[:SHOWN]))


@pytest.mark.parametrize("name", ["creation", "publish", "journal", "cold-round", "removal", "package", "artifacts"])
def test_a_kill_then_a_start_then_power_loss_and_what_was_acknowledged_after_the_start_is_there(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    stride = 1 if PER_MOMENT > 12 else STRIDES.get(name, 1)
    looked = look_at_two_lives(SCENARIOS[name](), name, monkeypatch, per_moment=max(2, PER_MOMENT // 8), stride=stride)
    print(f"{name}: {looked.told.states} states at {looked.told.moments} moments, killed before each {stride}. act")
    assert looked.told.states >= FEWEST_STATES
    assert not looked.wrong, "\n".join((f"{len(looked.wrong)} of {looked.told.states} states", *looked.wrong[:SHOWN]))
