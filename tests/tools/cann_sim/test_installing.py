"""What installing and uninstalling do to a root: the documented tree, the total index, the order."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from tools.cann_sim import Reader
from tools.cann_sim.records import elementwise, many

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ADD, EXP, MUL = elementwise("Add", (4, 8)), elementwise("Exp", (4, 8)), elementwise("Mul", (4, 8))


def total(root: Path, family: str = "ascend910b") -> dict[str, list[dict[str, Any]]]:
    index = json.loads((root / f"static_kernel/ai_core/config/{family}/binary_info_config.json").read_text())
    return {op_type: listed["staticList"] for op_type, listed in index.items()}


def owners(root: Path) -> dict[str, str]:
    """Which package each op's (single) entry points into."""
    return {op_type: entries[0]["binPath"].split("/")[0] for op_type, entries in total(root).items()}


def test_the_tree_is_the_documented_one(shared, tmp_path: Path):
    package = shared.compile([ADD]).package
    root = tmp_path / "root"
    shared.install(package, root)
    top = package.stem
    files = {str(path.relative_to(root / "static_kernel/ai_core")) for path in root.rglob("*") if path.is_file()}
    kernel = next(name for name in files if name.endswith(".o"))
    assert kernel.startswith(f"{top}/ascend910b/Add/static_kernel_Add_")
    assert kernel.endswith("_d0.o")
    assert files == {
        "config/ascend910b/binary_info_config.json",
        "config.ini",
        "config/static_kernel.lock",
        kernel,
        kernel.removesuffix(".o") + ".json",
        f"{top}/config/ascend910b/binary_info_config.json",
        f"{top}/scripts/install.sh",
        f"{top}/scripts/installer.py",
        f"{top}/uninstall.sh",
        "uninstall.sh",
        "version.info",
    }
    modes = {path.stat().st_mode & 0o777 for path in (root / "static_kernel").rglob("*") if path.is_dir()}
    assert modes | {(root / "static_kernel").stat().st_mode & 0o777} == {0o770}


def test_modes_do_not_depend_on_the_callers_umask(shared, tmp_path: Path):
    package = shared.compile([ADD]).package
    root = tmp_path / "root"
    before = os.umask(0o077)
    try:
        shared.install(package, root)
    finally:
        os.umask(before)
    assert (root / "static_kernel/ai_core/config/ascend910b").stat().st_mode & 0o777 == 0o770


def test_the_lock_file_is_of_the_newest_layout_only(bench_for):
    bench = bench_for("9.0.0")
    assert bench.run(bench.compile([ADD]).package, "-q").returncode == 0
    assert not list((bench.cann.opp / "static_kernel").rglob("*.lock"))


def test_the_total_index_has_every_package_and_the_later_wins(shared, tmp_path: Path):
    root = tmp_path / "root"
    first, second = shared.compile([ADD, EXP]).package, shared.compile([ADD, MUL]).package
    shared.install(first, root)
    shared.install(second, root)
    assert owners(root) == {"Add": second.stem, "Exp": first.stem, "Mul": second.stem}
    assert len(total(root)["Add"]) == 1
    order = (root / "static_kernel/ai_core/config.ini").read_text().splitlines()
    assert order == ["[install_order]", f"package0={first.stem}", f"package1={second.stem}"]


def test_installing_again_makes_a_package_the_latest(shared, tmp_path: Path):
    root = tmp_path / "root"
    first, second = shared.compile([ADD, EXP]).package, shared.compile([ADD, MUL]).package
    for package in (first, second, first):
        shared.install(package, root)
    assert owners(root) == {"Add": first.stem, "Exp": first.stem, "Mul": second.stem}
    order = (root / "static_kernel/ai_core/config.ini").read_text().splitlines()[1:]
    assert [line.partition("=")[2] for line in order] == [second.stem, first.stem]


def test_a_packages_uninstall_removes_it_alone_and_brings_back_what_it_hid(shared, tmp_path: Path):
    root = tmp_path / "root"
    first, second = shared.compile([ADD, EXP]).package, shared.compile([ADD, MUL]).package
    shared.install(first, root)
    shared.install(second, root)
    ai_core = root / "static_kernel/ai_core"
    assert shared.run(ai_core / second.stem / "uninstall.sh").returncode == 0
    assert not (ai_core / second.stem).exists()
    assert owners(root) == {"Add": first.stem, "Exp": first.stem}
    assert shared.run(ai_core / first.stem / "uninstall.sh").returncode == 0
    assert not (ai_core / "config/ascend910b/binary_info_config.json").exists()


