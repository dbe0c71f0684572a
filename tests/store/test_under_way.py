"""Whoever waits for the disk cannot say so: that it does is seen from outside."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from npgxd.store.disk import Disk
from npgxd.store.under_way import UnderWay

PATIENCE_S = 60.0


class Stuck(Disk):
    """A disk that does not answer one kind of act until it is let go."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation = operation
        self.asked, self.go = threading.Event(), threading.Event()

    def step(self, operation: str, path: Path) -> None:
        if operation == self.operation:
            self.asked.set()
            assert self.go.wait(PATIENCE_S)


@pytest.mark.parametrize("operation", ["write", "fsync", "rename", "unlink", "mkdir", "rmdir", "chmod"])
def test_an_act_that_the_disk_does_not_end_is_seen_with_its_name_and_path_and_is_gone_afterwards(
    tmp_path: Path, operation: str
) -> None:
    disk = Stuck(operation)

    def everything() -> None:
        disk.make_directory(tmp_path / "d")
        disk.write_file(tmp_path / "d" / "f", b"x")
        disk.set_mode(tmp_path / "d" / "f", 0o600)
        disk.unlink(tmp_path / "d" / "f")
        disk.remove_tree(tmp_path / "d")

    thread = threading.Thread(target=everything)
    thread.start()
    assert disk.asked.wait(PATIENCE_S)
    act = disk.under_way.longest()
    disk.go.set()
    thread.join()
    assert act is not None
    assert (act.operation, act.path.is_relative_to(tmp_path)) == (operation, True)
    assert disk.under_way.longest() is None


def test_of_the_acts_of_several_threads_the_one_that_was_begun_first_is_told_also_after_an_error() -> None:
    times = iter([5.0, 3.0, 9.0])
    under_way, inside, end = UnderWay(lambda: next(times)), threading.Event(), threading.Event()

    def other() -> None:
        with under_way.act("rename", Path("b")):
            inside.set()
            end.wait(PATIENCE_S)

    with under_way.act("fsync", Path("a")):
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(PATIENCE_S)
        first = under_way.longest()
        end.set()
        thread.join()
        assert (first.operation, first.since, under_way.longest().operation) == ("rename", 3.0, "fsync")
    with pytest.raises(OSError, match="no"), under_way.act("fsync", Path("a")):
        raise OSError("no")
    assert under_way.longest() is None
