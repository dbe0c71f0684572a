"""A whole node for one test: a simulated CANN, a real daemon process, real rank processes. Everything started here is ended here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import zmq

from npgxd.client.connection import Connection
from npgxd.errors import DaemonUnavailable
from npgxd.wire.messages import Status
from tools.cann_sim import Costs, SimulatedCann, create, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANK = Path(__file__).with_name("rank.py")
REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 60.0
DAEMON = ("-m", "npgxd.daemon.main")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: nobody else can become another user")
BRISK = (str(Path(__file__).with_name("brisk_daemon.py")),)
"""What a node's daemon is run by: as everywhere, or so that it looks around more often."""
PATIENT = {"handshake_s": 30.0, "silence_s": 30.0, "reconnect_s": PATIENCE_S}
"""How a rank waits for its daemon unless its test says otherwise: on a busy machine one that answers late is not gone."""
ALL_COME = {"window_s": PATIENCE_S, "quiet_s": PATIENCE_S}
"""``[group]`` of a node all of whose ranks come, however long the last of them takes to start."""

Named = list[tuple[str, str]]


def named(*items: dict[str, Any]) -> Named:
    """Records with file names, as a dump gives them."""
    return [(f"{item['op_type']}_{position}.json", json.dumps(item)) for position, item in enumerate(items)]


def matmuls(*sizes: int) -> Named:
    return named(*(records.matmul(size, 32, 64) for size in sizes))


def eventually(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true value of ``what``, polled; an assertion error after far longer than it can take."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"never happened: {why}")


class Rank:
    """A rank process that asks for static kernels, says what it got, and lives until it is told to end."""

    def __init__(self, process: subprocess.Popen[bytes], report: Path) -> None:
        self.process = process
        self.report = report

    def outcome(self) -> dict[str, Any]:
        """What it got; it goes on living and holds its lease."""

        def told() -> Any:
            if self.report.exists():
                return json.loads(self.report.read_text())
            assert self.process.poll() is None, f"the rank ended with {self.process.returncode}:\n{self.error()}"
            return None

        return eventually(told, "a rank has its outcome")

    def error(self) -> str:
        return self.report.with_suffix(".err").read_text()

    def end(self) -> int:
        """Let it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


class Node:
    """One node under test."""

    def __init__(self, directory: Path, cann: SimulatedCann) -> None:
        self.directory = directory
        self.cann = cann
        self.runtime = Path(tempfile.mkdtemp(prefix="npgxd-t-", dir="/tmp"))
        self.socket = self.runtime / "npgxd.sock"
        self.state = directory / "state"
        self.config = directory / "npgxd.toml"
        self.log = directory / "npgxd.log"
        self.settings: dict[str, dict[str, object]] = {
            "daemon": {"state_dir": str(self.state), "runtime_dir": str(self.runtime), "log_level": "debug", "drain_s": 20},
            "toolchain": {"home": str(cann.home), "opp": str(cann.opp), "soc": cann.soc.name},
            "compile": {"workers": 2, "jobs": 2},
        }
        self.program: tuple[str, ...] = DAEMON
        self.daemon: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ranks = 0

    # ---- the daemon ----

    def write_config(self) -> None:
        lines = []
        for section, values in self.settings.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.config.write_text("\n".join(lines) + "\n")

    def environment(self, **more: str) -> dict[str, str]:
        dropped = ("ASCEND_", "NPGXD_", "RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        kept["PYTHONPATH"] = str(REPOSITORY)
        return {**kept, "NPGXD_SOCKET": str(self.socket), "XDG_CACHE_HOME": str(self.directory / "cache"), **more}

    def spawn(self, *arguments: str, stderr: Path, **more: str) -> subprocess.Popen[bytes]:
        with stderr.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environment(**more),
                cwd=self.directory,
            )
        self._processes.append(process)
        return process

    def start(self) -> subprocess.Popen[bytes]:
        self.write_config()
        self.daemon = self.spawn(*self.program, "--config", str(self.config), stderr=self.log)
        eventually(self._answers, "the daemon answers")
        return self.daemon

    def _answers(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.poll() is None, f"the daemon ended with {self.daemon.returncode}:\n{self.log.read_text()}"
        return self.socket.exists() and self.status() is not None

    def stop(self) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(PATIENCE_S)

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait(PATIENCE_S)

    def status(self) -> dict[str, Any] | None:
        context = zmq.Context()
        try:
            connection = Connection(context, self.socket, handshake_s=5.0)
            reply = connection.request(Status(), timeout_s=5.0)
            connection.close()
            return json.loads(b"".join(reply.frames))
        except DaemonUnavailable:
            return None  # not there (yet): the caller polls
        finally:
            context.destroy(linger=0)

    # ---- ranks ----

    def rank(
        self, items: Named, *, options: dict[str, Any] | None = None, launch: tuple[str, ...] = (str(RANK),), **environment: str
    ) -> Rank:
        number, self._ranks = self._ranks, self._ranks + 1
        ask = self.directory / f"rank{number}.ask.json"
        ask.write_text(json.dumps({"records": items, "patience": PATIENT, **(options or {})}))
        report = self.directory / f"rank{number}.json"
        return Rank(self.spawn(*launch, str(ask), str(report), stderr=report.with_suffix(".err"), **environment), report)

    def group(self, lists: list[Named], **environment: str) -> list[Rank]:
        """Ranks of one torchrun job."""
        return [
            self.rank(
                items,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(len(lists)),
                TORCHELASTIC_RUN_ID="one",
                MASTER_ADDR="localhost",
                MASTER_PORT="1",
                **environment,
            )
            for rank, items in enumerate(lists)
        ]

    # ---- what happened ----

    def compiled(self) -> list[str]:
        """The record of every kernel that the simulated compiler was run for, over all runs."""
        return [op.record for run in self.cann.runs() for op in run.ops]

    def children(self) -> list[psutil.Process]:
        """Workers and compilers that run now."""
        assert self.daemon is not None
        return psutil.Process(self.daemon.pid).children(recursive=True)

    def compilers(self) -> list[psutil.Process]:
        """Running op_compiler processes of this node's simulated CANN."""
        found = []
        for process in psutil.process_iter():
            try:
                if any(str(self.cann.home / "bin" / "op_compiler") in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for leftover in self.compilers():
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end by itself meanwhile
                leftover.kill()
        shutil.rmtree(self.runtime, ignore_errors=True)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Make nodes; each keyword is a cost of the simulated compiler, or its version or SoC."""
    made: list[Node] = []

    def make(*, version: str = "9.1.0", soc: str = "Ascend910B3", startup_s: float = 0.0, per_op_s: float = 0.0) -> Node:
        directory = tmp_path / f"node{len(made)}"
        directory.mkdir()
        cann = create(directory / "cann", version=version, soc=soc, costs=Costs(startup_s=startup_s, per_op_s=per_op_s))
        made.append(Node(directory, cann))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A node whose compiler takes no time, with its daemon running."""
    made = make_node()
    made.start()
    return made
