# ruff: noqa: T201 -- a sample says how much of the whole it is (pytest -rP shows it)
"""Power loss at every step: whatever the file system may then hold, nothing is torn, and nothing acknowledged is lost."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from tests.crash.looking import SHOWN, look
from tests.crash.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable

PER_MOMENT = int(os.environ.get("NPGXD_CRASH_STATES", "24"))
"""States looked at for each moment of a scenario at most; all of them where there are no more."""
FEWEST_STATES = 10


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
