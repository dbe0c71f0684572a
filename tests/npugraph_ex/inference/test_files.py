"""Files that somebody else could have written, half-written ones, and what saving leaves behind (FC-58, FC-07)."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from npgxd.client import entry_files as files
from npgxd.client.entry_files import EntryRefused
from npugraph_ex.inference import bytecode, cache_compile, source
from npugraph_ex.inference.container import EntryDamaged, EntryOutdated, pack, unpack

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
SAVES = 1000


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def method(self, x):
        return self.linear(x) + 1


@pytest.fixture
def entry(tmp_path):
    """A saved entry's path, and a way to start again: it gives where the second start's graph came from."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 4)
    cached = cache_compile(net.method, cache_dir=tmp_path / "cache")
    cached(x)

    def again():
        other = cache_compile(net.method, cache_dir=tmp_path / "cache")
        assert torch.equal(other(x), net.method(x))
        return other.origin

    return cached.path, again


@pytest.fixture
def kept(tmp_path):
    """A directory with nothing else in it."""
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_an_entry_that_nobody_touched_is_used(entry):
    _, again = entry
    assert again() == "file"


@pytest.mark.parametrize("part", [0, 10, 40, 200, -1])
def test_fc58_a_bit_flipped_entry_is_never_used_and_is_made_anew(entry, part, caplog):
    path, again = entry
    whole = path.read_bytes()
    flip(path, part % len(whole))
    assert again() == "compiled"
    assert "is not used" in caplog.text
    assert path.read_bytes() == whole  # equal graphs give equal bytes
    assert again() == "file"


@pytest.mark.parametrize("left", [0, 30, 64, 1000, -1])
def test_fc07_an_entry_that_was_cut_off_is_made_anew(entry, left):
    path, again = entry
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    assert again() == "compiled"
    assert path.read_bytes() == whole


def test_an_entry_of_the_previous_or_next_format_is_a_miss(entry):
    path, again = entry
    data = bytearray(path.read_bytes())
    data[8] += 1
    path.write_bytes(data)
    with pytest.raises(EntryOutdated):
        unpack(bytes(data))
    assert again() == "compiled"


def test_a_whole_container_with_nonsense_in_it_is_a_miss(entry):
    path, again = entry
    sections = {name: bytes(view) for name, view in unpack(path.read_bytes()).items()}
    for name in sections:
        if name == "tensors":
            continue
        for nonsense in (b"", b"\0\0\0", b"[]"):
            path.write_bytes(pack({**sections, name: nonsense}))
            assert again() == "compiled", (name, nonsense)
    path.write_bytes(pack({}))
    assert again() == "compiled"


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o640, 0o700, 0o606])
def test_fc58_an_entry_with_another_mode_than_0600_is_not_even_read(entry, mode, caplog):
    path, again = entry
    path.chmod(mode)
    with pytest.raises(EntryRefused, match="mode"):
        files.read(path.parent, (path.name,))
    assert again() == "compiled"
    assert "not used" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600  # replaced, not trusted


@AS_ROOT
def test_fc58_an_entry_of_another_user_is_not_even_read(entry, caplog):
    path, again = entry
    os.chown(path, 12345, -1)
    assert again() == "compiled"
    assert "belongs to uid 12345" in caplog.text
    assert path.stat().st_uid == os.geteuid()


@AS_ROOT
def test_fc58_a_directory_of_another_user_is_not_entered_and_not_written(entry, caplog):
    path, again = entry
    whole = path.read_bytes()
    os.chown(path.parent, 12345, -1)
    assert again() == "compiled"
    assert "belongs to uid 12345" in caplog.text
    assert path.read_bytes() == whole


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_fc58_a_directory_that_others_may_write_is_not_entered(entry, mode, caplog):
    path, again = entry
    path.parent.chmod(mode)
    assert again() == "compiled"
    assert "others may write" in caplog.text
    path.parent.chmod(0o1777)  # sticky: nobody can swap what is another's
    assert again() == "file"


def test_fc58_a_cache_dir_that_everybody_may_write_is_refused_at_once(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(EntryRefused, match="others may write"):
        cache_compile(Net().method, cache_dir=tmp_path / "open")
    (tmp_path / "open").chmod(0o775)  # a umask of 002 is nobody's fault
    cache_compile(Net().method, cache_dir=tmp_path / "open")


def test_fc58_a_linked_entry_or_directory_is_not_followed(entry, tmp_path, caplog):
    path, again = entry
    aside = tmp_path / "aside"
    path.rename(aside)
    path.symlink_to(aside)
    assert again() == "compiled"
    assert "is a link" in caplog.text
    assert not path.is_symlink()
    directory = path.parent
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "moved")
    assert again() == "compiled"
    assert directory.is_symlink()


