"""When removal runs by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.daemon.compiling.housekeeping import Housekeeping
from npgxd.oplib.removal import Removal

if TYPE_CHECKING:
    import pytest
    from conftest import Parts


def test_a_disk_that_others_fill_is_noticed_between_two_passes(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10**12]
    monkeypatch.setattr(Removal, "_free_bytes", lambda _removal: free[0])
    kept = Housekeeping(parts.config.store, parts.stores, parts.keyer, parts.coordinator)

    def passes(now: float) -> int:
        while kept.tick(now) == now:
            continue
        last = kept.describe(now)["last"]
        return 0 if last is None else 1

    assert passes(0.0) == 0
    free[0] = 0
    assert passes(5.0) == 0, "the disk is looked at now and then"
    assert passes(10.0) == 1
