from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import StoreError
from npgxd.store.disk import Disk
from npgxd.store.staging import stage_kernel
from tests.store.made import FAMILY, SOC, digest, files, making, names, origin
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from npgxd.oplib.views import View
    from tests.oplib.conftest import OpLibrary


def load(view: View | Path) -> Reader:
    """What the (simulated) runtime finds there; nothing may be torn."""
    reader = Reader(SOC)
    report = reader.load(getattr(view, "path", view))
    assert report.torn == ()
    assert reader.verify() == ()
    return reader


def test_a_view_selects_exactly_the_kernels_it_was_made_of(oplib: OpLibrary) -> None:
    oplib.house.publish("not asked for")
    view = oplib.view("a", "b", "c")
    reader = load(view)
    assert set(reader.selected) == {f"MatMulV2/d0/{name}" for name in "abc"}
    assert view.shadowed == ()
    assert len(view.kernels) == 3
    assert oplib.views.kernels_of(view.digest) == view.kernels
    assert view.digest in oplib.views
    assert view.path == oplib.house.state.views / view.digest
    assert oplib.views.count() == 1


def test_the_layout_on_the_disk_is_the_documented_one(oplib: OpLibrary) -> None:
    view = oplib.view("a")
    kernel = view.kernels[0]
    ai_core = view.path / "static_kernel" / "ai_core"
    index = json.loads((ai_core / "config" / FAMILY / "binary_info_config.json").read_text())
    bin_path = index["MatMulV2"]["staticList"][0]["binPath"]
    stem = bin_path.rpartition("/")[2].removesuffix(".o")
    assert bin_path == f"kernels_0/{FAMILY}/MatMulV2/{stem}.o"
    members = {path.name for path in (ai_core / bin_path).parent.iterdir()}
    assert members == {f"{stem}.o", f"{stem}.json"}
    stored = oplib.house.kernels.directory(kernel)
    assert {(ai_core / bin_path).stat().st_ino, (ai_core / bin_path).with_suffix(".json").stat().st_ino} == {
        path.stat().st_ino for path in stored.iterdir() if path.name != "manifest.json"
    }
    assert str(oplib.house.path) not in (view.path / "view.json").read_text() + json.dumps(index)


def test_fc58_a_view_is_readable_whatever_the_umask(oplib: OpLibrary) -> None:
    old = os.umask(0o077)
    try:
        view = oplib.view("a", "b")
    finally:
        os.umask(old)
    found = [view.path, *view.path.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o755}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o644}


def test_equal_requests_share_a_view_and_others_do_not(oplib: OpLibrary) -> None:
    a, b, c = (oplib.house.publish(name) for name in "abc")
    first = oplib.views.assemble([a, b])
    inode = first.path.stat().st_ino
    assert oplib.views.assemble([b, a, a]) == first
    oplib.open()
    assert oplib.views.assemble([a, b]) == first
    assert first.path.stat().st_ino == inode
    assert oplib.views.assemble([a, b, c]).digest != first.digest
    assert oplib.views.count() == 2
    assert names(oplib.house.state.staging) == []


def test_one_entry_per_simplified_key_and_the_losers_are_named(oplib: OpLibrary) -> None:
    shared = [oplib.house.publish(name, name.encode(), keys=("same",)) for name in ("x", "y", "z")]
    alone = oplib.house.publish("alone")
    view = oplib.views.assemble([*shared, alone])
    winner = min(shared, key=lambda manifest: manifest.key)
    assert set(view.shadowed) == {manifest.key for manifest in shared} - {winner.key}
    assert set(view.kernels) == {winner.id, alone.id}
    reader = load(view)
    assert set(reader.selected) == {"same", "MatMulV2/d0/alone"}
    assert reader.selected["same"].open() == next(oplib.house.kernels.directory(winner.id).glob("*.o")).read_bytes()
    assert oplib.views.assemble(list(reversed([*shared, alone]))) == view


