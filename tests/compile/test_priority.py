"""Whatever compiles gives way to ranks and to the daemon, as far as the kernel lets it, and also between sessions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from npgxd.compile.priority import IO_PRIORITY, GivingWay
from tests.compile.conftest import Bench, Started, family_of, until
from tools.cann_sim.records import elementwise

NICE = 15
"""Nicer than whatever these tests run with."""
SLEEPING = "import time; print(flush=True); time.sleep(600)"
REFUSING = """
import ctypes, errno, os, platform, struct
FORBIDDEN = {"x86_64": (144, 141, 251), "aarch64": (119, 140, 30)}[platform.machine()]  # sched_setscheduler, setpriority, ioprio_set
steps = [(0x20, 0, 0, 0)]  # the number of the call; then, for each: refused if equal
for at, number in enumerate(FORBIDDEN):
    steps.append((0x15, len(FORBIDDEN) - at, 0, number))
steps += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(steps), ctypes.addressof(code))
prctl = ctypes.CDLL(None, use_errno=True).prctl
before = (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
try:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
except PermissionError:
    from npgxd.compile.priority import GivingWay
    GivingWay(os.getpid(), 15).settle()
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before
    os._exit(7)  # which says that it came here
"""
TWO_SESSIONS = """
import ctypes, os, time
from pathlib import Path
from npgxd.compile.priority import GivingWay
prctl = ctypes.CDLL(None).prctl
if os.geteuid() == 0:  # whom the kernel lets change as many as he likes
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    prctl(4, 1, 0, 0, 0)  # its files in /proc are its own again, as after an exec
pids = []
for _ in range(2):
    if (pid := os.fork()) == 0:
        prctl(1, 9, 0, 0, 0)  # ends with its parent
        os.setsid()
        time.sleep(600)
    pids.append(pid)
while any(os.getsid(pid) != pid for pid in pids):
    time.sleep(0.001)
both = [GivingWay(pid, 15) for pid in pids]
while any(" nice 15" not in Path(f"/proc/{pid}/autogroup").read_text() for pid in pids):
    time.sleep(0.01)
    for one in both:
        one.settle()
"""


def session_niceness(pid: int) -> int | None:
    """That of the process's session as a whole; None on a kernel that does not group by sessions."""
    try:
        said = Path(f"/proc/{pid}/autogroup").read_text()
    except FileNotFoundError:
        return None
    return int(said.rpartition(" ")[2]) if said else None


by_session = pytest.mark.skipif(session_niceness(os.getpid()) is None, reason="this kernel does not group processes by session")


def sleeping(started: Started, before: str = "", **options: object) -> int:
    """A process that only sleeps, and leads a session if ``options`` do not say otherwise."""
    process = started.python(f"import os\n{before}\n{SLEEPING}", stdout=subprocess.PIPE, **options)
    assert process.stdout is not None
    with process.stdout as said:
        said.readline()
    return process.pid


def test_a_worker_its_compiler_and_the_compilers_children_give_way(bench: Bench) -> None:
    bench.cann.order("Add", "hang")
    job = bench.start(bench.spec([elementwise("Add", (4, 64))], nice=NICE))
    until(lambda: {"op_compiler", "opc", "bisheng"} <= {process.name for process in family_of(job)}, "a child of opc hangs")
    for process in family_of(job):
        assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH, process
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == NICE, process
        assert tuple(psutil.Process(process.pid).ionice()) == (psutil.IOPRIO_CLASS_BE, IO_PRIORITY), process


@by_session
def test_a_job_gives_way_to_what_runs_in_other_sessions(bench: Bench) -> None:
    ours = session_niceness(os.getpid())
    bench.cann.order("Add", "hang")
    job = bench.start(bench.spec([elementwise("Add", (4, 64))], nice=NICE))
    until(lambda: {"op_compiler", "opc", "bisheng"} <= {process.name for process in family_of(job)}, "a child of opc hangs")
    until(lambda: {session_niceness(process.pid) for process in family_of(job)} == {NICE}, "the job's session is nice")
    assert session_niceness(os.getpid()) == ours


@by_session
def test_sessions_that_begin_together_all_give_way_though_the_kernel_takes_one_in_100_ms(started: Started) -> None:
    process = started.python(TWO_SESSIONS, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert process.wait(30) == 0


@by_session
def test_a_session_that_is_somebody_elses_is_left_alone(started: Started) -> None:
    ours = session_niceness(os.getpid())
    pid = sleeping(started, start_new_session=False)
    GivingWay(pid, NICE).settle()
    assert os.getpriority(os.PRIO_PROCESS, pid) == NICE
    assert session_niceness(pid) == session_niceness(os.getpid()) == ours


def test_niceness_is_not_added_to_what_a_daemon_was_started_with(started: Started) -> None:
    pid = sleeping(started, "os.setpriority(os.PRIO_PROCESS, 0, 12)")
    GivingWay(pid, NICE)
    assert os.getpriority(os.PRIO_PROCESS, pid) == NICE


def test_who_takes_less_already_does_not_take_more(started: Started) -> None:
    pid = sleeping(started, "os.setpriority(os.PRIO_PROCESS, 0, 18); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))")
    GivingWay(pid, NICE)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 18
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    assert session_niceness(pid) in {18, None}


def test_a_sandbox_that_refuses_it_is_no_error(started: Started) -> None:
    process = started.python(REFUSING, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert process.wait(30) == 7


def test_a_process_that_has_ended_is_no_error(started: Started) -> None:
    process = started.python("")
    process.wait()
    GivingWay(process.pid, NICE).settle()
