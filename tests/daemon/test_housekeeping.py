"""When removal runs by itself."""

from __future__ import annotations

import math
import select
from dataclasses import replace
from typing import TYPE_CHECKING

from npgxd.daemon.compiling.housekeeping import Housekeeping
from npgxd.oplib.removal import Removal
from tests.daemon.test_coordinator import ready
from tests.daemon.test_publishing import PATIENCE_S, Slow

if TYPE_CHECKING:
    import pytest
    from conftest import Parts

LATER = 10_000.0
"""Nobody waits for what was told so long ago."""


def test_a_disk_that_others_fill_is_noticed_between_two_passes(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10**12]
    monkeypatch.setattr(Removal, "_free_bytes", lambda _removal: free[0])
    kept = Housekeeping(parts.config.store, parts.stores, parts.keyer, parts.coordinator)

    def passes(now: float) -> int:
        after_all_passes(kept, now)
        last = kept.describe(now)["last"]
        return 0 if last is None else 1

    assert passes(0.0) == 0
    free[0] = 0
    assert passes(5.0) == 0, "the disk is looked at now and then"
    assert passes(10.0) == 1


def test_a_toolchain_that_changes_while_a_pass_is_under_way_is_looked_at_by_another_one(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one found to be retired may have been found before the change."""
    passes: list[object] = []
    real = Removal.collect
    monkeypatch.setattr(Removal, "collect", lambda *given, **named: passes.append(given) or real(*given, **named))
    kept = Housekeeping(parts.config.store, parts.stores, parts.keyer, parts.coordinator)
    kept.tick(0.0)
    kept.request(1.0)
    parts.keyer.moves += 1
    assert after_all_passes(kept, 1.0) > 1.0
    assert len(passes) == 2
    kept.request(2.0)
    assert after_all_passes(kept, 2.0) > 2.0
    assert len(passes) == 3, "without a change there is one"


def test_while_files_that_are_removed_wait_for_the_disk_the_loop_rests_and_others_are_answered(parts: Parts) -> None:
    limits = replace(parts.config.store, max_gb=1e-9, recent_s=0)
    kept = Housekeeping(limits, parts.stores, parts.keyer, parts.coordinator)
    ready(parts, 16)
    parts.coordinator.rounds.clear()
    disk = parts.stores.state.disk = Slow(parts.stores.state.staging)
    task = kept.request(LATER)
    assert after_all_passes(kept, LATER) == math.inf
    assert disk.asked.wait(PATIENCE_S)
    assert parts.submit(parts.session(), bad=b"x", now=LATER).result is not None
    disk.go.set()
    while not task.ended:
        assert select.select([parts.stores.beside], [], [], PATIENCE_S)[0], "the loop is woken when it can go on"
        parts.stores.beside.rest()
        after_all_passes(kept, LATER)
    assert task.result is not None
    assert task.result.removed == 1
    assert parts.stores.beside.idle(PATIENCE_S)
    assert list(parts.stores.state.staging.iterdir()) == []


def after_all_passes(kept: Housekeeping, now: float) -> float:
    """When there is something to do next, after all that is due now."""
    while (due := kept.tick(now)) == now:
        continue
    return due