def test_kernels_whose_files_have_one_name_lie_apart(oplib: OpLibrary) -> None:
    kernels = []
    for name in ("x", "y", "z"):
        target = oplib.house.state.staging / name
        made = files(oplib.house.scratch / name, "one name", name.encode(), keys=(f"key {name}",))
        stage_kernel(target, origin(name), making(), made)
        kernels += oplib.house.kernels.publish([target])
    view = oplib.views.assemble(kernels)
    selected = load(view).selected
    assert {key: kernel.open() for key, kernel in selected.items()} == {f"key {n}": f"{n}d0".encode() for n in ("x", "y", "z")}
    assert len({kernel.path.name for kernel in selected.values()}) == 1
    oplib.open()
    assert oplib.views.assemble(kernels) == view


def test_one_of_several_simplified_keys_is_enough_to_collide(oplib: OpLibrary) -> None:
    first, second = sorted(
        (oplib.house.publish("x", b"x", keys=("k1", "k2")), oplib.house.publish("y", b"y", keys=("k2", "k3"))),
        key=lambda m: m.key,
    )
    view = oplib.views.assemble([first, second])
    assert view.shadowed == (second.key,)
    assert set(load(view).selected) == set(first.simplified_keys)


def test_the_same_kernel_under_the_same_name_shadows_nothing(oplib: OpLibrary) -> None:
    """Without -f, op_compiler makes d0 and d1 of each record, so two records that differ in that flag alone get equal kernels."""
    made = files(oplib.house.scratch / "both", "both", b"x", suffixes=("d0", "d1"))
    for name in ("true", "false"):
        stage_kernel(oplib.house.state.staging / name, origin(name), making(), made)
    pair = oplib.house.kernels.publish([oplib.house.state.staging / name for name in ("true", "false")])
    view = oplib.views.assemble(pair)
    assert view.shadowed == ()
    assert len(load(view).selected) == 2


def test_kernels_of_two_soc_families_or_none_make_no_view(oplib: OpLibrary) -> None:
    stage_kernel(
        oplib.house.state.staging / "k", origin("x", family="ascend910_93"), making(), files(oplib.house.scratch / "x", "x", b"x")
    )
    other = oplib.house.kernels.publish([oplib.house.state.staging / "k"])[0]
    for kernels in ([], [oplib.house.publish("a"), other]):
        with pytest.raises(StoreError):
            oplib.views.assemble(kernels)
    assert oplib.views.count() == 0
    assert names(oplib.house.state.staging) == []


def test_fc14_a_view_still_loads_after_scratch_is_deleted_and_the_state_is_moved(oplib: OpLibrary, tmp_path: Path) -> None:
    view = oplib.view("a", "b")
    shutil.rmtree(oplib.house.scratch)
    oplib.house.close()
    (tmp_path / "state").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    oplib.house.path = tmp_path / "link"
    oplib.house.open()
    oplib.open()
    assert len(load(tmp_path / "link" / "views" / view.digest).selected) == 2
    assert oplib.views.assemble([oplib.house.kernels.get(kernel) for kernel in view.kernels]).digest == view.digest


