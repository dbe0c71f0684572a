"""A shared root against other installers, damage, kills and readers: the parts, without a daemon."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npgxd.oplib.shared_root import MARKER, SharedRoot
from npgxd.oplib.shared_root_choice import short
from npgxd.oplib.shared_root_place import InUse, LibraryError, check_root, default_root
from npgxd.oplib.users import User, cann_users, still_run
from tests.oplib.shared_root_made import FOREIGN_KEY, NoSync, entry, environment, foreign, index_of, our_keys
from tests.store.made import FAMILY, SOC, House
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npgxd.store.manifest import KernelManifest


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "state", tmp_path / "scratch")
    yield made
    made.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "opp").mkdir()
    return tmp_path / "opp"


@pytest.fixture
def opened(house: House, root: Path) -> Iterator[Callable[[], SharedRoot]]:
    made: list[SharedRoot] = []

    def open_root() -> SharedRoot:
        made.append(SharedRoot(root, FAMILY, house.kernels.directory, vendor_lock_s=0.3, torn_s=0.2))
        return made[-1]

    yield open_root
    for one in made:
        one.close()


@pytest.fixture
def shared(opened: Callable[[], SharedRoot]) -> SharedRoot:
    return opened()


def read(root: Path) -> Reader:
    reader = Reader(SOC)
    report = reader.load_default(environment(root))
    assert not report.torn
    assert not reader.verify()
    return reader


def entries(root: Path) -> list[dict[str, object]]:
    return [one for listed in json.loads(index_of(root).read_bytes()).values() for one in listed["staticList"]]


# ---- installing ------------------------------------------------------------------------------------------------------


def test_what_is_wanted_is_there_and_installing_it_again_writes_nothing(house: House, shared: SharedRoot, root: Path) -> None:
    kernels = [house.publish("a", suffixes=("d0", "d1")), house.publish("b")]
    synced = shared.sync(kernels)
    assert synced.installed == {kernel.id for kernel in kernels}
    assert read(root).selected.keys() == our_keys(kernels)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert shared.sync(kernels).installed == synced.installed
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert not shared.look().changed
    assert shared.intact()


def test_all_that_we_make_can_be_read_by_every_user_whatever_the_umask(house: House, shared: SharedRoot, root: Path) -> None:
    before = os.umask(0o077)
    try:
        shared.sync([house.publish("a")])
    finally:
        os.umask(before)
    kernel = next(root.rglob("*.o"))
    for path in (kernel, kernel.with_suffix(".json"), index_of(root)):
        assert path.stat().st_mode & 0o444 == 0o444
    for path in [path for path in root.rglob("*") if path.is_dir()]:
        assert path.stat().st_mode & 0o555 == 0o555


def test_existing_directories_keep_the_modes_that_others_gave_them(house: House, shared: SharedRoot, root: Path) -> None:
    foreign(root)
    (root / "static_kernel").chmod(0o770)
    shared.sync([house.publish("a")])
    assert (root / "static_kernel").stat().st_mode & 0o777 == 0o770


def test_what_others_have_in_the_index_stays_byte_for_byte(house: House, shared: SharedRoot, root: Path) -> None:
    foreign(root)
    theirs = (
        '{"version":1.50, "Add" : {"staticList":[ {"simplifiedKey":["\\u00e4",\n"k"],"coreType":9,"x":1e2,"binPath":"p/Add/x.o"}, 7 ],'
        ' "more": [ 1 ,2]}, "Odd": {"list": []}}'
    )
    index_of(root).write_text(theirs)
    shared.sync([house.publish("a")])
    text = index_of(root).read_text()
    for piece in (
        '"version": 1.50',
        '{"simplifiedKey":["\\u00e4",\n"k"],"coreType":9,"x":1e2,"binPath":"p/Add/x.o"}',
        '"more": [ 1 ,2]',
        '"Odd": {"list": []}',
    ):
        assert piece in text
    whole = json.loads(text)
    assert whole["Add"]["staticList"][1] == 7
    shared.sync([])
    assert json.loads(index_of(root).read_text()) == json.loads(theirs)


def test_an_entry_of_others_is_never_overwritten_and_shadows_ours_where_it_differs(
    house: House, shared: SharedRoot, root: Path
) -> None:
    kernels = [house.publish("a"), house.publish("b")]
    foreign(root, key=kernels[0].simplified_keys[0])
    index = json.loads(index_of(root).read_text())
    index_of(root).write_text(json.dumps({"MatMulV2": index["Add"]}))
    synced = shared.sync(kernels)
    assert synced.installed == {kernels[1].id}
    assert synced.shadowed is not None
    assert "static_kernel_1_2" in synced.shadowed[kernels[0].id]
    assert json.dumps(index["Add"]["staticList"][0]) in index_of(root).read_text()


def test_a_kernel_that_another_installer_has_with_equal_bytes_is_served_by_it_until_it_goes(
    house: House, shared: SharedRoot, root: Path
) -> None:
    kernel = house.publish("a")
    shared.sync([kernel])
    theirs = root / "static_kernel/ai_core/static_kernel_1_2"
    shutil.move(root / f"static_kernel/ai_core/npgxd_{short(kernel.id)}", theirs)
    text = index_of(root).read_text()
    index_of(root).write_text(text.replace(f"npgxd_{short(kernel.id)}", theirs.name))
    assert shared.look().files == {kernel.id}
    synced = shared.sync([kernel])
    assert synced.installed == {kernel.id}
    assert not list(root.rglob("npgxd_*"))
    shutil.rmtree(theirs)
    index_of(root).write_text("{}")
    assert shared.look().files == {kernel.id}
    shared.sync([kernel])
    assert len(read(root).selected) == 1


def test_a_newer_kernel_of_a_record_takes_the_place_of_the_older_whose_files_stay(
    house: House, shared: SharedRoot, root: Path
) -> None:
    old = house.publish("a", b"old")
    shared.sync([old])
    loaded = read(root)
    new = house.publish("a", b"new")
    synced = shared.sync([old, new])
    assert synced.installed == {new.id}
    assert short(new.id) in str(next(iter(read(root).selected.values())).path)
    assert not loaded.verify()
    assert shared.earlier(new, 0.0) == short(old.id)
    assert shared.remove([short(old.id)]) == {short(old.id)}


def test_of_two_records_under_one_key_the_one_that_is_there_stays(house: House, shared: SharedRoot) -> None:
    first, second = (house.publish(name, keys=["one key"]) for name in ("a", "b"))
    for here, other in ((first, second), (second, first)):
        shared.sync([here])
        synced = shared.sync([first, second])
        assert synced.installed == {here.id}
        assert synced.shadowed is not None
        assert list(synced.shadowed) == [other.id]


def test_a_kernel_that_the_store_has_damaged_is_named_and_the_others_are_installed(
    house: House, shared: SharedRoot, root: Path
) -> None:
    good, bad = house.publish("a"), house.publish("b")
    next(house.kernels.directory(bad.id).glob("*.o")).write_bytes(b"damaged")
    synced = shared.sync([good, bad])
    assert synced.installed == {good.id}
    assert synced.failed is not None
    assert "other bytes" in synced.failed[bad.id]
    assert len(read(root).selected) == 1


# ---- others ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [fcntl.flock, fcntl.lockf])
def test_the_vendors_lock_is_respected_whatever_its_kind(
    house: House, shared: SharedRoot, root: Path, kind: Callable[[int, int], None]
) -> None:
    foreign(root)
    path = root / "static_kernel/ai_core/config/static_kernel.lock"
    path.touch()
    holder = f"""
