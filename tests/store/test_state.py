from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from npgxd.errors import AlreadyRunning, StateRefused, StoreError
from npgxd.store import state as state_module
from npgxd.store.mounts import Mount, mount_of, parse_mountinfo
from npgxd.store.reserve import SIZES, Reserve
from npgxd.store.state import StateDirectory
from tests.store.made import names

LAYOUT = {
    "FORMAT": 0o644,
    "STORE_ID": 0o644,
    "kernels": 0o755,
    "packages": 0o755,
    "views": 0o755,
    "leases": 0o711,
    "rounds": 0o700,
    "jobs": 0o700,
    "staging": 0o700,
    "quarantine": 0o700,
}
HOLDER = """
import sys
from pathlib import Path
from npgxd.store.state import StateDirectory
state = StateDirectory.open(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def open_and_close(path: Path) -> StateDirectory:
    state = StateDirectory.open(path)
    state.close()
    return state


def snapshot(path: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        name: (facts.st_mode, facts.st_mtime_ns, (path / name).read_bytes() if (path / name).is_file() else b"")
        for name in sorted(names(path))
        for facts in [(path / name).lstat()]
    }


def test_fc58_a_new_state_directory_has_the_documented_layout_under_any_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        open_and_close(tmp_path / "deep" / "state")
    finally:
        os.umask(old)
    path = tmp_path / "deep" / "state"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert {name: stat.S_IMODE((path / name).stat().st_mode) for name in LAYOUT} == LAYOUT
    assert (path / "FORMAT").read_text() == "npgxd-state 1\n"
    assert names(path / "staging") == []


def test_the_store_keeps_its_id_when_it_is_moved_or_reached_through_a_link(tmp_path: Path) -> None:
    first = open_and_close(tmp_path / "state").store_id
    (tmp_path / "state").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    assert open_and_close(tmp_path / "moved").store_id == first
    assert open_and_close(tmp_path / "link").store_id == first
    assert open_and_close(tmp_path / "other").store_id != first


@pytest.mark.parametrize("text", ["npgxd-state 2\n", "npgxd-state 999\n"])
def test_a_newer_format_is_refused_untouched(tmp_path: Path, text: str) -> None:
    open_and_close(tmp_path)
    (tmp_path / "FORMAT").write_text(text)
    (tmp_path / "instance.lock").unlink()
    before = snapshot(tmp_path)
    with pytest.raises(StateRefused, match="nothing in it was touched") as caught:
        StateDirectory.open(tmp_path)
    assert "newer npgxd" in caught.value.hint
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("text", ["", "npgxd-state", "npgxd-state one\n", "npgxd-state 1", "something else 1\n", "\0" * 50])
def test_an_unknown_format_is_refused_untouched(tmp_path: Path, text: str) -> None:
    open_and_close(tmp_path)
    (tmp_path / "FORMAT").write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(StateRefused, match="unknown format"):
        StateDirectory.open(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_directory_with_other_peoples_files_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    before = snapshot(tmp_path)
    with pytest.raises(StateRefused, match=r"thesis\.tex"):
        StateDirectory.open(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_format_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("npgxd-state 1\n")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "FORMAT").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateRefused):
        StateDirectory.open(tmp_path / "state")


def test_a_fresh_file_system_with_lost_and_found_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert len(open_and_close(tmp_path).store_id) == 32
    assert (tmp_path / "lost+found").is_dir()


def test_a_damaged_store_id_is_made_anew(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    (tmp_path / "STORE_ID").write_text("torn")
    made = open_and_close(tmp_path).store_id
    assert len(made) == 32
    assert open_and_close(tmp_path).store_id == made


def test_a_second_daemon_is_told_who_the_first_is_and_gets_in_when_that_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(AlreadyRunning, match=f"pid {holder.pid}") as caught:
            StateDirectory.open(tmp_path)
        assert caught.value.data["pid"] == str(holder.pid)
    finally:
        holder.kill()
        holder.communicate()
    open_and_close(tmp_path)


@pytest.mark.parametrize("inner", [".opt/state", "x.org/state", "state.old", "a.o"])
def test_a_path_that_the_runtime_would_cut_is_refused_before_anything_is_made(tmp_path: Path, inner: str) -> None:
    with pytest.raises(StateRefused, match=r"\.o"):
        StateDirectory.open(tmp_path / inner)
    assert names(tmp_path) == []


def test_a_path_trap_behind_a_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.org").mkdir()
    (tmp_path / "innocent").symlink_to(tmp_path / "x.org")
    with pytest.raises(StateRefused, match=r"x\.org"):
        StateDirectory.open(tmp_path / "innocent")


def test_a_path_too_long_for_a_kernels_name_below_it_is_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 200] * 16)
    with pytest.raises(StateRefused, match="bytes"):
        StateDirectory.open(deep)


def test_a_path_that_no_message_can_carry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateRefused, match="UTF-8"):
        StateDirectory.open(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))


def test_a_file_in_its_place_is_refused_for_good(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("mine")
    with pytest.raises(StateRefused, match="is no directory"):
        StateDirectory.open(tmp_path / "state")
    assert (tmp_path / "state").read_text() == "mine"


def test_another_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StateRefused, match="belongs to uid"):
        StateDirectory.open(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "ceph", "lustre", "fuse.sshfs", "fuse.something-new"])
def test_a_network_file_system_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(state_module, "mount_of", lambda _: Mount("/far", kind, frozenset({"rw"})))
    with pytest.raises(StateRefused, match=f"{kind} .*/far") as caught:
        StateDirectory.open(tmp_path / "state")
    assert "local disk" in caught.value.hint
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("mount", "said"), [(Mount("/mem", "tmpfs", frozenset()), "tmpfs"), (Mount("/x", "ext4", frozenset({"noexec"})), "noexec")]
)
def test_a_memory_file_system_and_noexec_are_warned_about_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mount: Mount, said: str
) -> None:
    monkeypatch.setattr(state_module, "mount_of", lambda _: mount)
    open_and_close(tmp_path / "state")
    assert said in caplog.text


def test_the_mount_is_the_deepest_and_of_equals_the_last() -> None:
    text = r"""
