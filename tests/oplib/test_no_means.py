"""What cannot be looked at for want of descriptors is not damaged: no view, no op library and no ``verify`` takes it for that."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import StoreError
from npgxd.oplib.checking import Checking
from npgxd.oplib.pins import Pins
from npgxd.oplib.recovery import recover
from npgxd.oplib.shared_root import SharedRoot
from npgxd.oplib.shared_root_place import LibraryError
from tests.oplib.shared_root_made import NoSync
from tests.store.made import FAMILY, digest, names, no_descriptors, refused, round_entry

if TYPE_CHECKING:
    from pathlib import Path

    from tests.oplib.conftest import OpLibrary


def test_a_view_is_not_made_a_second_time(oplib: OpLibrary) -> None:
    kernel = oplib.house.publish("a")
    view = oplib.views.assemble([kernel])
    oplib.open()
    with refused("view.json"), pytest.raises(StoreError, match="Too many open files"):
        oplib.views.assemble([kernel])
    assert oplib.views.assemble([kernel]) == view
    assert oplib.views.count() == 1


@pytest.mark.parametrize("part", [".o", "manifest.json", "view.json", ".run", "/pins/", ".round", "/artifacts/"])
def test_verify_says_that_it_cannot_look_and_mends_nothing(oplib: OpLibrary, part: str) -> None:
    house = oplib.house
    view = oplib.view("a")
    pins = Pins(house.state)
    pins.put("a", [house.kernels.get(view.kernels[0]).key], 1.0)
    house.rounds.accept(round_entry())
    (house.state.staging / "p").write_bytes(b"run")
    house.packages.publish(house.state.staging / "p", hashlib.sha256(b"run").hexdigest(), "static_kernel_1.run")
    staged = house.artifacts.stage()
    house.artifacts.extend(staged, b"entry")
    house.artifacts.publish(staged, key=digest("k"), scope="1000", uid=1000, label="f", meta={}, made_at=1.0)
    checking = Checking(
        house.state, house.catalog, oplib.views, oplib.leases, house.packages, house.rounds, pins, house.artifacts
    )

    def verify() -> list[object]:
        steps = checking.check(repair=True)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return [*end.value.problems]

    with refused(part), pytest.raises(StoreError, match="Too many open files"):
        verify()
    assert verify() == []
    assert names(house.state.quarantine) == []


def test_a_start_that_cannot_look_takes_no_kernel_for_missing(oplib: OpLibrary) -> None:
    kernel = oplib.house.publish("a")
    oplib.house.catalog.drop_kernel(kernel.id)
    with refused("manifest.json"), pytest.raises(StoreError, match="Too many open files"):
        recover(oplib.house.state, oplib.views, oplib.leases)
    assert recover(oplib.house.state, oplib.views, oplib.leases).adopted == 1
    assert oplib.house.kernels.find(kernel.key) == kernel


def test_an_op_library_is_neither_damaged_nor_made_anew(oplib: OpLibrary, tmp_path: Path) -> None:
    kernel = oplib.house.publish("a")
    (tmp_path / "opp").mkdir()
    shared = SharedRoot(tmp_path / "opp", FAMILY, oplib.house.kernels.directory, disk=NoSync())
    marker = shared.sync([kernel]).marker
    for path in sorted((tmp_path / "opp").rglob("*")):  # as if somebody had looked after their times
        os.utime(path)
    with no_descriptors():
        assert not shared.intact([kernel.id])
        with pytest.raises(LibraryError, match="Too many open files"):
            shared.look()
    assert not shared.look().files
    assert shared.sync([kernel]).marker == marker
    shared.close()
