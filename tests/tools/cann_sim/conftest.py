"""A simulated CANN for each test, and its compiler and packages run as real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools.cann_sim import SimulatedCann, create
from tools.cann_sim.records import write_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def group_of(leader: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def name_of(pid: int) -> str:
    """The process name that ps shows; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill the whole group of a run, and take its pipes down."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ValueError):  # its pipes were read to their end before
        process.communicate()


@dataclass
class Compiled:
    """What one op_compiler run left."""

    status: int
    stdout: str
    stderr: str
    out: Path
    work: Path

    @property
    def packages(self) -> list[Path]:
        return sorted(self.out.glob("*.run"))

    @property
    def package(self) -> Path:
        (package,) = self.packages
        return package

    def logs(self, ending: str) -> list[Path]:
        return sorted(self.out.glob(f"*_compile_log/*_compile_{ending}.log"))


@dataclass
class Bench:
    """One simulated CANN with a directory to work in."""

    cann: SimulatedCann
    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)

    def env(self) -> dict[str, str]:
        return {**os.environ, **self.cann.env(), "HOME": str(self.directory / "home"), **self.environ}

    def start(self, records: Iterable[dict[str, Any]], *options: str, soc: str = "") -> tuple[subprocess.Popen[str], Path, Path]:
        """Start op_compiler in a process group of its own; the process, its output and its working directory."""
        place = self.directory / f"run{len(self.started) + 1}"
        work, params, out = place / "work", place / "records", place / "out"
        for path in (work, params, out):
            path.mkdir(parents=True)
        write_records(params, records)
        command = [str(self.cann.op_compiler), "-p", str(params), "-v", soc or self.cann.soc.name, "-o", str(out), *options]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=work, env=self.env(), text=True, stdout=pipe, stderr=pipe, start_new_session=True)
        self.started.append(process)
        return process, out, work

    def end(self) -> None:
        """Let nothing that was started outlive its test."""
        for process in self.started:
            end_group(process)

    def compile(self, records: Iterable[dict[str, Any]], *options: str, soc: str = "") -> Compiled:
        process, out, work = self.start(records, *(options or ("-f",)), soc=soc)
        stdout, stderr = process.communicate(timeout=60)
        return Compiled(process.returncode, stdout, stderr, out, work)

    def start_hanging(
        self, records: Iterable[dict[str, Any]], *options: str, count: int
    ) -> tuple[subprocess.Popen[str], list[int]]:
        """Start a run whose kernels were ordered to hang, and wait until ``count`` of them do; the pids of its process group."""
        process, _, _ = self.start(records, *options)
        for _ in range(3000):
            group = group_of(process.pid)
            if [name_of(pid) for pid in group].count("bisheng") == count:
                return process, group
            time.sleep(0.01)
        raise AssertionError("op_compiler did not come to its hanging kernels")

    def run(self, *command: str | Path, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=cwd or self.directory,
            env={**self.env(), **environ},
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def op_compiler(self, *options: str | Path, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.cann.op_compiler, *options, cwd=cwd, **environ)

    def install(self, package: Path, root: Path, *options: str) -> None:
        done = self.run(package, "-q", f"--install-path={root}", *options)
        assert (done.returncode, done.stderr) == (0, "")

    def kernels(self, records: Iterable[dict[str, Any]], *options: str, soc: str = "") -> dict[str, str]:
        """Compile, extract, and give each kernel's object by its op type and name."""
        compiled = self.compile(records, *options, soc=soc)
        assert compiled.status == 0, compiled.stderr
        target = compiled.out / "extracted"
        assert self.run(compiled.package, "-q", "--noexec", "--target", target).returncode == 0
        return {f"{path.parent.name}/{path.name}": path.read_bytes().hex() for path in target.glob("*/*/*/*.o")}


@pytest.fixture
def waits_for_lock() -> Callable[[Path], bool]:
    """Whether, within a bounded time, some process waits for the flock of a file."""

    def waits(path: Path) -> bool:
        inode = f":{path.stat().st_ino}"
        for _ in range(2000):
            locks = Path("/proc/locks").read_text().splitlines()
            if any("->" in line and line.split()[6].endswith(inode) for line in locks):
                return True
            time.sleep(0.01)
        return False

    return waits


@pytest.fixture(scope="session")
def bench_type() -> type[Bench]:
    return Bench


@pytest.fixture(name="group_of")
def _group_of() -> Callable[[int], list[int]]:
    return group_of


@pytest.fixture(name="end_group")
def _end_group() -> Callable[[subprocess.Popen[str]], None]:
    return end_group


@pytest.fixture
def bench_for(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(version: str = "9.1.0", soc: str = "Ascend910B3") -> Bench:
        directory = tmp_path / f"{version}-{soc}"
        benches.append(Bench(create(directory / "cann", version=version, soc=soc), directory))
        return benches[-1]

    yield make
    for bench in benches:
        bench.end()


@pytest.fixture
def bench(bench_for: Callable[..., Bench]) -> Bench:
    return bench_for()


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCann:
    """A 9.1.0 home that no test changes."""
    return create(tmp_path_factory.mktemp("shared") / "cann")


@pytest.fixture
def shared(shared_home: SimulatedCann, tmp_path: Path) -> Iterator[Bench]:
    """A bench on the shared home, for tests that order nothing and change no file of it."""
    bench = Bench(shared_home, tmp_path)
    yield bench
    bench.end()