1 0 8:1 / / rw - ext4 /dev/a rw
2 1 0:5 / /var/lib rw,noexec shared:1 - nfs4 server:/x rw
3 2 0:6 / /var/lib/npgxd rw - xfs /dev/b rw
4 2 0:7 / /var/lib/npgxd rw,nosuid - btrfs /dev/c rw
5 1 0:8 / /with\040space rw - fuse.sshfs host: rw
garbage"""
    assert len(parse_mountinfo(text)) == 5
    assert mount_of(Path("/var/lib/npgxd/kernels"), text) == Mount("/var/lib/npgxd", "btrfs", frozenset({"rw", "nosuid"}))
    assert mount_of(Path("/var/lib/npgxd2"), text) == Mount("/var/lib", "nfs4", frozenset({"rw", "noexec"}))
    assert mount_of(Path("/home"), text) == Mount("/", "ext4", frozenset({"rw"}))
    found = mount_of(Path("/with space/x"), text)
    assert found is not None
    assert found.is_network
    assert mount_of(Path("/x"), "") is None


def test_what_is_in_the_way_of_a_directory_is_named(tmp_path: Path) -> None:
    open_and_close(tmp_path)
    (tmp_path / "views").rmdir()
    (tmp_path / "views").symlink_to("/tmp")
    with pytest.raises(StoreError, match="views is in the way"):
        StateDirectory.open(tmp_path)


def test_what_is_damaged_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    state = StateDirectory.open(tmp_path)
    for _ in range(2):
        (state.rounds / "x.round").write_text("garbage")
        moved = state.set_aside(state.rounds / "x.round", "it is garbage")
        assert moved.read_text() == "garbage"
        assert moved.with_name(f"{moved.name}.reason").read_text() == "it is garbage\n"
    state.close()
    assert len(names(state.quarantine)) == 4


def test_a_state_directory_that_cannot_be_looked_into_has_no_reserve_and_is_no_fault(tmp_path: Path) -> None:
    state = open_and_close(tmp_path / "state")
    state.path = tmp_path / "file"
    state.path.write_bytes(b"")  # whoever looks below it is told ENOTDIR, also as root
    reserve = Reserve(state)
    assert reserve.missing() == SIZES[0]
    reserve.keep()
    assert not reserve.give()
