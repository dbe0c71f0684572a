"""A private node: a simulated CANN home and a daemon on it, both in the demo's own directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import zmq

from npgxd.client.connection import Connection
from npgxd.errors import DaemonUnavailable
from npgxd.wire.messages import Status
from tools.cann_sim import Costs, SimulatedCann, create
from tools.demo.failure import DemoError

if TYPE_CHECKING:
    from types import TracebackType

    from tools.demo.children import Child, Children

VERSION, SOC = "9.1.0", "Ascend910B3"
COSTS = Costs(startup_s=1.0, per_op_s=0.2)
"""Modest: a cold start of the demo compiles for some seconds; real op_compiler runs take minutes."""
JOBS = 2

READY_S = 20.0
STOP_S = 30.0
_HURRY_S = 2.0
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Counters:
    """The daemon's own count of what it did, over all its starts."""

    hits: int
    compiled: int
    failed: int
    kernels: int


class Node:
    """One simulated node: ``directory`` holds its CANN home, the daemon's state and its log."""

    def __init__(self, directory: Path, children: Children, *, cann: SimulatedCann | None = None, costs: Costs = COSTS) -> None:
        self.directory = directory
        self.children = children
        directory.mkdir(parents=True)
        self.cann = cann or create(directory / "cann", version=VERSION, soc=SOC, costs=costs)
        # A socket's path has at most 107 bytes, and the demo's directory may be anywhere.
        self.runtime = Path(tempfile.mkdtemp(prefix="npgxd-demo-", dir="/tmp"))
        self.socket = self.runtime / "npgxd.sock"
        self.config = directory / "npgxd.toml"
        self.config.write_text(self._configuration(), encoding="utf-8")
        self.daemon: Child | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.daemon is not None and not self.daemon.ended():
            self.daemon.signal(signal.SIGTERM)
            if self.daemon.wait(STOP_S if error is None else _HURRY_S) is None:
                self.daemon.signal(signal.SIGKILL)
        self._context.destroy(linger=0)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def _configuration(self) -> str:
        keys: dict[str, dict[str, object]] = {
            "daemon": {"state_dir": self.directory / "state", "runtime_dir": self.runtime},
            "toolchain": {"home": self.cann.home, "opp": self.cann.opp, "soc": SOC},
            "compile": {"jobs": JOBS, "workers": 2},
        }
        lines = []
        for section, values in keys.items():
            lines.append(f"[{section}]")
            lines.extend(
                f"{key} = {json.dumps(value if isinstance(value, int) else str(value))}" for key, value in values.items()
            )
        return "\n".join(lines) + "\n"

    def environment(self) -> dict[str, str]:
        """What a process on this node sees: the CANN environment as ``set_env.sh`` gives it, the socket, and caches of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_", "NPGXD_"))}
        own = {"NPGXD_SOCKET": str(self.socket), "XDG_CACHE_HOME": str(self.directory / "cache")}
        return {**kept, **self.cann.env(), **own}

    def start_daemon(self) -> float:
        """Start the daemon and wait until it answers; gives the seconds that took."""
        started = time.monotonic()
        self.daemon = self.children.start(
            [str(Path(sys.executable).with_name("npgxd")), "--config", str(self.config)],
            log=self.directory / "npgxd.log",
            environment=self.environment(),
            cwd=self.directory,
        )
        while time.monotonic() < started + READY_S:
            if self.status() is not None:
                return time.monotonic() - started
            if self.daemon.ended():
                break
            time.sleep(0.05)
        raise DemoError(f"the daemon did not become ready; its log ends with:\n{self.daemon.tail()}")

    def stop_daemon(self) -> int:
        """Ask the daemon to stop, as systemd does; gives its exit code."""
        daemon = self._running()
        daemon.signal(signal.SIGTERM)
        code = daemon.wait(STOP_S)
        if code is None:
            raise DemoError(f"the daemon did not stop within {STOP_S:.0f} s of SIGTERM; its log ends with:\n{daemon.tail()}")
        return code

    def kill_daemon(self) -> None:
        """End the daemon as a crash does."""
        daemon = self._running()
        daemon.signal(signal.SIGKILL)
        daemon.wait(STOP_S)

    def _running(self) -> Child:
        if self.daemon is None or self.daemon.ended():
            raise DemoError("the daemon is not running" + (f"; its log ends with:\n{self.daemon.tail()}" if self.daemon else ""))
        return self.daemon

    def npgxctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run npgxctl against this node's daemon."""
        command = [str(Path(sys.executable).with_name("npgxctl")), *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_S,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
        )

    def status(self) -> dict[str, Any] | None:
        """The daemon's status document (docs/file-formats.md), or None if it does not answer."""
        try:
            connection = Connection(self._context, self.socket, handshake_s=_ANSWER_S)
        except DaemonUnavailable:
            return None
        try:
            reply = connection.request(Status(), timeout_s=_ANSWER_S)
        except DaemonUnavailable:
            return None
        finally:
            connection.close()
        document: dict[str, Any] = json.loads(b"".join(reply.frames))
        return document

    def counters(self) -> Counters:
        """What the daemon has done so far; DemoError if it does not answer."""
        document = self.status()
        if document is None:
            raise DemoError("the daemon does not answer")
        cache = document["cache"]
        return Counters(cache["hits"], cache["compiled"], cache["failed"], document["kernels"]["count"])
