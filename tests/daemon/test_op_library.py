"""The daemon's side of a shared op library whose root leads elsewhere from one moment to the next."""

from __future__ import annotations

import itertools
import select
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from npgxd.config import LibrarySection
from npgxd.daemon.keeping.stores import Stores
from npgxd.daemon.library.placing import Placed
from npgxd.daemon.library.roots import OpLibrary
from npgxd.daemon.sessions import Sessions
from npgxd.oplib.shared_root_choice import short
from npgxd.wire.states import Strategy
from tests.oplib.shared_root_made import environment, our_keys
from tests.store.made import FAMILY, SOC, House
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.store.manifest import KernelManifest

PATIENCE_S = 20.0


class Library:
    """An op library with its loop, and a toolchain whose root is reached by a link."""

    def __init__(self, place: Path) -> None:
        house = House(place / "state", place / "scratch")
        self.kernels = [house.publish(name) for name in ("a", "b")]
        house.close()
        self.stores = Stores.open(place / "state")
        self.link = place / "latest"
        self.keyer = SimpleNamespace(
            toolchain=SimpleNamespace(environment=environment(self.link), family=FAMILY, supports_install_path=False),
            moves=0,
            problem="",
            refresh=lambda _now: None,
            fingerprint=lambda _op: self.kernels[0].origin.fingerprint,
        )
        self.library = OpLibrary(LibrarySection(), self.stores, cast("Keyer", self.keyer), Sessions())
        self.now = 1.0

    def turn(self, later_s: float = 3.0) -> dict[str, Placed]:
        """One turn of the loop, and what became of the task that it began, if it began one."""
        self.now += later_s
        if self.library.tick(self.now, set) == float("inf"):
            assert select.select([self.library.fileno()], [], [], PATIENCE_S)[0], "the task ends"
        return self.library.take(self.now)

    def place(self, kernels: list[KernelManifest]) -> Placed:
        placed = self.library.place("round", tuple(kernel.id for kernel in kernels), "session", self.now)
        while placed is None:
            placed = self.turn().get("round")
        return placed

    def damage(self) -> int:
        described: dict[str, Any] = self.library.describe()["damage"]  # type: ignore[assignment]
        return int(described["count"])

    def close(self) -> None:
        self.library.close()
        self.stores.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Library]:
    for name in ("9.0", "9.0.1"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "9.0")
    made = Library(tmp_path)
    yield made
    made.close()


def keys(root: Path) -> set[str]:
    reader = Reader(SOC)
    assert not reader.load_default(environment(root)).torn
    assert not reader.verify()
    return set(reader.selected)


@pytest.mark.parametrize("how", ["another root", "another root, and the old one is gone"])
def test_fc52_a_root_that_leads_elsewhere_gets_what_is_needed_and_damage_is_told_only_where_there_is_some(
    opened: Library, tmp_path: Path, how: str
) -> None:
    assert opened.place(opened.kernels) == Placed(Strategy.SHARED_ROOT, opened.library.describe()["marker"])  # type: ignore[arg-type]
    opened.link.unlink()
    opened.link.symlink_to(tmp_path / "9.0.1")
    if how != "another root":
        (tmp_path / "9.0").rename(tmp_path / "moved")
    assert opened.place(opened.kernels[:1]).problem == ""
    assert opened.damage() == (how != "another root")
    assert keys(tmp_path / "9.0.1") >= our_keys(opened.kernels[:1])
    left = tmp_path / ("9.0" if how == "another root" else "moved")
    assert keys(left) == our_keys(opened.kernels), "who loaded them there still needs them"


def test_fc52_damage_is_noticed_within_5_s(opened: Library, tmp_path: Path) -> None:
    assert not opened.place(opened.kernels).problem
    opened.turn()
    begun = opened.now
    next((tmp_path / "9.0").glob("static_kernel/ai_core/npgxd_*/*/*/*.o")).unlink()
    while not opened.damage():
        opened.turn(later_s=0.1)
    assert opened.now - begun <= 5.0


def test_the_toolchain_is_looked_at_every_20_s_at_least_while_the_root_holds_kernels(opened: Library) -> None:
    looked = [opened.now]
    opened.keyer.refresh = looked.append
    assert not opened.place(opened.kernels).problem
    while opened.now < 50.0:  # before they leave it
        opened.turn(later_s=0.5)
    assert max(after - before for before, after in itertools.pairwise([*looked, opened.now])) <= 20.0


def test_a_kernel_that_could_not_be_brought_in_is_tried_again(opened: Library, tmp_path: Path) -> None:
    bad = opened.kernels[1]
    assert not opened.place(opened.kernels).problem
    member = next(path for path in opened.stores.kernels.directory(bad.id).glob("*.o"))
    good = member.read_bytes()
    member.unlink()
    member.write_bytes(b"damaged")
    next((tmp_path / "9.0").glob(f"static_kernel/ai_core/npgxd_{short(bad.id)}/*/*/*.o")).unlink()
    placed = opened.place(opened.kernels)
    assert placed.incomplete
    assert "other bytes" in placed.problem
    member.write_bytes(good)
    opened.now += 10.0
    while keys(tmp_path / "9.0") != our_keys(opened.kernels):
        opened.turn()
    assert not opened.place(opened.kernels).problem