def test_the_total_uninstall_removes_everything_also_of_others(shared, tmp_path: Path):
    root = tmp_path / "root"
    for records in ([ADD], [EXP]):
        shared.install(shared.compile(records).package, root)
    (root / "kept").touch()
    done = shared.run(root / "static_kernel/ai_core/uninstall.sh")
    assert done.returncode == 0
    assert [path.name for path in root.iterdir()] == ["kept"]


def test_the_total_uninstall_works_when_no_package_is_left(shared, tmp_path: Path):
    root = tmp_path / "root"
    package = shared.compile([ADD]).package
    shared.install(package, root)
    ai_core = root / "static_kernel/ai_core"
    assert shared.run(ai_core / package.stem / "uninstall.sh").returncode == 0
    assert shared.run(ai_core / "uninstall.sh").returncode == 0
    assert not (root / "static_kernel").exists()


def test_families_have_indexes_of_their_own(shared, tmp_path: Path):
    root = tmp_path / "root"
    a2 = shared.compile([ADD]).package
    shared.install(a2, root)
    shared.install(shared.compile([ADD, MUL], soc="Ascend910_9382").package, root)
    assert set(total(root)) == {"Add"}
    assert set(total(root, "ascend910_93")) == {"Add", "Mul"}
    assert shared.run(root / "static_kernel/ai_core" / a2.stem / "uninstall.sh").returncode == 0
    assert set(total(root, "ascend910_93")) == {"Add", "Mul"}


def test_installing_where_nothing_may_be_written_fails_with_the_reason(shared, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.touch()
    done = shared.run(shared.compile([ADD]).package, f"--install-path={blocked}")
    assert done.returncode == 1
    assert f"into {blocked} failed" in done.stderr


def test_an_install_of_9_1_waits_for_the_vendors_lock(shared, tmp_path: Path, waits_for_lock: Callable[[Path], bool]):
    root = tmp_path / "root"
    lock = root / "static_kernel/ai_core/config/static_kernel.lock"
    lock.parent.mkdir(parents=True)
    package = shared.compile([ADD]).package
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = subprocess.Popen([package, "-q", f"--install-path={root}"], env=shared.env())
        waited = waits_for_lock(lock)
        assert not (lock.parent / "ascend910b/binary_info_config.json").exists()
    assert started.wait(timeout=60) == 0
    assert waited
    assert set(total(root)) == {"Add"}


def test_concurrent_installs_of_9_1_keep_each_others_entries(shared, tmp_path: Path):
    root = tmp_path / "root"
    packages = [shared.compile([elementwise("Add", (size,)) for size in (at + 1, at + 50)]).package for at in range(4)]
    started = [subprocess.Popen([package, "-q", f"--install-path={root}"], env=shared.env()) for package in packages]
    assert [process.wait(timeout=60) for process in started] == [0, 0, 0, 0]
    assert len(total(root)["Add"]) == 8


def test_an_entry_that_others_put_into_the_index_by_hand_survives_an_install(shared, tmp_path: Path):
    root = tmp_path / "root"
    shared.install(shared.compile([ADD]).package, root)
    path = root / "static_kernel/ai_core/config/ascend910b/binary_info_config.json"
    index = json.loads(path.read_text())
    index["Handmade"] = {"staticList": [{"simplifiedKey": "Handmade/", "coreType": 0, "binPath": "hand/made.o", "binDesc": {}}]}
    path.write_text(json.dumps(index))
    shared.install(shared.compile([EXP]).package, root)
    assert set(total(root)) == {"Add", "Exp", "Handmade"}


def test_a_torn_total_index_is_replaced_by_an_install(shared, tmp_path: Path):
    root = tmp_path / "root"
    shared.install(shared.compile([ADD]).package, root)
    path = root / "static_kernel/ai_core/config/ascend910b/binary_info_config.json"
    path.write_text(path.read_text()[:40])
    shared.install(shared.compile([EXP]).package, root)
    assert set(total(root)) == {"Exp"}, "the vendor's installer does not repair what others tore"


def test_a_large_package_installs_whole(shared, tmp_path: Path):
    records = many(120)
    shared.install(shared.compile(records, "-f", "true", "-j", "8").package, tmp_path / "root")
    reader = Reader("Ascend910B3")
    assert reader.load(tmp_path / "root").loaded == 120
    assert reader.check(records).exact
