from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

import pytest

from npugraph_ex.outputs import open_tree
from npugraph_ex.package_map import digest_of, remember
from npugraph_ex.recording import Recorded

FILES = (("Add_float_ND_1_0.json", b"{}"), ("Mul_float_ND_1_0.json", b"[]"))
PID = os.getpid()


def test_the_tree_is_beside_the_running_script(outputs_root):
    tree = open_tree()
    assert tree.directory.parent == tree.root == outputs_root
    assert tree.directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("script", [None, "/nowhere/at/all.py", "<stdin>"])
def test_without_a_script_it_is_in_the_working_directory_and_says_so(monkeypatch, tmp_path, caplog, script):
    caplog.set_level(logging.INFO, "npugraph_ex")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", script, raising=False)
    assert open_tree().root == tmp_path / "static_kernel_compile_outputs"
    assert str(tmp_path) in caplog.text


def test_where_the_scripts_directory_cannot_be_written_it_is_in_the_working_directory_and_says_so(tmp_path, caplog):
    (tmp_path / "program" / "static_kernel_compile_outputs").write_text("in the way")
    assert open_tree().root == tmp_path / "static_kernel_compile_outputs"
    assert "cannot be written in" in caplog.text


def test_nowhere_to_write_is_no_tree(tmp_path, caplog):
    (tmp_path / "program" / "static_kernel_compile_outputs").write_text("in the way")
    (tmp_path / "static_kernel_compile_outputs").write_text("in the way")
    assert open_tree() is None
    assert open_tree() is None
    assert caplog.text.count("is not written") == 1


def test_beside_a_compile_cache_there_is_no_selected_folder(tmp_path):
    build_dir = tmp_path / "cache" / "decode"
    build_dir.mkdir(parents=True)
    tree = open_tree(build_dir)
    tree.write_dump(Recorded(compilable=FILES))
    tree.write_selected(FILES)
    assert tree.root == build_dir / "static_kernel_compile_outputs"
    assert sorted(path.name for path in tree.directory.iterdir()) == [str(PID), f"{PID}_debug", f"{PID}_opcompile"]


def test_two_rounds_of_one_microsecond_get_two_folders():
    times = iter([datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)])
    one, other = open_tree(now=lambda: next(times)), open_tree(now=lambda: next(times))
    assert one.directory != other.directory


def test_gathered_records_of_equal_names_are_all_there():
    tree = open_tree()
    tree.write_gathered([*FILES, (FILES[0][0], b"other"), ("../../escape.json", b"x"), ("..", b"y")])
    folder = tree.directory / f"{PID}_opcompile_gathered"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "Add_float_ND_1_0.json": b"{}",
        "Mul_float_ND_1_0.json": b"[]",
        "Add_float_ND_1_0_1.json": b"other",
        "escape.json": b"x",
        "record.json": b"y",
    }


def test_packages_are_linked_or_copied(tmp_path, monkeypatch):
    source = tmp_path / "a.run"
    source.write_bytes(b"package")
    tree = open_tree()
    (linked,) = tree.keep_packages([("static_kernel_1.run", source)])
    assert linked.samefile(source)

    def refused(*_args, **_kwargs):
        raise PermissionError

    monkeypatch.setattr(os, "link", refused)
    (copied,) = tree.keep_packages([("../static_kernel_2.run", source)])
    assert copied == tree.directory / "static_kernel_2.run"
    assert copied.read_bytes() == b"package"


# ---- the map of packages ---------------------------------------------------------------------------------------------


def test_the_map_says_which_packages_served_which_records(tmp_path):
    source = tmp_path / "a.run"
    source.write_bytes(b"package")
    tree = open_tree()
    (kept,) = tree.keep_packages([("static_kernel_1.run", source)])
    for _ in range(2):
        remember(tree, cann_version="9.1.0", device="Ascend910B3", records=FILES, packages=[kept])
    path = tree.root / "static_kernel_cache" / "CANN-9.1.0_Ascend910B3.json"
    assert json.loads(path.read_text()) == {digest_of(FILES): [f"{tree.directory.name}/static_kernel_1.run"]}
    assert path.with_suffix(".lock").exists()


def test_a_damaged_map_starts_again_and_entries_without_packages_leave(tmp_path):
    source = tmp_path / "a.run"
    source.write_bytes(b"package")
    tree = open_tree()
    first, second = tree.keep_packages([("static_kernel_1.run", source), ("static_kernel_2.run", source)])
    remember(tree, cann_version="9.1.0", device="x", records=FILES[:1], packages=[first])
    first.unlink()
    remember(tree, cann_version="9.1.0", device="x", records=FILES, packages=[second])
    path = tree.root / "static_kernel_cache" / "CANN-9.1.0_x.json"
    assert list(json.loads(path.read_text())) == [digest_of(FILES)]
    path.write_text("{")
    remember(tree, cann_version="9.1.0", device="x", records=FILES, packages=[second])
    assert list(json.loads(path.read_text())) == [digest_of(FILES)]


def test_the_identity_of_records_is_their_content():
    renamed = (("b.json", FILES[1][1]), ("a.json", FILES[0][1]), ("again.json", FILES[0][1]))
    assert digest_of(renamed) == digest_of(FILES)
    assert digest_of(FILES[:1]) != digest_of(FILES)


def test_a_lock_that_is_never_given_back_is_an_error_after_a_while(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr("npugraph_ex.package_map._LOCK_PAUSE_S", 0)
    tree = open_tree()
    remember(tree, cann_version="9.1.0", device="x", records=FILES, packages=[])
    with (tree.root / "static_kernel_cache" / "CANN-9.1.0_x.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            remember(tree, cann_version="9.1.0", device="x", records=FILES, packages=[])