import fcntl, os, sys
fd = os.open({str(path)!r}, os.O_RDWR)
fcntl.{kind.__name__}(fd, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        before = index_of(root).read_bytes()
        with pytest.raises(LibraryError, match=r"static_kernel\.lock was held"):
            shared.sync([house.publish("a")])
        assert index_of(root).read_bytes() == before
    finally:
        process.communicate(b"")
    assert shared.sync([house.publish("a")]).installed


def test_one_npgxd_at_a_time_works_in_a_root_however_it_is_spelled(
    house: House, shared: SharedRoot, root: Path, tmp_path: Path
) -> None:
    shared.sync([house.publish("a")])
    (tmp_path / "link").symlink_to(root)
    other = SharedRoot(tmp_path / "link", FAMILY, house.kernels.directory)
    with pytest.raises(InUse, match="another npgxd"):
        other.sync([])
    shared.close()
    assert other.present()
    other.close()


def test_somebody_who_writes_into_the_index_between_our_reading_and_our_rename_loses_nothing(
    house: House, shared: SharedRoot, root: Path
) -> None:
    foreign(root)
    kernel = house.publish("a")
    real = shared._files.place
    writers = [lambda: foreign(root, "second", "Second/d0/x")]

    def place(manifests: object) -> dict[str, str]:
        while writers:
            writers.pop()()
        return real(manifests)  # type: ignore[arg-type]

    shared._files.place = place  # type: ignore[method-assign]
    shared.sync([kernel])
    assert read(root).selected.keys() == {FOREIGN_KEY, "Second/d0/x", *kernel.simplified_keys}


def test_somebody_who_had_the_index_open_when_it_was_replaced_loses_nothing(house: House, shared: SharedRoot, root: Path) -> None:
    foreign(root)
    (root / "static_kernel/ai_core/p").mkdir()
    with index_of(root).open("r+") as late:
        total = json.load(late)
        shared.sync([house.publish("a")])
        assert not shared.look().changed
        total["Add"]["staticList"].append(entry("late", "Late/d0/x"))
        late.seek(0)
        late.write(json.dumps(total))
    assert shared.look().changed
    shared.sync([house.publish("a")])
    keys = {one["simplifiedKey"] for one in entries(root)}  # type: ignore[misc]
    assert {"Late/d0/x", FOREIGN_KEY} < keys
    assert len(keys) == 3
    assert not shared.look().changed


def test_an_index_that_is_not_whole_is_waited_for_and_then_left_alone(house: House, shared: SharedRoot, root: Path) -> None:
    foreign(root)
    torn = index_of(root).read_bytes()[:-5]
    index_of(root).write_bytes(torn)
    with pytest.raises(LibraryError, match="cannot be read") as caught:
        shared.sync([house.publish("a")])
    assert "does not guess" in caught.value.hint
    assert index_of(root).read_bytes() == torn


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["object", "json", "bytes", "directory", "mode"])
def test_damaged_files_are_noticed_and_put_back(house: House, shared: SharedRoot, root: Path, act: str) -> None:
    kernels = [house.publish("a"), house.publish("b")]
    shared.sync(kernels)
    place = root / f"static_kernel/ai_core/npgxd_{short(kernels[0].id)}"
    path = next(place.rglob("*.json" if act == "json" else "*.o"))
    if act == "bytes":
        path.write_bytes(b"overwritten")
    elif act == "directory":
        shutil.rmtree(place)
    elif act == "mode":
        path.chmod(0o644)
        assert not shared.look().files, "a touched file with the right bytes is no damage"
        return
    else:
        path.unlink()
    look = shared.look()
    assert look.files == {kernels[0].id}
    assert not look.entries
    shared.sync(kernels)
    assert len(read(root).selected) == 2
    assert not shared.look().changed


