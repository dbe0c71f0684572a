"""A shared root in which somebody else acts at the worst moment: writes, removes, replaces, fills the disk, takes our keys."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npgxd.oplib.shared_root import SharedRoot
from npgxd.oplib.shared_root_choice import short
from npgxd.oplib.shared_root_past import NAME, Past, since_boot
from npgxd.oplib.shared_root_place import LibraryError, NotWritable, check_root
from tests.oplib.shared_root_made import FOREIGN_KEY, NoSync, environment, foreign, index_of, our_keys
from tests.store.made import FAMILY, SOC, House
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npgxd.store.manifest import KernelManifest


class Meddling(NoSync):
    """Calls ``meddle`` right before the ``at``-th act; what that raises is what the disk says."""

    def __init__(self, at: int, meddle: Callable[[str, Path], None]) -> None:
        super().__init__()
        self.at = at
        self.meddle = meddle
        self.acts = 0

    def step(self, operation: str, path: Path) -> None:
        self.acts += 1
        if self.acts == self.at:
            self.meddle(operation, path)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "state", tmp_path / "scratch")
    yield made
    made.close()


@pytest.fixture
def kernels(house: House) -> list[KernelManifest]:
    return [house.publish(name, suffixes=("d0", "d1")) for name in ("a", "b", "c")]


def made(house: House, place: Path, kernels: list[KernelManifest]) -> Path:
    """A root with another installer's kernel and the first of ours."""
    place.mkdir()
    foreign(place)
    shared = SharedRoot(place, FAMILY, house.kernels.directory, disk=NoSync())
    shared.sync(kernels[:1])
    shared.close()
    return place


def read(root: Path) -> Reader:
    reader = Reader(SOC)
    report = reader.load_default(environment(root))
    assert not report.torn
    assert not reader.verify()
    return reader


def temporary(root: Path) -> list[Path]:
    return list(root.rglob(".npgxd-*"))


def each_act(house: House, tmp_path: Path, kernels: list[KernelManifest]) -> Iterator[tuple[Path, Meddling, SharedRoot]]:
    """One root for each act of an install beside others, a replacement of an entry and a removal."""
    for number in range(1, 500):
        root = made(house, tmp_path / f"{number}", kernels)
        disk = Meddling(number, lambda _operation, _path: None)
        shared = SharedRoot(root, FAMILY, house.kernels.directory, disk=disk, torn_s=0.0)
        yield root, disk, shared
        shared.close()
        shutil.rmtree(tmp_path / f"{number}", ignore_errors=True)
        if disk.acts < number:
            return
    raise AssertionError("it never ends")


def work(shared: SharedRoot, kernels: list[KernelManifest]) -> None:
    shared.sync(kernels[1:])
    shared.remove(shared.leftovers())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_whichever_act_the_disk_refuses_nothing_is_torn_and_the_next_try_completes_it(
    house: House, tmp_path: Path, kernels: list[KernelManifest], number: int
) -> None:
    told: set[tuple[type[LibraryError], str]] = set()

    def refuse(_operation: str, _path: Path) -> None:
        raise OSError(number, os.strerror(number))

    for root, disk, shared in each_act(house, tmp_path, kernels):
        disk.meddle = refuse
        try:
            work(shared, kernels)
        except LibraryError as error:
            told.add((type(error), error.hint.replace(str(root), "ROOT")))
        assert FOREIGN_KEY in read(root).selected
        work(shared, kernels)
        assert read(root).selected.keys() == {FOREIGN_KEY, *our_keys(kernels[1:])}
        assert temporary(root) == []
        assert len(list(root.glob("static_kernel/ai_core/npgxd_*"))) == 2
    assert {kind for kind, _hint in told} == {NotWritable if number == errno.EROFS else LibraryError}
    if number == errno.ENOSPC:
        assert {hint for _kind, hint in told} == {"free space on the file system of ROOT: npgxd tries again by itself"}


