"""What reaches a compiler and what does not, and that everything ends, whoever dies first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from npgxd.compile import JobStarted
from npgxd.compile.leftovers import JOB_VARIABLE, end_leftovers
from npgxd.compile.priority import IO_PRIORITY
from tests.compile.conftest import Bench, Started, compiler, end_token, family_of, runs, until, with_token
from tools.cann_sim.records import elementwise

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from npgxd.compile import Job

ADD = elementwise("Add", (4, 64))
REPORT = """
import ctypes, json, os, platform, resource, signal, sys
io = ctypes.CDLL(None).syscall({"x86_64": 252, "aarch64": 31}[platform.machine()], 1, 0)  # ioprio_get(2)
def status(word):
    return next(line.split(":")[1].strip() for line in open("/proc/self/status") if line.startswith(word))
facts = {
    "environment": dict(os.environ),
    "descriptors": [os.readlink(fd) for name in os.listdir("/proc/self/fd") if os.path.lexists(fd := f"/proc/self/fd/{name}")],
    "umask": os.umask(0), "nice": os.nice(0), "policy": os.sched_getscheduler(0), "cwd": os.getcwd(),
    "session": os.getsid(0) == os.getppid(), "group": os.getpgrp() == os.getpid(),
    "blocked": status("SigBlk"), "ignored": status("SigIgn"), "core": resource.getrlimit(resource.RLIMIT_CORE),
    "oom": open("/proc/self/oom_score_adj").read().strip(), "io": divmod(io, 1 << 13),
    "input": os.readlink("/proc/self/fd/0"), "home": os.listdir(os.environ["HOME"]), "tmp": os.listdir(os.environ["TMPDIR"]),
    "modes": [oct(os.stat(os.environ[name]).st_mode & 0o777) for name in ("HOME", "TMPDIR")],
}
"""
REPORTING = """
import os, sys
exec(report)
facts["records"] = os.listdir(sys.argv[2])
json.dump(facts, open(told, "w"))
with open(os.path.join(sys.argv[sys.argv.index("-o") + 1], "x.run"), "w") as package:
    package.write(f"#!{sys.executable} -ISB\\n{report}\\njson.dump(facts, open({installed!r}, 'w'))\\n")
print("generate run package x.run success")
"""
GLIBCS_OWN = 0b11 << 31
"""Signals 32 and 33: no program can set them, and some shells start their children with one ignored."""
DAEMONISING = """
import os, sys, time
def write(name):
    open(f"{out}/{name}.new", "w").write(f"{os.getpid()}\\n")
    os.rename(f"{out}/{name}.new", f"{out}/{name}")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        write("orphan")
        if clear:
            os.execve(sys.executable, ["python", "-c", "import time; time.sleep(600)"], {})
        time.sleep(600)
    os._exit(0)
os.wait()
"""
AND_FAIL = """
while not os.path.exists(f"{out}/orphan"):  # it is ended with this process, and may not have come that far
    time.sleep(0.01)