def test_fc52_a_root_that_was_made_anew_is_another_one(house: House, shared: SharedRoot, root: Path) -> None:
    kernel = house.publish("a")
    before = shared.sync([kernel]).marker
    shutil.rmtree(root / "static_kernel")
    assert not shared.intact()
    look = shared.look()
    assert look.recreated
    assert look.files == {kernel.id}
    after = shared.sync([kernel]).marker
    assert after != before
    assert (root / "static_kernel/ai_core" / MARKER).read_text().strip() == after
    assert len(read(root).selected) == 1


def test_an_earlier_lifes_kernels_are_known_and_leave_only_when_told(
    house: House, opened: Callable[[], SharedRoot], root: Path
) -> None:
    kernels = [house.publish("a"), house.publish("b")]
    first = opened()
    assert first.present() == frozenset()
    first.sync(kernels)
    first.close()
    second = opened()
    assert second.present() == {short(kernel.id) for kernel in kernels}
    synced = second.sync(kernels[:1])
    assert synced.left == second.leftovers() == {short(kernels[1].id)}
    assert second.remove([short(kernel.id) for kernel in kernels]) == {short(kernels[1].id)}, "what has an entry stays"
    assert len(read(root).selected) == 1


# ---- where it cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_fc55_a_root_of_somebody_else_is_told_with_owner_mode_and_remedy() -> None:
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
        foreign(Path(place))
        said = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=True).stdout
    assert f"{place}/static_kernel/ai_core may not be changed by this daemon: it belongs to uid 0 (root), mode 755" in said
    assert "npgxd runs as uid 65534" in said
    assert "run npgxd as the owner" in said


