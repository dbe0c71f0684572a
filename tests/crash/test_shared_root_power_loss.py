# ruff: noqa: T201 -- a sample says how much of the whole it is (pytest -rP shows it)
"""Power loss at every step of the whole shared-root strategy: whoever loads the root sees nothing torn, and a restart completes it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.oplib.shared_root import SharedRoot
from npgxd.oplib.shared_root_files import KernelFiles
from npgxd.oplib.shared_root_total import TotalFile
from npgxd.store.disk import Disk
from tests.crash.looking import SHOWN, look, look_at_two_lives
from tests.crash.shared_root_scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

PER_MOMENT = int(os.environ.get("NPGXD_CRASH_STATES", "12"))
FEWEST_STATES = 10


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_fc07_whatever_a_power_loss_leaves_of_a_shared_root_nothing_is_torn_and_a_restart_completes_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = look(SCENARIOS[name](), name, monkeypatch, per_moment=PER_MOMENT)
    told = looked.told
    print(f"{name}: {told.states} states at {told.moments} moments, {told.exhaustive} of them in full; {told.legal:.3g} allowed")
    assert looked.strangers == [], "every act on the root goes through the disk module"
    assert told.states >= FEWEST_STATES
    assert not looked.wrong, "\n".join((f"{len(looked.wrong)} of {told.states} states", *looked.wrong[:SHOWN]))


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_kill_then_a_restart_then_power_loss_and_what_the_restart_built_on_is_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stride = 1 if PER_MOMENT > 12 else 5
    looked = look_at_two_lives(SCENARIOS[name](), name, monkeypatch, per_moment=max(2, PER_MOMENT // 8), stride=stride)
    print(f"{name}: {looked.told.states} states at {looked.told.moments} moments, killed before each {stride}. act")
    assert looked.told.states >= FEWEST_STATES
    assert not looked.wrong, "\n".join((f"{len(looked.wrong)} of {looked.told.states} states", *looked.wrong[:SHOWN]))


def index_first(patch: pytest.MonkeyPatch) -> None:
    """The index names what is not there yet."""
    place, replace = KernelFiles.place, TotalFile.replace
    asked: list[tuple[KernelFiles, list[Any]]] = []

    def later(files: KernelFiles, manifests: Iterable[Any]) -> dict[str, str]:
        asked.append((files, list(manifests)))
        return {}

    def replaced(total: TotalFile, decide: Any) -> Any:
        told = replace(total, decide)
        while asked:
            place(*asked.pop(0))
        return told

    patch.setattr(KernelFiles, "place", later)
    patch.setattr(TotalFile, "replace", replaced)


def no_fsync(method: str, wanted: Callable[[Path], bool]) -> Callable[[pytest.MonkeyPatch], None]:
    honest = getattr(Disk, method)
    return lambda patch: patch.setattr(Disk, method, lambda disk, path: honest(disk, path) if not wanted(path) else None)


def not_at_the_lock(patch: pytest.MonkeyPatch) -> None:
    """What an earlier life left done is built on as it is."""
    own, fsync = SharedRoot._own, Disk.fsync_directory

    def without(root: SharedRoot) -> None:
        with patch.context() as inner:
            inner.setattr(Disk, "fsync_directory", lambda _disk, _path: None)
            own(root)
        assert Disk.fsync_directory is fsync

    patch.setattr(SharedRoot, "_own", without)


def no_force_and_not_at_the_lock(patch: pytest.MonkeyPatch) -> None:
    not_at_the_lock(patch)
    patch.setattr(TotalFile, "_force", lambda *_: None)


BREAKS: dict[str, tuple[str, bool, Callable[[pytest.MonkeyPatch], None]]] = {
    "the index first": ("beside-others", False, index_first),
    "no fsync of what comes in": ("beside-others", False, no_fsync("fsync_tree", lambda _path: True)),
    "no fsync of the tree above": ("beside-others", False, no_fsync("fsync_directory", lambda path: path.name == "ai_core")),
    "no fsync of a first tree": ("empty", False, no_fsync("fsync_directory", lambda path: path.name == "opp")),
    "no fsync of the index's directory": ("removed", False, no_fsync("fsync_directory", lambda path: path.name == "ascend910b")),
    "an index that others wrote is taken for lasting": (
        "dropped-by-others",
        False,
        lambda patch: patch.setattr(TotalFile, "_force", lambda *_: None),
    ),
    "an index of an earlier life is taken for lasting": (
        "removed",
        True,
        no_force_and_not_at_the_lock,
    ),
    "kernels of an earlier life are taken for lasting": ("replaced", True, not_at_the_lock),
    "mended files of an earlier life are taken for lasting": (
        "damaged",
        True,
        no_fsync("fsync_directory", lambda path: path.name == "MatMulV2"),
    ),
}


@pytest.mark.parametrize("what", sorted(BREAKS))
def test_a_broken_promise_of_the_shared_root_is_found_out(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, two_lives, broken = BREAKS[what]
    broken(monkeypatch)
    if two_lives:
        assert look_at_two_lives(SCENARIOS[name](), what, monkeypatch, per_moment=4, stride=2, until_wrong=True).wrong
    else:
        assert look(SCENARIOS[name](), what, monkeypatch, per_moment=12, until_wrong=True).wrong
