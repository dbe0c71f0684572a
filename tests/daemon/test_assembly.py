"""What each process has loaded, as the daemon accounts for it."""

from __future__ import annotations

import shutil


def test_what_a_process_loaded_is_known_although_the_store_has_it_no_more(parts) -> None:
    taken = parts.submit(parts.session(), 16, 32)
    parts.drive(lambda: taken.result is not None)
    view = taken.result.view
    gone = next(settled.kernel for settled in taken.settlements.values())
    before, after = parts.session(), parts.session()
    parts.coordinator.loaded(before, view)
    parts.stores.kernels.forget([gone])
    shutil.rmtree(parts.stores.kernels.directory(gone))
    parts.coordinator.loaded(after, view)
    assert after.loaded.keys() == before.loaded.keys()
    assert gone in after.loaded.values()