sys.exit(1)
"""


@contextlib.contextmanager
def unlike_a_daemon(tmp_path: Path) -> Iterator[None]:
    """What a daemon may have and nothing that it starts should: an inheritable descriptor, signals blocked and ignored, any umask."""
    inherited = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(inherited, True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    handled = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    umask = os.umask(0)
    try:
        yield
    finally:
        os.umask(umask)
        signal.signal(signal.SIGHUP, handled)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(inherited)


def started_event(job: Job) -> JobStarted:
    found: list[JobStarted] = []
    until(lambda: found.extend(event for event in job.receive() if isinstance(event, JobStarted)) or found, "op_compiler runs")
    return found[0]


def hanging(bench: Bench, kind: str = "hang", **changes: object) -> Job:
    """A job whose compiler, its opc and a child of that hang for ever."""
    bench.cann.order("Add", kind)
    job = bench.start(bench.spec([ADD], **changes))
    until(lambda: {"opc", "bisheng"} <= {process.name for process in family_of(job)}, "opc and its child hang")
    return job


# ---- what reaches a compiler -----------------------------------------------------------------------------------------


def test_a_compiler_and_an_installer_get_nothing_of_the_daemon_but_what_is_meant_for_them(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, installed = tmp_path / "told.json", tmp_path / "installed.json"
    script = compiler(tmp_path / "op_compiler", REPORTING, report=REPORT, told=str(told), installed=str(installed))
    for name, value in {"DISPLAY": ":0", "SECRET": "x", "LD_PRELOAD": "", "NOTIFY_SOCKET": "/run/n", "HOME": "/daemon"}.items():
        monkeypatch.setenv(name, value)
    with unlike_a_daemon(tmp_path):
        spec = bench.spec([ADD], op_compiler=script, nice=15, environment={"DISPLAY": ":1", "MY_VAR": "x", "ASCEND_X": "kept"})
        result = bench.run(spec)
    assert result.exit_code == 0
    for facts in (json.loads(told.read_text()), json.loads(installed.read_text())):
        environment = facts["environment"]
        assert not {"DISPLAY", "SECRET", "LD_PRELOAD", "NOTIFY_SOCKET", "MY_VAR"} & set(environment)
        assert environment["ASCEND_X"] == "kept"
        assert environment["HOME"] == str(spec.job_dir / "home")
        assert environment["TMPDIR"] == str(spec.job_dir / "tmp")
        assert (facts["home"], facts["tmp"], facts["modes"]) == ([], [], ["0o700", "0o700"]), "of this job alone"
        opened = [where for where in facts["descriptors"] if not where.startswith("/proc/")]
        assert sorted(where.partition(":")[0] for where in opened) == ["/dev/null", "pipe", "pipe"]
        assert facts["input"] == "/dev/null"
        assert facts["umask"] == 0o077
        assert (facts["nice"], facts["policy"]) == (15, os.SCHED_BATCH)
        assert facts["cwd"] == str(spec.job_dir / "work")
        assert facts["session"], "its worker's"
        assert facts["group"], "its own"
        assert int(facts["blocked"], 16) == 0
        by_python = (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)  # the script's own interpreter ignores these
        assert int(facts["ignored"], 16) & ~GLIBCS_OWN == by_python
        assert facts["core"] == [0, 0]
        assert int(facts["oom"]) >= 300
        assert facts["io"] == [psutil.IOPRIO_CLASS_BE, IO_PRIORITY]
    assert [name.split("_")[:2] for name in json.loads(told.read_text())["records"]] == [["00000", "Add"]]


def test_a_worker_has_nothing_of_the_daemon_but_what_is_meant_for_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("DISPLAY", ":0")
    with unlike_a_daemon(tmp_path):
        job = hanging(bench, nice=15)
    worker = psutil.Process(job.pid)
    environment = worker.environ()
    assert set(environment) - {"LC_CTYPE"} == {"PATH", "LANG", JOB_VARIABLE}
    assert worker.cwd() == "/"
    assert (worker.nice(), os.sched_getscheduler(job.pid)) == (15, os.SCHED_BATCH)
    assert tuple(worker.ionice()) == (psutil.IOPRIO_CLASS_BE, IO_PRIORITY)
    assert worker.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert os.getsid(job.pid) == job.pid
    proc = Path(f"/proc/{job.pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    assert status["Umask"] == "0077"
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) & ~GLIBCS_OWN == 0
    opened = {number.name: str(number.readlink()) for number in (proc / "fd").iterdir()}
    assert opened.pop("0") == "/dev/null"
    assert {opened.pop("1"), opened.pop("2")} == {str(job.spec.job_dir / "worker.log")}
    own = (str(job.spec.job_dir), "pipe:", "socket:", "anon_inode:")
    assert [where for where in opened.values() if not where.startswith(own)] == []
    assert sum(where.startswith("socket:") for where in opened.values()) == 1, "the daemon's, and no other"
    job.cancel("the test ends")
    bench.finish(job)


def test_output_without_end_is_kept_within_its_bound(bench: Bench, tmp_path: Path) -> None:
    script = compiler(
        tmp_path / "op_compiler", "import os\nfor _ in range(200): os.write(1, b'x' * 100_000)\nos.write(2, b'bye')\n"
    )
    spec = bench.spec([ADD], op_compiler=script, log_bytes=10_000)
    result = bench.run(spec)
    assert result.log_tail.endswith("bye")
    assert (spec.job_dir / "op_compiler.out").stat().st_size < 11_000


def test_a_worker_is_started_without_the_callers_paths(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a module of the working directory was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert bench.run(bench.spec([ADD])).failed == ()


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_a_deadline_ends_a_stubborn_compiler_and_names_what_was_at_work(bench: Bench) -> None:
    bench.cann.order("Add", "hang_hard")
    job = bench.start(bench.spec([ADD], deadline_s=1.5, grace_s=0.2))
    (failed,) = bench.finish(job)[-1].failed
    assert failed.reason == "op_compiler did not end within 1.5 s; at work: Add"
    assert failed.transient
    assert family_of(job) == []


def test_a_cancelled_job_ends_with_the_reason_that_was_given(bench: Bench) -> None:
    job = hanging(bench)
    job.cancel("the daemon stops")
    (failed,) = bench.finish(job)[-1].failed
    assert (failed.reason, failed.transient) == ("the daemon stops", True)
    assert family_of(job) == []


def test_a_killed_worker_takes_its_compiler_and_that_ones_children_with_it(bench: Bench) -> None:
    job = hanging(bench, "hang_hard")
    os.kill(job.pid, signal.SIGKILL)
    last = bench.finish(job)[-1]
    assert last.reason == "the worker was killed by SIGKILL, which somebody sent: memory had not run out"
    assert [failed.transient for failed in last.failed] == [True]
    assert family_of(job) == []
    assert end_leftovers(bench.jobs_dir).jobs == ()
    assert list(bench.staging.iterdir()) == []


def test_a_killed_compiler_is_a_passing_failure_and_its_children_end(bench: Bench) -> None:
    job = hanging(bench)
    (leader,) = [process for process in family_of(job) if process.name == "op_compiler"]
    os.kill(leader.pid, signal.SIGKILL)
    (failed,) = bench.finish(job)[-1].failed
    assert "op_compiler was killed by SIGKILL" in failed.reason
    assert failed.transient
    assert family_of(job) == []


def test_a_stopped_worker_is_ended_by_the_pool(bench: Bench) -> None:
    bench.pool._slack_s = 0.3
    job = hanging(bench, deadline_s=600.0)
    os.kill(job.pid, signal.SIGSTOP)
    job.cancel("no longer wanted")
    last = bench.finish(job)[-1]
    assert last.reason == "no longer wanted"
    assert family_of(job) == []


def test_a_worker_that_is_past_its_deadline_is_ended_by_the_pool(bench: Bench) -> None:
    bench.pool._slack_s = 0.3
    job = hanging(bench, deadline_s=3.0)
    os.kill(job.pid, signal.SIGSTOP)
    last = bench.finish(job)[-1]
    assert last.reason == "the worker did not keep its deadline"
    assert family_of(job) == []


def test_a_child_that_was_forked_away_is_ended_with_a_compiler_that_goes_on(
    bench: Bench, tmp_path: Path, started: Started
) -> None:
    script = compiler(tmp_path / "op_compiler", DAEMONISING + "time.sleep(600)", out=str(tmp_path), clear=True)
    job = bench.start(bench.spec([ADD], op_compiler=script))
    orphan = started.pid_in(tmp_path / "orphan")
    job.cancel()
    bench.finish(job)
    assert not runs(orphan)


def test_a_child_that_was_forked_away_is_ended_when_its_compiler_ends(bench: Bench, tmp_path: Path, started: Started) -> None:
    script = compiler(tmp_path / "op_compiler", DAEMONISING + AND_FAIL, out=str(tmp_path), clear=True)
    job = bench.start(bench.spec([ADD], op_compiler=script))
    orphan = started.pid_in(tmp_path / "orphan")
    (failed,) = bench.finish(job)[-1].failed
    assert "exit status 1 and generated no run package" in failed.reason
    assert not runs(orphan)


def test_a_child_that_was_forked_away_is_found_after_its_worker_was_killed(
    bench: Bench, tmp_path: Path, started: Started
) -> None:
    script = compiler(tmp_path / "op_compiler", DAEMONISING + "time.sleep(600)", out=str(tmp_path), clear=False)
    job = bench.start(bench.spec([ADD], op_compiler=script))
    orphan = started.pid_in(tmp_path / "orphan")
    os.kill(job.pid, signal.SIGKILL)
    bench.finish(job)
    assert not runs(orphan)


HANGING_PACKAGE = """
import os, sys
out = sys.argv[sys.argv.index("-o") + 1]
with open(os.path.join(out, "x.run"), "w") as package:
    package.write("#!/bin/sh\\n(trap '' TERM; setsid sleep 600 & wait) &\\nsleep 600\\n")
