from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.errors import StoreError
from npgxd.store.disk import Disk
from tests.store.made import digest, names, round_entry

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.oplib.conftest import OpLibrary


def test_fc07_what_was_not_published_is_dropped_and_what_was_stays(oplib: OpLibrary, tmp_path: Path) -> None:
    state = oplib.house.state
    published = oplib.house.publish("published")
    oplib.house.stage("staged")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    (state.staging / "link").symlink_to(tmp_path / "outside")
    (state.staging / "closed").mkdir()
    (state.staging / "closed").chmod(0)
    for place in (state.path, state.kernels, state.packages, state.leases, state.rounds):
        (place / ".npgxd-0123456789abcdef").write_text("half a fi")
    oplib.house.rounds.accept(round_entry())
    done = oplib.restart()
    assert done.problems == ()
    assert (done.staged, done.temporary) == (3, 5)
    assert names(state.staging) == []
    assert oplib.house.kernels.find(digest("published")) == published
    assert oplib.house.kernels.find(digest("staged")) is None
    assert oplib.house.rounds.pending() == [round_entry()]
    assert (tmp_path / "outside" / "kept").exists()
    again = oplib.restart()
    assert (again.staged, again.temporary, again.leases, again.views, again.adopted, again.problems) == (0, 0, 0, 0, 0, ())


def test_files_of_a_form_that_nothing_reads_any_more_go_at_the_start(oplib: OpLibrary) -> None:
    state = oplib.house.state.path
    for name in ("fingerprints.json", "fingerprints.json.files", "fingerprints.json.mine"):
        (state / name).write_text("{}")
    (state / "fingerprints").mkdir()
    before = set(names(state))
    done = oplib.restart()
    assert before - set(names(state)) == {"fingerprints.json", "fingerprints.json.files"}
    assert (done.temporary, done.problems) == (0, ())
    (state / "fingerprints.json").mkdir()
    (state / "fingerprints.json.files").symlink_to(state / "FORMAT")
    assert oplib.restart().problems == ()
    assert before - set(names(state)) == set(), "what no npgxd put there stays"


def test_a_kernel_that_was_renamed_and_not_listed_is_adopted(oplib: OpLibrary) -> None:
    manifest = oplib.house.publish("a")
    oplib.house.catalog.drop_kernel(manifest.id)
    assert oplib.restart().adopted == 1
    assert oplib.house.kernels.find(digest("a")) == manifest


def test_views_of_an_earlier_boot_are_dropped(oplib: OpLibrary) -> None:
    view = oplib.view("a")
    oplib.boot = "the next boot"
    assert oplib.restart().views == 1
    assert oplib.view("a").digest == view.digest
    assert oplib.view("a").digest in oplib.views


def test_an_odd_leftover_never_stops_a_start_and_is_named(oplib: OpLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Disk):
        def step(self, operation: str, path: Path) -> None:
            if "immutable" in str(path) or operation == "rename":
                raise StoreError(f"cannot {operation} {path}: Operation not permitted")

    view = oplib.view("a")
    lease = oplib.offer(view)
    state = oplib.house.state
    for path in (state.staging / "immutable", state.staging / "plain", state.leases / "immutable"):
        path.write_text("x")
    oplib.house.disk = Stuck()
    done = oplib.restart()
    assert len(done.problems) == 1
    assert "staging/immutable" in done.problems[0]
    assert done.staged == 1
    assert done.leases == 1
    assert not oplib.path(lease).exists()
    assert names(state.leases) == ["immutable"]
    assert view.digest in oplib.views