def test_fc58_a_pipe_or_a_directory_in_its_place_does_not_stop_a_start(entry):
    path, again = entry
    path.unlink()
    os.mkfifo(path, 0o600)
    assert again() == "compiled"
    assert again() == "file"
    path.unlink()
    path.mkdir(mode=0o700)
    assert again() == "compiled"


def test_a_cache_dir_that_is_itself_reached_by_a_link_is_used(entry, tmp_path):
    path, _ = entry
    (tmp_path / "home").symlink_to(tmp_path / "cache")
    assert files.read(tmp_path / "home", path.relative_to(tmp_path / "cache").parts) == path.read_bytes()


def test_fc58_a_planted_entry_is_code_that_never_runs(entry, monkeypatch):
    """The attacker's best: a whole, self-consistent entry whose code would tell on itself."""
    path, again = entry
    ran = []
    monkeypatch.setattr(torch, "planted", ran.append, raising=False)
    sections = {name: bytes(view) for name, view in unpack(path.read_bytes()).items()}
    evil = sections["graph"].decode().replace("    return", "    torch.planted(1)\n    return")
    planted = pack({**sections, "graph": evil.encode(), "program": marshal.dumps(source.compiled(evil, ()), bytecode.MARSHAL)})
    path.write_bytes(planted)
    assert again() == "file"
    assert ran == [1]  # it would run if its owner had written it; the rest is about who did
    ran.clear()
    path.chmod(0o644)
    assert again() == "compiled"
    path.write_bytes(planted)
    path.parent.chmod(0o777)
    assert again() == "compiled"
    path.parent.chmod(0o700)
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")
    assert again() == "compiled"
    assert ran == []


def test_a_reader_that_races_with_a_thousand_saves_sees_whole_entries_only(tmp_path):
    """And with mode 0600 at every moment: what the reader accepts is checked by the reader itself."""
    bodies = [pack({"data": bytes([number]) * (1000 + 777 * number)}) for number in range(7)]
    files.save(tmp_path, ("deep", "er", "entry"), bodies[0])
    done = threading.Event()

    def write():
        for number in range(SAVES):
            files.save(tmp_path, ("deep", "er", "entry"), bodies[number % len(bodies)])
        done.set()

    writers = [threading.Thread(target=write)]
    for writer in writers:
        writer.start()
    seen = 0
    while not done.is_set() or seen == 0:
        assert files.read(tmp_path, ("deep", "er", "entry")) in bodies
        for name in (tmp_path / "deep" / "er").iterdir():
            assert _mode(name) in {0o600, None}
        seen += 1
    for writer in writers:
        writer.join()
    assert [name.name for name in (tmp_path / "deep" / "er").iterdir()] == ["entry"]


def _mode(path):
    try:
        return path.lstat().st_mode & 0o777
    except FileNotFoundError:
        return None


def test_fc07_what_a_killed_writer_left_is_swept_by_the_next_and_a_living_writers_file_is_not(kept):
    files.save(kept, ("entry",), b"old")
    program = (
        "import os, sys, fcntl, npgxd.client.entry_files as files\n"
        "os.rename = lambda *a, **k: (sys.stdout.write('now\\n'), sys.stdout.flush(), sys.stdin.readline())\n"
        f"files.save(__import__('pathlib').Path({str(kept)!r}), ('entry',), b'new')"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "now\n"
    files.save(kept, ("entry",), b"newer")
    assert len(list(kept.iterdir())) == 2  # the living writer's is still there
    child.kill()
    child.communicate()
    assert files.read(kept, ("entry",)) == b"newer"
    files.save(kept, ("entry",), b"newest")
    assert [name.name for name in kept.iterdir()] == ["entry"]


def test_a_umask_takes_nothing_from_and_gives_nothing_to_an_entry(kept):
    for mask in (0o777, 0o000, 0o077):
        old = os.umask(mask)
        try:
            files.save(kept, ("entry",), b"x")
        finally:
            os.umask(old)
        assert (kept / "entry").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_the_old_entry_and_no_litter(kept, monkeypatch):
    files.save(kept, ("entry",), b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.save(kept, ("entry",), b"new")
    assert files.read(kept, ("entry",)) == b"old"
    assert [name.name for name in kept.iterdir()] == ["entry"]


def test_damage_is_told_apart_from_absence(kept):
    with pytest.raises(FileNotFoundError):
        files.read(kept, ("none",))
    with pytest.raises(FileNotFoundError):
        files.read(kept, ("no", "ne"))
    with pytest.raises(EntryDamaged):
        unpack(b"")