@pytest.mark.parametrize("name", ["x.org", ".opt", "a.o"])
def test_a_root_whose_path_the_runtime_would_cut_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "opp"
    path.mkdir(parents=True)
    (tmp_path / "good").symlink_to(path)
    for spelling in (path, tmp_path / "good"):
        with pytest.raises(LibraryError, match=r"has '\.o' in"):
            check_root(spelling, FAMILY)


def test_something_in_the_way_is_named(root: Path) -> None:
    (root / "static_kernel").write_text("")
    with pytest.raises(LibraryError, match="not a directory"):
        check_root(root, FAMILY)


def test_the_default_root_is_the_runtimes(tmp_path: Path) -> None:
    (tmp_path / "opp").mkdir()
    told = {"ASCEND_HOME_PATH": str(tmp_path), "ASCEND_OPP_PATH": "/elsewhere/opp"}
    assert str(default_root(told)) == "/elsewhere/opp"
    (tmp_path / "opp_latest").symlink_to("nowhere")
    assert str(default_root(told)) == "/elsewhere/opp"
    (tmp_path / "nowhere").mkdir()
    assert default_root(told) == tmp_path / "opp_latest"
    with pytest.raises(LibraryError, match="no default op root"):
        default_root({})


# ---- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["fresh", "beside-others", "damaged", "removal"])
def test_a_kill_before_any_act_leaves_a_root_that_readers_can_use_and_a_restart_completes(tmp_path: Path, scenario: str) -> None:
    command = [sys.executable, "-m", "tests.oplib.shared_root_crash", scenario, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(steps) > 15
    assert [step for step in steps if step["problems"]] == []


# ---- readers ---------------------------------------------------------------------------------------------------------

READERS = """
import json, mmap, os, sys
from pathlib import Path
from tools.cann_sim.reader import Reader
root, library = sys.argv[1:]
seen = torn = 0
print("ready", flush=True)
while not Path(root, "stop").exists():
    # Each look is a process of its own that has the runtime mapped, as the removal of files must see.
    child = os.fork()
    if child == 0:
        fd = os.open(library, os.O_RDONLY)
        mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        reader = Reader("Ascend910B3")
        report = reader.load_default({"ASCEND_HOME_PATH": "", "ASCEND_OPP_PATH": root})
        bad = [*report.torn, *reader.verify()]
        if "Foreign/d0/x" not in reader.selected:
            bad.append("a neighbour's kernel is gone")
        if bad:
            print(bad, file=sys.stderr, flush=True)
        os._exit(bool(bad))
    torn += os.waitpid(child, 0)[1] != 0
    seen += 1
print(json.dumps([seen, torn]))
"""


def test_fc34_readers_in_a_loop_see_nothing_torn_during_200_installs_and_removals(
    house: House, root: Path, tmp_path: Path
) -> None:
    shared = SharedRoot(root, FAMILY, house.kernels.directory, disk=NoSync())
    foreign(root)
    library = tmp_path / "libascendcl.so"
    library.write_bytes(b"not the real one")
    kernels = [house.publish(f"k{number}") for number in range(12)]
    shared.sync(kernels[:4])
    command = [sys.executable, "-c", READERS, str(root), str(library)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=os.getcwd()) for _ in range(2)]  # noqa: PTH109
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"ready\n"
    removed = 0
    waiting: dict[str, frozenset[User]] = {}
    for number in range(200):
        wanted: list[KernelManifest] = [kernels[(number + offset) % 12] for offset in range(4)]
        shared.sync(wanted)
        users = cann_users(unreadable=False)
        left = shared.leftovers()
        waiting = {kernel: waiting.get(kernel, users) for kernel in left}
        over = [kernel for kernel, witnesses in waiting.items() if not still_run(witnesses)]
        removed += len(shared.remove(over))
    (root / "stop").touch()
    for reader in readers:
        out, err = reader.communicate(timeout=60)
        seen, torn = json.loads(out)
        assert torn == 0, err.decode()
        assert seen > 20
    assert removed > 50
    shared.close()
