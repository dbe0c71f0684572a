"""State directories of other formats: every released one opens and hits, and an older one is migrated whole or not at all."""

from __future__ import annotations

import logging
import tarfile
from typing import TYPE_CHECKING, ClassVar

import pytest

from npgxd.errors import NpgxError, StateRefused, StoreError
from npgxd.oplib.leases import Leases
from npgxd.oplib.pins import Pins
from npgxd.oplib.recovery import recover
from npgxd.oplib.views import Views
from npgxd.store.disk import DISK, Disk
from npgxd.store.migrate import Migration, migrate
from npgxd.store.state import FORMAT, StateDirectory
from tests.crash.fixtures.make_format1 import FIXTURE, KERNELS, PACKAGE
from tests.crash.ground import AFTER, Ground, listing, verified
from tests.crash.looking import SHOWN, look, look_at_two_lives
from tests.crash.scenarios import Scenario
from tests.store.made import House, digest, making, names, round_entry
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

MOST_BYTES = 100 * 1024


@pytest.mark.parametrize("lose_catalog", [False, True])
def test_a_state_directory_of_format_1_opens_and_hits(tmp_path: Path, *, lose_catalog: bool) -> None:
    assert FIXTURE.stat().st_size < MOST_BYTES
    with tarfile.open(FIXTURE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # Python 3.11.4 and later have it
        archive.extractall(tmp_path)  # noqa: S202 -- it is of this repository
    if lose_catalog:
        (tmp_path / "state" / "catalog.sqlite").unlink()
    house = House(tmp_path / "state", tmp_path / "scratch")
    views = Views(house.state, house.kernels, AFTER)
    assert recover(house.state, views, Leases(house.state, AFTER)).problems == ()
    found = house.kernels.find_many([digest(name) for name in KERNELS])
    assert len(found) == len(KERNELS)
    for name, content in KERNELS.items():
        manifest = house.kernels.verify(found[digest(name)].id)
        objects = [member.name for member in manifest.members if member.name.endswith(".o")]
        assert all((house.kernels.directory(manifest.id) / name).read_bytes().startswith(content) for name in objects)
    reader = Reader("Ascend910B3")
    assert not reader.load(views.assemble(list(found.values())).path).torn
    assert not reader.verify()
    assert len(reader.selected) == 4
    assert house.packages.path(making().package).read_bytes() == PACKAGE
    assert house.rounds.pending() == [round_entry()]
    assert Pins(house.state).keys() == {digest("a")}
    assert not list(house.state.quarantine.iterdir())
    assert verified(house, views, Leases(house.state, AFTER)) == []
    assert house.packages.name(making().package) == "static_kernel_20260101.run"
    house.close()


# ---- an older format, made up: kernels lie in ``objects/`` without shelves, and there is a file that nobody needs any more ----


def from_0(old: Path, new: Path, disk: Disk) -> Collection[str]:
    disk.make_directory(new / "kernels")
    for kernel in sorted((old / "objects").iterdir()):
        shelf = new / "kernels" / kernel.name[:2]
        disk.make_directory(shelf, exist_ok=True)
        disk.make_directory(shelf / kernel.name)
        for member in sorted(kernel.iterdir()):
            disk.link_or_copy(member, shelf / kernel.name / member.name)
    return ["objects", "NOTES"]


REGISTRY = {0: Migration(FORMAT, from_0)}


class Format0(Scenario):
    """A state directory of format 0 is opened by this npgxd."""

    known: ClassVar = {"a": {b"A"}, "b": {b"B"}, "c": {b"C"}}

    def prepare(self, root: Path) -> None:
        ground = Ground(root)
        ground.publish({name: min(contents) for name, contents in self.known.items()})
        ground.house.rounds.accept(round_entry())
        ground.close()
        state = root / "state"
        (state / "objects").mkdir()
        for shelf in (state / "kernels").iterdir():
            for kernel in shelf.iterdir():
                kernel.rename(state / "objects" / kernel.name)
            shelf.rmdir()
        (state / "kernels").rmdir()
        (state / "catalog.sqlite").unlink()
        (state / "NOTES").write_text("format 0 had notes")
        (state / "FORMAT").write_text("npgxd-state 0\n")

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        StateDirectory.open(root / "state", migrations=REGISTRY).close()
        mark("migrated")

    def check(self, root: Path, marks: frozenset[str]) -> list[str]:
        state = root / "state"
        said = (state / "FORMAT").read_text()
        problems = []
        if said == "npgxd-state 0\n":
            problems += ["not the whole old tree"] if len(list((state / "objects").rglob("*.o"))) != 3 else []
            problems += ["migrated, and old again"] if "migrated" in marks else []
        elif said != f"npgxd-state {FORMAT}\n":
            problems.append(f"FORMAT says {said!r}")
        try:
            StateDirectory.open(state, migrations=REGISTRY).close()
        except NpgxError as error:
            return [*problems, f"it cannot be migrated: {error}"]
        left = {"objects", "NOTES", "migration"} & set(names(state))
        return problems + [f"left: {name}" for name in left] + super().check(root, marks)

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        problems = [name for name in self.known if ground.content(name) is None]
        return problems + ([] if ground.house.rounds.pending() == [round_entry()] else ["the round"])


def test_power_loss_at_any_moment_of_a_migration_leaves_the_old_state_or_the_new_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    looked = look(Format0(), "format 0", monkeypatch, per_moment=12)
    assert looked.strangers == []
    assert looked.told.states > 50
    assert not looked.wrong, "\n".join(looked.wrong[:SHOWN])


def test_a_kill_at_any_moment_of_a_migration_and_power_loss_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    looked = look_at_two_lives(Format0(), "format 0", monkeypatch, per_moment=2, stride=7)
    assert not looked.wrong, "\n".join(looked.wrong[:SHOWN])


def test_a_format_without_a_way_to_ours_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    Format0().prepare(tmp_path)
    before = listing(tmp_path)
    with pytest.raises(StateRefused, match="format 0"):
        StateDirectory.open(tmp_path / "state")
    with pytest.raises(StateRefused, match="format 0"):
        StateDirectory.open(tmp_path / "state", migrations={0: Migration(FORMAT + 1, from_0)})
    assert listing(tmp_path) == before


def test_a_migration_that_fails_leaves_the_old_state_and_is_begun_anew(tmp_path: Path) -> None:
    Format0().prepare(tmp_path)
    before = listing(tmp_path)

    def fail(_old: Path, new: Path, disk: Disk) -> Collection[str]:
        disk.make_directory(new / "kernels")
        raise StoreError("no space")

    with pytest.raises(StoreError, match="no space"):
        StateDirectory.open(tmp_path / "state", migrations={0: Migration(FORMAT, fail)})
    assert {entry for entry in listing(tmp_path) if "state/migration" not in entry[0]} == before
    assert Format0().check(tmp_path, frozenset()) == []


def test_two_steps_are_taken_one_after_the_other_and_a_step_may_not_touch_what_is_not_its_own(tmp_path: Path) -> None:
    Format0().prepare(tmp_path)
    (tmp_path / "state" / "FORMAT").write_text("npgxd-state 7\n")

    def rename(old: Path, new: Path, disk: Disk) -> Collection[str]:
        disk.link_or_copy(old / "NOTES", new / "REMARKS")
        return ["NOTES"]

    place = tmp_path / "state"
    steps = {7: Migration(8, rename), 8: Migration(9, lambda _old, _new, _disk: ["REMARKS"])}
    migrate(place, 7, 9, DISK, steps)
    assert (place / "FORMAT").read_text() == "npgxd-state 9\n"
    assert not {"NOTES", "REMARKS", "migration"} & set(names(place))
    with pytest.raises(StoreError, match="FORMAT"):
        migrate(place, 9, 10, DISK, {9: Migration(10, lambda _old, _new, _disk: ["FORMAT"])})
    assert (place / "FORMAT").read_text() == "npgxd-state 9\n"