@pytest.mark.parametrize("how", ["tree", "root"])
def test_fc52_whenever_the_tree_is_removed_or_the_root_replaced_the_next_try_makes_it_anew(
    house: House, tmp_path: Path, kernels: list[KernelManifest], how: str
) -> None:
    for root, disk, shared in each_act(house, tmp_path, kernels):

        def remove(_operation: str, _path: Path, root: Path = root) -> None:
            shutil.rmtree(root / "static_kernel")
            if how == "root":
                root.rename(f"{root}.old")
                root.mkdir()

        disk.meddle = remove
        with contextlib.suppress(LibraryError):
            work(shared, kernels)
        done = disk.acts < disk.at
        assert done or not shared.intact() or read(root).selected.keys() == our_keys(kernels[1:])
        work(shared, kernels)
        assert read(root).selected.keys() == our_keys(kernels[1:]) | ({FOREIGN_KEY} if done else set())
        assert temporary(root) == []
        assert shared.intact()
        shutil.rmtree(f"{root}.old", ignore_errors=True)


def test_fc34_an_installer_that_writes_in_place_at_any_moment_loses_nothing_and_neither_do_we(
    house: House, tmp_path: Path, kernels: list[KernelManifest]
) -> None:
    for root, disk, shared in each_act(house, tmp_path, kernels):
        before = index_of(root).read_bytes()

        def install(_operation: str, _path: Path, root: Path = root, before: bytes = before) -> None:
            # It has read the index before we began, and so drops what we have put there since.
            index_of(root).write_bytes(before)
            foreign(root, "late", "Late/d0/x")

        disk.meddle = install
        work(shared, kernels)
        while shared.look().changed:
            work(shared, kernels)
        late = set() if disk.acts < disk.at else {"Late/d0/x"}
        assert read(root).selected.keys() == {FOREIGN_KEY, *late, *our_keys(kernels[1:])}


def test_files_of_kernels_that_have_left_are_mended_for_those_that_loaded_them(
    house: House, tmp_path: Path, kernels: list[KernelManifest]
) -> None:
    root = made(house, tmp_path / "opp", kernels)
    shared = SharedRoot(root, FAMILY, house.kernels.directory, disk=NoSync())
    shared.sync(kernels)
    loaded = read(root)
    shared.sync(kernels[1:])
    next((root / f"static_kernel/ai_core/npgxd_{short(kernels[0].id)}").rglob("*.o")).unlink()
    assert loaded.verify()
    assert shared.look().files == {kernels[0].id}
    shared.sync(kernels[1:])
    assert not loaded.verify()
    assert not shared.look().changed
    shutil.rmtree(root / "static_kernel")
    shared.sync(kernels[1:])
    assert {torn.path.name for torn in loaded.verify()} == {"theirs.o"}
    assert shared.remove(shared.leftovers()) == {short(kernels[0].id)}
    assert not shared.look().changed
    shared.close()


def test_an_installer_that_takes_one_of_our_keys_keeps_it_and_ours_is_back_when_it_goes(
    house: House, tmp_path: Path, kernels: list[KernelManifest]
) -> None:
    root = made(house, tmp_path / "opp", kernels)
    shared = SharedRoot(root, FAMILY, house.kernels.directory, disk=NoSync())
    shared.sync(kernels)
    loaded = read(root)
    before = index_of(root).read_bytes()
    foreign(root, "thief", kernels[0].simplified_keys[0])
    text = (
        index_of(root).read_text().replace('"Add"', '"MatMulV2_"').replace('"MatMulV2"', '"Add"').replace("MatMulV2_", "MatMulV2")
    )
    index_of(root).write_text(text)
    synced = shared.sync(kernels)
    assert set(synced.shadowed or {}) == {kernels[0].id}
    assert "thief" in str(read(root).selected[kernels[0].simplified_keys[0]].path)
    assert not loaded.verify(), "whoever loaded ours keeps it"
    index_of(root).write_bytes(before)
    assert shared.look().changed
    assert shared.sync(kernels).installed == {kernel.id for kernel in kernels}
    shared.close()


# ---- where it cannot be ----------------------------------------------------------------------------------------------


def test_fc55_a_root_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="does not exist"):
        check_root(tmp_path / "nowhere", FAMILY)


def test_a_tree_that_leads_to_where_the_runtime_would_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "opp").mkdir()
    (tmp_path / "disk.org").mkdir()
    (tmp_path / "opp/static_kernel").symlink_to(tmp_path / "disk.org")
    with pytest.raises(LibraryError, match=r"has '\.o' in 'disk\.org'"):
        check_root(tmp_path / "opp", FAMILY)