print("generate run package x.run success")
"""


def test_an_installer_that_hangs_is_ended_at_the_jobs_deadline_with_all_its_children(bench: Bench, tmp_path: Path) -> None:
    job = bench.start(bench.spec([ADD], op_compiler=compiler(tmp_path / "op_compiler", HANGING_PACKAGE), deadline_s=4.0))
    until(lambda: len([one for one in family_of(job) if one.name == "sleep"]) == 2, "the installer and its child hang")
    (failed,) = bench.finish(job)[-1].failed
    assert failed.reason == "the run package's installer did not end within 4 s"
    assert failed.transient
    assert family_of(job) == []


def test_a_program_whose_claim_cannot_be_written_is_ended(bench: Bench, tmp_path: Path) -> None:
    script = compiler(tmp_path / "op_compiler", HANGING_PACKAGE + 'os.mkdir(os.path.join(out, "..", ".owner.json"))\n')
    job = bench.start(bench.spec([ADD], op_compiler=script))
    (failed,) = bench.finish(job)[-1].failed
    assert ".owner.json" in failed.reason
    assert family_of(job) == []


DAEMON = """
import select, sys, time
from pathlib import Path
from npgxd.compile import JobSpec, Pool
spec = JobSpec.unpack(Path(sys.argv[1]).read_bytes())
job = Pool(1).start(spec)
Path("token").write_text(job.token)
while True:
    select.select([job], [], [], 1)
    job.receive()
