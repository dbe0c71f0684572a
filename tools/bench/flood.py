"""One user floods the daemon with connections and messages: how long look-ups of another user's process take meanwhile. Needs root.

``python -m tools.bench.flood UID SOCKET`` is the flooder: it sends as fast as it can, and reads nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import psutil
import zmq

from npgxd.client import Client
from npgxd.wire.states import ArtifactState
from tools.bench import lookups
from tools.cann_sim import Costs
from tools.demo.node import Node

if TYPE_CHECKING:
    from tools.demo.children import Children

STRANGER = 54321
CONNECTIONS = 200
LOOKUPS = 1000
PAUSE_S = 0.005
LARGE = b"x" * 1_000_000
REPOSITORY = Path(__file__).parents[2]


def flood(directory: Path, children: Children) -> dict[str, str]:
    """Look-ups of one process, alone and beside the flood."""
    if os.geteuid() != 0:
        return {"look-ups beside a flood": "not measured: another user's process is needed, so run it as root"}
    told: dict[str, str] = {}
    with Node(directory, children, costs=Costs()) as node:
        node.start_daemon()
        node.runtime.chmod(0o755)
        node.socket.chmod(0o666)
        client = Client(node.environment())
        if not client.publish(lookups.KEY, os.urandom(lookups.SMALL)):
            raise SystemExit("the entry cannot be published")
        told["look-up HIT of 16 kB, one client, alone"] = _measured(client)
        daemon = psutil.Process(node.daemon.pid if node.daemon is not None else 0)
        before = daemon.memory_info().rss
        flooder = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.flood", str(STRANGER), str(node.socket)],
            env=node.environment(),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
        )
        try:
            if flooder.stdout is None or flooder.stdout.readline() != b"on\n":
                raise SystemExit("the flood did not begin")
            told[f"the same, beside {CONNECTIONS} connections that send without a pause"] = _measured(client)
            told["daemon RSS: before, in the flood"] = f"{before / 1e6:.0f}, {daemon.memory_info().rss / 1e6:.0f} MB"
        finally:
            flooder.kill()
            flooder.communicate()
        client.close()
    return told


def _measured(client: Client) -> str:
    taken: list[float] = []
    missed = 0
    for _ in range(LOOKUPS):
        begun = time.perf_counter()
        missed += client.lookup(lookups.KEY).state is not ArtifactState.HIT
        taken.append((time.perf_counter() - begun) * 1e6)
        time.sleep(PAUSE_S)
    return lookups.spread(taken) + (f", {missed} without an answer in time" if missed else "")


def main(uid: int, path: str) -> None:
    """The flooder."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * CONNECTIONS)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    sockets = [context.socket(zmq.DEALER) for _ in range(CONNECTIONS)]
    for socket in sockets:
        socket.linger = 0
        socket.connect(f"ipc://{path}")
        socket.send(msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": [1]}))
    print("on", flush=True)
    turn = 1
    while True:
        turn += 1
        for number, socket in enumerate(sockets):
            op = ("status", "submit", "publish", "nothing")[(turn + number) % 4]
            head = msgpack.packb({"v": 1, "id": turn, "op": op, "round": os.urandom(16).hex()})
            try:
                socket.send_multipart([head, *([LARGE] if op == "submit" else [])], zmq.NOBLOCK)
            except zmq.Again:
                continue


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
