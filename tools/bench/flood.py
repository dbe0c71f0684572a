"""One user floods the daemon in several ways: how long look-ups of another user's process take meanwhile. Needs root.

The peer, in the same process and at the same time, is a bare echo of as many bytes (``echo``), in a process that nobody floods: what a
flooder takes of the machine's processors is so told apart from what the daemon lets through.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from npgxd.client import Client
from npgxd.wire.states import ArtifactState
from tools.bench import echo, flooders, lookups
from tools.bench.processor import Processor
from tools.cann_sim import Costs
from tools.demo.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.demo.children import Children

STRANGER = 54321
LOOKUPS = 600
PAUSE_S = 0.005
SETTLE_S = 2.0
"""After a flood has begun: what is measured is what lasts."""
LOOK = 20
"""Look-ups between two looks at the daemon's memory and descriptors."""
REPOSITORY = Path(__file__).parents[2]


def flood(directory: Path, children: Children) -> dict[str, str]:
    """Look-ups of one process, alone and beside each kind of flood, each on a new daemon."""
    if os.geteuid() != 0:
        return {"look-ups beside a flood": "not measured: another user's process is needed, so run it as root"}
    told: dict[str, str] = {}
    for kind in ("", *flooders.KINDS):
        with (
            Node(directory / (kind or "alone"), children, costs=Costs()) as node,
            echo.running(node.runtime / "echo", lookups.SMALL) as at,
        ):
            node.start_daemon()
            node.runtime.chmod(0o755)
            node.socket.chmod(0o666)
            client = Client(node.environment())
            if not client.publish(lookups.KEY, os.urandom(lookups.SMALL)):
                raise SystemExit("the entry cannot be published")
            daemon = psutil.Process(node.daemon.pid if node.daemon is not None else 0)
            with _flooder(node, kind) if kind else contextlib.nullcontext():
                told |= _measured(kind, client, echo.Echo(at[echo.VARIABLE]), daemon)
            client.close()
    return told


@contextlib.contextmanager
def _flooder(node: Node, kind: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.bench.flooders", kind, str(STRANGER), str(node.socket)],
        env=node.environment(),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
    )
    try:
        if process.stdout is None or process.stdout.readline() != b"on\n":
            raise SystemExit("the flood did not begin")
        time.sleep(SETTLE_S)
        yield
        if process.poll() is not None:
            raise SystemExit("the flood ended by itself")
    finally:
        process.kill()
        process.communicate()


def _measured(kind: str, client: Client, peer: echo.Echo, daemon: psutil.Process) -> dict[str, str]:
    taken: list[float] = []
    bare: list[float] = []
    missed, size, descriptors = 0, 0, 0
    processor = Processor(daemon.pid)
    for turn in range(LOOKUPS):
        begun = time.perf_counter()
        missed += client.lookup(lookups.KEY).state is not ArtifactState.HIT
        taken.append((time.perf_counter() - begun) * 1e6)
        time.sleep(PAUSE_S)
        bare.append(peer.ask() * 1e6)
        time.sleep(PAUSE_S)
        if turn % LOOK == 0:
            size, descriptors = max(size, daemon.memory_info().rss), max(descriptors, daemon.num_fds())
    when = f"beside {kind}" if kind else "alone"
    unanswered = f", {missed} without an answer in time" if missed else ""
    return {
        f"look-up HIT of {lookups.SMALL // 1000} kB, one client, {when}": lookups.spread(taken) + unanswered,
        f"  a bare echo of as many bytes, {when}": lookups.spread(bare),
        f"  the daemon, {when}": f"at most RSS {size / 1e6:.0f} MB, {descriptors} descriptors; {processor.told()}",
    }
