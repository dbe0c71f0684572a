"""What the tests of compile jobs share: real processes that are always ended, and waiting that has a bound."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.compile import CompilerFacts, Event, Job, JobFailed, JobItem, JobResult, JobSpec, Pool, processes
from npgxd.toolchain.flags import CompilerFlags
from npgxd.toolchain.record import Record, parse_records
from tools.cann_sim import Costs, SimulatedCann, create
from tools.cann_sim.records import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


def until(condition: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
    """Wait until ``condition`` holds; fail with ``what`` after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {limit_s:g} s: {what}")
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    process = processes.read(pid)
    return process is not None and process.runs


class Started:
    """Processes that a test started; whatever is left of them is killed at its end."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._processes: list[subprocess.Popen[bytes]] = []
        self._others: list[processes.Process] = []

    def python(self, code: str, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        """A Python program in a session of its own."""
        options.setdefault("start_new_session", True)
        options.setdefault("cwd", self._where)
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
        self._processes.append(process)
        return process

    def pid_in(self, path: Path) -> int:
        """The pid that a process wrote into a file (by rename or with a newline at its end); it is ended with the test too."""
        until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} is written")
        pid = int(path.read_text())
        if (process := processes.read(pid)) is not None:
            self._others.append(process)
        return pid

    def end(self) -> None:
        """End all of them."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        for other in self._others:
            processes.send(other, signal.SIGKILL)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    family = Started(tmp_path)
    yield family
    family.end()


# ---- jobs on a simulated CANN ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_cann(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCann:
    """Made once: it takes longer than most tests here."""
    return create(tmp_path_factory.mktemp("cann") / "cann")


@pytest.fixture
def cann(shared_cann: SimulatedCann) -> SimulatedCann:
    """A simulated CANN 9.1.0 in which nothing takes time, nothing is ordered and nothing was compiled."""
    shared_cann.cancel_orders()
    shared_cann.set_costs(Costs())
    for path in (*shared_cann.home.glob("sim-runs.jsonl"), *shared_cann.home.glob("sim-order-*.taken")):
        path.unlink()
    return shared_cann


class Bench:
    """A pool, and what it takes to give it jobs; every job is ended with the test."""

    def __init__(self, where: Path, cann: SimulatedCann) -> None:
        self.cann = cann
        self.jobs_dir = where / "jobs"
        self.staging = where / "staging"
        for path in (self.jobs_dir, self.staging):
            path.mkdir()
        self.pool = Pool(2, slack_s=5.0)
        self._started: list[Job] = []

    def spec(self, described: Sequence[dict[str, object]], job_id: str = "0" * 32, **changes: Any) -> JobSpec:
        """A job for these records; ``changes`` go into the spec, or into the toolchain's facts."""
        parsed, rejected = parse_records((f"{at}.json", encode(one)) for at, one in enumerate(described))
        assert not rejected
        facts = CompilerFacts(
            op_compiler=str(changes.pop("op_compiler", self.cann.op_compiler)),
            soc=self.cann.soc.name,
            family=self.cann.soc.family,
            cann_version=self.cann.version,
            environment={**self.cann.env(), **changes.pop("environment", {})},
            install_path=changes.pop("install_path", True),
        )
        items = tuple(JobItem(key_of(one), one.digest, one.op_type, one.trace, one.canonical, "f" * 64) for one in parsed)
        given: dict[str, Any] = {"jobs": 2, "deadline_s": 60.0, "nice": 0, "grace_s": 0.5, **changes}
        flags = given.pop("flags", CompilerFlags(follow_op_params_jit="true"))
        return JobSpec(job_id, items, facts, flags, self.jobs_dir / job_id, self.staging, **given)

    def start(self, spec: JobSpec) -> Job:
        """Start it in the pool."""
        job = self.pool.start(spec)
        self._started.append(job)
        return job

    def finish(self, job: Job, limit_s: float = 60.0) -> list[Event]:
        """Everything the job tells until its end."""
        events: list[Event] = []
        end = time.monotonic() + limit_s
        while not job.ended:
            assert time.monotonic() < end, f"job did not end; so far: {events}"
            select.select([job], [], [], 0.1)
            self.pool.enforce(time.monotonic())
            events += job.receive()
        return events

    def run(self, spec: JobSpec) -> JobResult:
        """Run a job to its result."""
        last = self.finish(self.start(spec))[-1]
        assert isinstance(last, JobResult), last
        return last

    def failed(self, spec: JobSpec) -> JobFailed:
        """Run a job that gives no result."""
        last = self.finish(self.start(spec))[-1]
        assert isinstance(last, JobFailed), last
        return last

    def end(self) -> None:
        """End what still runs, also what a broken pool left, and give back descriptors."""
        for job in self._started:
            job.close()
            end_token(job.token)


def key_of(one: Record) -> str:
    """The key under which a record is compiled here."""
    return hashlib.sha256(one.canonical + b"key").hexdigest()


def family_of(job: Job) -> list[processes.Process]:
    """Every running process of a job, its worker included."""
    return with_token(job.token)


def with_token(token: str) -> list[processes.Process]:
    """Every running process that carries a job's token."""
    return [one for one in processes.table().values() if one.runs and processes.carries(one, f"NPGXD_JOB={token}")]


def end_token(token: str) -> None:
    """Kill them, so that a test that fails leaves nothing behind."""
    while left := with_token(token):
        for process in left:
            processes.send(process, signal.SIGKILL)


def compiler(path: Path, code: str, **names: object) -> Path:
    """An op_compiler of a test's own: Python, with some names given."""
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    path.write_text(f"#!{sys.executable} -ISB\n{given}{textwrap.dedent(code)}")
    path.chmod(0o755)
    return path


@pytest.fixture
def bench(tmp_path: Path, cann: SimulatedCann) -> Iterator[Bench]:
    prepared = Bench(tmp_path, cann)
    yield prepared
    prepared.end()