"""


@pytest.fixture
def daemon(bench: Bench, started: Started, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that owns a pool with one hanging job, as the daemon does, and that job's token."""
    bench.cann.order("Add", "hang_hard")
    (tmp_path / "spec").write_bytes(bench.spec([ADD]).pack())
    process = started.python(DAEMON, str(tmp_path / "spec"), env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    until(lambda: (tmp_path / "token").exists() and (tmp_path / "token").read_text(), "the job is started")
    token = (tmp_path / "token").read_text()
    until(lambda: {"opc", "bisheng"} <= {p.name for p in with_token(token)}, "opc and its child hang")
    yield process, token
    end_token(token)


def test_everything_ends_when_the_daemon_is_killed(bench: Bench, daemon: tuple[subprocess.Popen[bytes], str]) -> None:
    process, token = daemon
    family = with_token(token)
    process.kill()
    process.wait()
    # One that is ending loses its environment, and with it the token, before it has ended.
    until(lambda: not any(runs(one.pid) for one in family), "worker, compiler and its children have ended")
    assert not with_token(token)
    assert end_leftovers(bench.jobs_dir).jobs == ()


def test_what_daemon_and_worker_left_is_ended_at_the_next_start(
    bench: Bench, daemon: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, token = daemon
    worker = next(p for p in with_token(token) if p.parent == process.pid)
    os.kill(worker.pid, signal.SIGSTOP)  # so that it cannot clean up
    process.kill()
    process.wait()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: worker.pid not in {p.pid for p in with_token(token)}, "the worker has ended")
    left = end_leftovers(bench.jobs_dir, grace_s=0.2)
    assert left.jobs == ("0" * 32,)
    assert list(left) == [f"ended {left.ended} processes of 1 job: {'0' * 32}"]
    assert with_token(token) == []
    assert end_leftovers(bench.jobs_dir).jobs == ()