def test_a_request_without_hard_links_is_served_by_copies(oplib: OpLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    kernels = [oplib.house.publish(name) for name in "ab"]
    monkeypatch.setattr(os, "link", refuse)
    view = oplib.views.assemble(kernels)
    monkeypatch.undo()
    assert len(load(view).selected) == 2
    oplib.open()
    assert oplib.views.assemble(kernels) == view


def test_a_view_that_cannot_be_finished_is_not_there_at_all(oplib: OpLibrary) -> None:
    class Full(Disk):
        def step(self, operation: str, path: Path) -> None:
            if operation == "write" and staged in path.parents and path.parent.name == FAMILY:
                raise OSError(errno.ENOSPC, "No space left on device")

    staged = oplib.house.state.staging
    manifest = oplib.house.publish("a")
    oplib.house.state.disk = Full()
    with pytest.raises(StoreError, match="No space left") as caught:
        oplib.views.assemble([manifest])
    assert "full" in caught.value.hint
    assert oplib.views.count() == 0
    assert names(staged) == []
    oplib.house.state.disk = Disk()
    assert len(load(oplib.views.assemble([manifest])).selected) == 1


@pytest.mark.parametrize("damage", ["object", "json", "index", "facts", "boot"])
def test_a_damaged_view_is_neither_shared_nor_changed_under_its_readers(oplib: OpLibrary, damage: str) -> None:
    kernels = [oplib.house.publish(name) for name in "ab"]
    view = oplib.views.assemble(kernels)
    index = view.path / "static_kernel" / "ai_core" / "config" / FAMILY / "binary_info_config.json"
    member = next(view.path.rglob("*.json" if damage == "json" else "*.o"))
    while damage == "json" and member.parent.name != "MatMulV2":
        member = next(path for path in view.path.rglob("*.json") if path.parent.name == "MatMulV2")
    if damage in {"object", "json"}:
        member.unlink()
        member.write_bytes(b"somebody wrote here")
    elif damage == "index":
        index.unlink()
    elif damage == "facts":
        (view.path / "view.json").write_text("[")
    else:
        oplib.boot = "the next boot"
    oplib.open()
    inode = view.path.stat().st_ino
    other = oplib.views.assemble(kernels)
    assert other.digest != view.digest
    assert view.path.stat().st_ino == inode
    assert len(load(other).selected) == 2
    assert oplib.views.assemble(kernels) == other


def test_a_view_is_not_shared_any_more_when_one_of_its_kernels_turns_out_damaged(oplib: OpLibrary) -> None:
    view = oplib.view("a", "b")
    kernel = oplib.house.kernels.find(digest("a"))
    assert kernel is not None
    next(oplib.house.kernels.directory(kernel.id).glob("*.o")).write_bytes(b"rotten")  # the same inode as in the view
    oplib.house.reopen()
    oplib.open()
    assert oplib.house.kernels.find(digest("a")) is None
    again = oplib.view("a", "b")
    assert again.kernels == view.kernels
    assert again.digest != view.digest
    assert len(load(again).selected) == 2


def test_views_that_nobody_needs_are_dropped_and_their_kernels_stay(oplib: OpLibrary) -> None:
    kept, dropped = oplib.view("a", "b"), oplib.view("b", "c")
    assert oplib.views.drop_unleased(keep={kept.digest}) == [dropped.digest]
    assert dropped.digest not in oplib.views
    assert not dropped.path.exists()
    assert len(load(kept).selected) == 2
    assert len(oplib.house.kernels.find_many([digest(name) for name in "abc"])) == 3
    assert names(oplib.house.state.staging) == []
    assert load(oplib.view("b", "c")).selected


def test_a_dropped_view_goes_out_of_sight_by_one_rename(oplib: OpLibrary) -> None:
    view = oplib.view("a", "b")
    seen: list[tuple[str, int]] = []

    class Watching(Disk):
        def step(self, operation: str, path: Path) -> None:
            seen.append((operation, len(list(view.path.rglob("*")))))

    whole = len(list(view.path.rglob("*")))
    oplib.house.state.disk = Watching()
    oplib.views.drop_unleased(keep=())
    assert seen[0] == ("rename", whole)
    assert {left for _, left in seen[1:]} == {0}


def test_views_go_out_of_sight_at_once_and_off_the_disk_bit_by_bit(oplib: OpLibrary) -> None:
    views = [oplib.view(*(f"{number}{letter}" for letter in "abcdefghijkl")) for number in range(3)]
    assert sorted(oplib.views.hide_unleased(keep=())) == sorted(view.digest for view in views)
    assert oplib.views.count() == 0
    steps = sum(1 for _ in oplib.views.sweep())
    assert steps >= 3, "somebody else may be served in between"
    assert names(oplib.house.state.staging) == []
    assert list(oplib.views.sweep()) == []


def test_odd_things_among_the_views_are_dropped_without_following_them(oplib: OpLibrary, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    (oplib.house.state.views / "link").symlink_to(tmp_path / "outside")
    (oplib.house.state.views / "file").write_text("x")
    assert oplib.views.drop_unleased(keep=()) == ["file", "link"]
    assert (tmp_path / "outside" / "kept").exists()