def test_a_root_whose_kernels_would_have_too_long_paths_is_refused(tmp_path: Path) -> None:
    path = tmp_path
    while len(str(path)) <= 3500:
        path /= "x" * 200
    path.mkdir(parents=True)
    with pytest.raises(LibraryError, match="3500 bytes"):
        check_root(path, FAMILY)
    (tmp_path / "short").symlink_to(path)
    with pytest.raises(LibraryError, match="3500 bytes"):
        check_root(tmp_path / "short", FAMILY)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_fc55_another_users_npgxd_has_been_there(house: House, kernels: list[KernelManifest]) -> None:
    code = f"""
import os, sys
from pathlib import Path
from npgxd.oplib.shared_root_place import NotWritable, check_root
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    check_root(Path(sys.argv[1]), {FAMILY!r})
except NotWritable as error:
    print(error)
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # where pytest's own directories are closed to others
        Path(place).chmod(0o755)
        root = made(house, Path(place) / "opp", kernels)
        for path in (root, *root.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o644)
        said = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=True).stdout
    assert ".npgxd.lock belongs to uid 0 (root), and npgxd runs as uid 65534" in said
    assert "give what it made" in said


def test_a_root_that_leads_elsewhere_now_is_worked_on_where_it_was(
    house: House, tmp_path: Path, kernels: list[KernelManifest]
) -> None:
    real = made(house, tmp_path / "9.0", kernels)
    (tmp_path / "latest").symlink_to(real)
    shared = SharedRoot(tmp_path / "latest", FAMILY, house.kernels.directory, disk=NoSync())
    shared.sync(kernels)
    (tmp_path / "other").mkdir()
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to(tmp_path / "other")
    assert not shared.look().changed, "nothing was done to those who loaded it"
    shared.sync(kernels[:1])
    assert read(real).selected.keys() == {FOREIGN_KEY, *our_keys(kernels[:1])}
    assert list((tmp_path / "other").iterdir()) == []
    shared.close()


# ---- the past --------------------------------------------------------------------------------------------------------


def test_who_had_a_key_before_is_known_over_a_restart_and_forgotten_after_a_reboot(house: House, tmp_path: Path) -> None:
    root = made(house, tmp_path / "opp", [house.publish("x")])
    old = house.publish("a", b"old")
    with_past = SharedRoot(root, FAMILY, house.kernels.directory, disk=NoSync(), past=Past(house.state, "boot"))
    with_past.sync([old])
    new = house.publish("a", b"new")
    with_past.sync([old, new])
    moment = since_boot()
    with_past.close()
    again = SharedRoot(root, FAMILY, house.kernels.directory, disk=NoSync(), past=Past(house.state, "boot"))
    assert again.earlier(new, 0.0) == short(old.id)
    assert again.earlier(new, moment) == ""
    elsewhere = SharedRoot(tmp_path, FAMILY, house.kernels.directory, past=Past(house.state, "boot"))
    assert elsewhere.earlier(new, 0.0) == ""
    rebooted = SharedRoot(root, FAMILY, house.kernels.directory, past=Past(house.state, "next boot"))
    assert rebooted.earlier(new, 0.0) == ""


def test_a_kill_while_a_key_changes_hands_is_remembered_as_if_it_had_done_so_at_the_next_start(house: House) -> None:
    key = ("Add", "k")
    first = Past(house.state, "boot")
    first.of_root("/opp")
    first.replacing({key: "before"})
    killed = since_boot()
    later = Past(house.state, "boot")
    later.of_root("/opp")
    assert later.earlier(key, killed, but="now") == "before"
    assert later.earlier(key, since_boot() + 1, but="now") == ""
    first.replaced(None)
    undone = Past(house.state, "boot")
    undone.of_root("/opp")
    assert undone.earlier(key, 0.0, but="now") == "", "nothing has come of it"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"boot": "boot"}', b'{"boot": "boot", "root": 1, "before": [1], "hurt": {}}']
)
def test_a_past_that_cannot_be_read_is_none(house: House, content: bytes) -> None:
    (house.state.path / NAME).write_bytes(content)
    assert Past(house.state, "boot").hurt_of(["lease"]) == ""


def test_only_leases_that_are_there_are_remembered_as_hurt(house: House) -> None:
    past = Past(house.state, "boot")
    past.hurt({"one": "said", "two": "said"}, {"one", "two"})
    past.hurt({"three": "more"}, {"two", "three"})
    again = Past(house.state, "boot")
    assert [again.hurt_of([lease]) for lease in ("one", "two", "three")] == ["", "said", "more"]
