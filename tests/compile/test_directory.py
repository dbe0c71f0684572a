from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from npgxd.compile.directory import Identity, JobDirectory, Owner, prune_jobs
from npgxd.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path


def ended(jobs: Path, name: str, *, age: int, size: int = 100) -> Path:
    directory = JobDirectory(jobs / name)
    directory.create()
    (directory.root / "op_compiler.out").write_bytes(b"x" * size)
    os.utime(directory.root, ns=(10**18 - age * 10**9,) * 2)
    return directory.root


def test_a_job_directory_is_its_owners_alone_and_its_id_does_not_repeat(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "job1")
    directory.create()
    directory.make_scratch()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (directory.root, *directory.root.iterdir()))
    assert directory.records != directory.work
    with pytest.raises(CompileError, match="is there already"):
        directory.create()


def test_scratch_goes_and_logs_stay_whatever_modes_a_compiler_left(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "job1")
    directory.create()
    directory.make_scratch()
    (directory.root / "op_compiler.err").write_text("why")
    locked = directory.work / "locked"
    locked.mkdir()
    (locked / "file").write_text("x")
    locked.chmod(0)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    (directory.out / "link").symlink_to(outside)
    directory.remove_scratch()
    assert [path.name for path in directory.root.iterdir()] == ["op_compiler.err"]
    assert (outside / "keep").exists()


def test_a_claim_is_read_back_until_it_is_disclaimed(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "job1")
    directory.create()
    owner = Owner("job1", "token", "boot", (Identity(1, 2), Identity(3, 4)))
    directory.claim(owner)
    assert directory.owner() == owner
    assert directory.is_claimed()
    directory.disclaim()
    directory.disclaim()
    assert directory.owner() is None


def test_fc25_old_job_directories_go_by_number_and_by_size(tmp_path: Path) -> None:
    for age in range(6):
        ended(tmp_path, f"job{age}", age=age)
    pruned = prune_jobs(tmp_path, keep=4, max_bytes=10_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job0", "job1", "job2", "job3"]
    assert (pruned.removed, pruned.kept, pruned.kept_bytes) == (2, 4, 400)
    pruned = prune_jobs(tmp_path, keep=4, max_bytes=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job0", "job1"]
    assert (pruned.removed, pruned.kept, pruned.kept_bytes) == (2, 2, 200)


def test_what_runs_or_may_run_is_not_pruned(tmp_path: Path) -> None:
    ended(tmp_path, "running", age=9)
    claimed = ended(tmp_path, "claimed", age=9)
    JobDirectory(claimed).claim(Owner("claimed", "t", "b", ()))
    ended(tmp_path, "old", age=1)
    (tmp_path / "file").write_text("not a job")
    assert prune_jobs(tmp_path, keep=0, max_bytes=0, running={"running"}).removed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["claimed", "file", "running"]
