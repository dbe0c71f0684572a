from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING

from npgxd.compile import processes
from npgxd.compile.directory import OWNER, Identity, JobDirectory, Owner
from npgxd.compile.leftovers import Leftovers, belonging, end_leftovers, identity

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

from tests.compile.conftest import Started, runs, until

TOKEN = secrets.token_hex(8)
COMPILER = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""

FORGETFUL = "import os, sys; os.fork(); os.execve(sys.executable, ['python', '-c', 'import time; time.sleep(600)'], {})"


def compiler(started: Started, tmp_path: Path, *, token: str = TOKEN) -> tuple[subprocess.Popen[bytes], int]:
    """A process with a child that was forked away twice, both with the job's token."""
    process = started.python(COMPILER, str(tmp_path / "pid"), env={**os.environ, "NPGXD_JOB": token})
    return process, started.pid_in(tmp_path / "pid")


def claim(jobs: Path, *leaders: Identity | None, token: str = TOKEN, boot: str | None = None) -> JobDirectory:
    jobs.mkdir(exist_ok=True)
    directory = JobDirectory(jobs / "job1")
    directory.create()
    directory.claim(Owner("job1", token, boot or processes.boot_id(), tuple(leader for leader in leaders if leader)))
    return directory


def test_nothing_left_is_nothing_done(tmp_path: Path) -> None:
    assert end_leftovers(tmp_path / "absent") == Leftovers()
    (tmp_path / "job1").mkdir()
    assert end_leftovers(tmp_path) == Leftovers()


def test_a_dead_daemons_compiler_and_its_forked_away_children_are_ended(started: Started, tmp_path: Path) -> None:
    process, orphan = compiler(started, tmp_path)
    directory = claim(tmp_path / "jobs", identity(process.pid))
    report = end_leftovers(tmp_path / "jobs")
    assert (report.jobs, report.ended, report.stuck) == (("job1",), 2, ())
    process.wait(10)
    until(lambda: not runs(orphan), "the orphan has ended")
    assert not directory.is_claimed()
    assert end_leftovers(tmp_path / "jobs") == Leftovers()


def test_an_orphan_is_known_by_its_token_alone(started: Started, tmp_path: Path) -> None:
    process, orphan = compiler(started, tmp_path)
    process.kill()
    process.wait()
    claim(tmp_path / "jobs", Identity(process.pid, 1))
    assert end_leftovers(tmp_path / "jobs").ended == 1
    until(lambda: not runs(orphan), "the orphan has ended")


def test_a_process_that_cleared_its_environment_is_ended_with_its_leaders_group(started: Started, tmp_path: Path) -> None:
    leader = started.python(
        "import os, sys; os.fork(); os.execve(sys.executable, ['python', '-c', 'import time; time.sleep(600)'], {})"
    )

    def members() -> list[processes.Process]:
        return [p for p in processes.table().values() if p.group == leader.pid and p.runs]

    until(lambda: len(members()) == 2, "both run")
    claim(tmp_path / "jobs", identity(leader.pid), token="not theirs")  # noqa: S106
    assert end_leftovers(tmp_path / "jobs").ended == 2
    assert members() == []
    leader.wait(10)


def test_a_stranger_that_got_the_pid_is_not_touched(started: Started, tmp_path: Path) -> None:
    stranger, child = compiler(started, tmp_path, token="another job's")  # noqa: S106
    now = identity(stranger.pid)
    assert now is not None
    directory = claim(tmp_path / "jobs", Identity(now.pid, now.started - 1))
    assert end_leftovers(tmp_path / "jobs") == Leftovers()
    assert runs(stranger.pid)
    assert runs(child)
    assert not directory.is_claimed()


def test_another_boots_identities_mean_nothing(started: Started, tmp_path: Path) -> None:
    stranger, child = compiler(started, tmp_path)
    claim(tmp_path / "jobs", identity(stranger.pid), boot="another boot")
    assert end_leftovers(tmp_path / "jobs") == Leftovers()
    assert runs(stranger.pid)
    assert runs(child)


def test_a_torn_owner_file_is_dropped_and_ends_nobody(tmp_path: Path) -> None:
    directory = claim(tmp_path / "jobs")
    for torn in ("", "{", "[]", json.dumps({"job": "job1"}), '{"leaders": 3}'):
        (directory.root / OWNER).write_text(torn)
        assert end_leftovers(tmp_path / "jobs") == Leftovers()
        assert not directory.is_claimed()


def test_the_caller_and_its_ancestors_are_spared(tmp_path: Path) -> None:
    directory = claim(tmp_path / "jobs", identity(os.getpid()), identity(os.getppid()))
    owner = directory.owner()
    assert owner is not None
    assert belonging(owner, directory.root, processes.table()) == []
