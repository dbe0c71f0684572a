"""One compile run, from records to run package, with the logs and leavings that the real one has."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import package, workers
from .kernel import Target, index_entry
from .resolve import Implementations, NoImplementation
from .workers import Work

if TYPE_CHECKING:
    from .home import Home
    from .record import Record
    from .socs import Soc


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    home: Home
    soc: Soc
    environ: dict[str, str]
    records: dict[str, Record]
    unreadable: list[str]
    jobs: int
    output: Path
    follow: bool
    flags: str
    verbose: bool


@dataclass
class Session:
    """Names and places of one run."""

    request: Request
    name: str
    directory: Path
    """Where the package goes."""
    file_name: str
    build: Path
    """Kernels before they are packed: in the working directory, left there when the run is killed."""
    logs: Path
    log_lines: list[str] = field(default_factory=list)

    def say(self, line: str, *, always: bool = False) -> None:
        """A line for ``$HOME/ascend/log``, and for the terminal where asked."""
        self.log_lines.append(line)
        if always or self.request.verbose:
            print(line, flush=True)


def run(request: Request, *, started: float) -> int:
    """Compile, pack and report; the exit status of op_compiler."""
    home = request.home
    session = _open_session(request, started)
    pid = os.getpid()
    ops = [{"op_type": r.op_type, "record": r.digest, "file": name} for name, r in request.records.items()]
    start = {"event": "start", "pid": pid, "time": started, "argv": sys.argv[1:], "cwd": str(Path.cwd()), "ops": ops}
    home.log_run({**start, "home": request.environ.get("HOME", "")})
    time.sleep(max(0.0, home.costs.startup() - (time.time() - started)))
    status, compiled = _run(session)
    seconds = round(time.time() - started, 4)
    home.log_run({"event": "end", "pid": pid, "time": time.time(), "status": status, "compiled": compiled, "seconds": seconds})
    _write_system_log(session)
    return status


def _run(session: Session) -> tuple[int, list[str]]:
    """The exit status, and the names of the kernels that were compiled."""
    request = session.request
    for complaint in request.unreadable:
        session.say(f"[WARNING] skipped {complaint}", always=True)
    implementations = Implementations(request.environ, request.soc.family)
    if not implementations.supported:
        print(f"[ERROR] op_compiler: no ops for {request.soc.name} in this installation", file=sys.stderr)
        return 1, []
    works = _plan(session, implementations)
    compiled = _compile(session, works)
    if not compiled:
        print("[ERROR] op_compiler: no op was compiled, no run package is generated", file=sys.stderr)
        return 1, []
    orders = request.home.orders.for_run(list(request.records.values()))
    if "exit_nonzero" in orders:
        print("[ERROR] op_compiler: internal error (ordered failure)", file=sys.stderr)
        return 1, []
    status = _pack(session, compiled, orders)
    shutil.rmtree(session.build)
    return (1 if "exit_nonzero_with_package" in orders else status), sorted(work.target.name for work in compiled)


def _open_session(request: Request, started: float) -> Session:
    """Name the run ``static_kernel_<18 digits>_<pid>`` and make its directories."""
    moment = dt.datetime.fromtimestamp(started, tz=dt.UTC)
    name = f"static_kernel_{moment:%Y%m%d%H%M%S}{moment.microsecond // 100:04d}_{os.getpid()}"
    asked = request.output
    is_file = asked.suffix == ".run"
    directory = asked.parent if is_file else asked
    directory.mkdir(parents=True, exist_ok=True)
    session = Session(
        request=request,
        name=name,
        directory=directory,
        file_name=asked.name if is_file else f"{name}.run",
        build=Path.cwd() / f"{name}_build",
        logs=directory / f"{name}_compile_log",
    )
    session.build.mkdir()
    session.logs.mkdir()
    return session


def _plan(session: Session, implementations: Implementations) -> list[Work]:
    """A piece of work for each kernel: one a record with ``-f``, else two."""
    request = session.request
    build = request.home.build()
    works: dict[str, Work] = {}
    for record in request.records.values():
        try:
            implementation, problem = implementations.digest(record.op_type), ""
        except NoImplementation as error:
            implementation, problem = "", str(error)
        order = None if problem else request.home.orders.for_op(record)
        for deterministic in (record.deterministic,) if request.follow else (False, True):
            target = Target(
                record=record,
                deterministic=deterministic,
                soc=request.soc,
                implementation=implementation,
                build=build,
                flags=request.flags,
                object_bytes=request.home.costs.object_bytes,
            )
            directory = session.build / request.soc.family / record.op_type
            directory.mkdir(parents=True, exist_ok=True)
            log = session.logs / f"{target.name}_compile_error.log"
            works[target.name] = Work(target, request.home.costs.seconds(record), directory, log, order, problem)
    return list(works.values())


def _compile(session: Session, works: list[Work]) -> list[Work]:
    """Run every piece of work; those that succeeded."""
    compiled: list[Work] = []

    def done(work: Work, status: int) -> None:
        if status == workers.SUCCEEDED:
            compiled.append(work)
            session.say(f"[INFO] compile {work.target.name} success ({len(compiled)}/{len(works)})")
            return
        if status < 0:
            with work.log.open("a") as log:
                log.write(f"[ERROR] opc {work.target.name}: killed by signal {-status}\n")
        session.say(f"[ERROR] compile {work.target.name} failed, see {work.log}", always=True)

    workers.run(works, session.request.jobs, done)
    return compiled


def _pack(session: Session, compiled: list[Work], orders: frozenset[str]) -> int:
    """Write the run package of what was compiled, with the damage that was ordered."""
    request = session.request
    index: dict[str, Any] = {}
    for work in sorted(compiled, key=lambda work: work.target.name):
        kind = work.order.kind if work.order else ""
        path = work.directory / f"{work.target.name}.o"
        if kind == "leave_out":
            path.unlink()
            path.with_suffix(".json").unlink()
            continue
        if kind == "missing_object":
            path.unlink()
        elif kind == "torn_object":
            path.write_bytes(path.read_bytes()[:-7])
        index.setdefault(work.target.record.op_type, {"staticList": []})["staticList"].append(
            index_entry(work.target, session.name)
        )
    installer = next((kind for kind in ("installer_fails", "installer_does_nothing") if kind in orders), "")
    contents = package.Contents(session.name, request.soc.family, session.build, index, installer)
    content = package.damaged(package.package_bytes(contents, request.home.features), orders)
    target = session.directory / session.file_name
    if "no_space" in orders:
        target.write_bytes(content[: len(content) // 2])
        print(f"[ERROR] op_compiler: [Errno 28] No space left on device: '{target}'", file=sys.stderr)
        return 1
    target.write_bytes(content)
    target.chmod(0o750)
    session.say(f"generate run package {session.file_name} success", always=True)
    return 0


def _write_system_log(session: Session) -> None:
    """The log that CANN keeps under ``$HOME/ascend/log``, one file a process, without bound."""
    directory = Path(os.path.expanduser("~")) / "ascend" / "log" / "debug" / "plog"  # noqa: PTH111 -- Path.home() raises without HOME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"plog-{os.getpid()}_{session.name.split('_')[2]}.log").write_text("\n".join([*session.log_lines, ""]))
    except OSError as error:
        print(f"[WARNING] cannot write {directory}: {error}", file=sys.stderr)
