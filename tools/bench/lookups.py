"""Look-ups in the compile cache: how long a HIT takes for eight clients, alone, with busy workers, and beside a large entry.

The peer, in the same clients and at the same time, is a bare echo of as many bytes (``echo``).

``python -m tools.bench.lookups COUNT`` is one of the clients: it looks one key up COUNT times and prints how long each took, and how
long each echo (us).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.client import Client
from npgxd.wire.states import ArtifactState
from tools.bench import echo
from tools.cann_sim import Costs, records
from tools.demo.node import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.demo.children import Children

CLIENTS = 8
LOOKUPS = 300
PAUSE_S = 0.01
"""Between two look-ups of a client: as ranks that start do, not as fast as they can."""
SMALL, LARGE = 16_000, 200_000_000
KEY = hashlib.sha256(b"small").hexdigest()
LARGE_KEY = hashlib.sha256(b"large").hexdigest()
REPOSITORY = Path(__file__).parents[2]


def lookups(directory: Path, children: Children) -> dict[str, str]:
    """HITs of a 16 kB entry by eight clients."""
    costs = Costs(startup_s=0.5, per_op_s=0.5)
    told: dict[str, str] = {}
    with Node(directory, children, costs=costs) as node, echo.running(node.runtime / "echo", SMALL) as peer:
        node.start_daemon()
        client = Client(node.environment())
        if not client.publish(KEY, os.urandom(SMALL)):
            raise SystemExit("the entry cannot be published")
        told |= _crowd(node, peer, "idle workers")
        busy = threading.Thread(target=_compile, args=(node,), daemon=True)
        busy.start()
        told |= _crowd(node, peer, "all workers busy")
        large = os.urandom(LARGE)
        other = threading.Thread(target=lambda: client.publish(LARGE_KEY, large, deadline_s=600))
        other.start()
        begun = time.perf_counter()
        told |= _crowd(node, peer, "while 200 MB are published")
        other.join()
        told["the 200 MB, published beside that"] = f"{time.perf_counter() - begun:.2f} s"
        begun = time.perf_counter()
        if client.lookup(LARGE_KEY).data != large:
            raise SystemExit("the large entry came back as another")
        told["the 200 MB, looked up"] = f"{time.perf_counter() - begun:.2f} s"
        client.close()
    return told


def _crowd(node: Node, peer: Mapping[str, str], when: str) -> dict[str, str]:
    command = [sys.executable, "-m", "tools.bench.lookups", str(LOOKUPS)]
    environment = {**node.environment(), **peer}
    running = [
        subprocess.Popen(command, env=environment, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(CLIENTS)
    ]
    for process in running:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise SystemExit("a client did not start")
    taken: list[float] = []
    echoes: list[float] = []
    for process in running:
        if process.stdin is not None:
            process.stdin.write("go\n")
            process.stdin.flush()
    for process in running:
        out, _ = process.communicate()
        for lookup, bare in json.loads(out):
            taken.append(float(lookup))
            echoes.append(float(bare))
    return {
        f"look-up HIT of {SMALL // 1000} kB, {CLIENTS} clients, {when}": spread(taken),
        f"  a bare echo of as many bytes, {when}": spread(echoes),
    }


def _compile(node: Node) -> None:
    """Keep the workers busy for as long as this takes."""
    items = [(f"{at}.json", json.dumps(item).encode()) for at, item in enumerate(records.many(400))]
    Client(node.environment()).static_kernels(items, graph="0")


def spread(taken: list[float]) -> str:
    """Durations in microseconds as one line."""
    ordered = sorted(taken)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"p50 {p50:.0f}  p99 {p99:.0f}  max {ordered[-1]:.0f} us (n={len(ordered)})"


def main(count: int) -> None:
    """One client."""
    client = Client()
    client.lookup(KEY)
    peer = echo.Echo(os.environ[echo.VARIABLE])
    print("ready", flush=True)
    sys.stdin.readline()
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        found = client.lookup(KEY)
        took = time.perf_counter() - begun
        if found.state is not ArtifactState.HIT:
            raise SystemExit(f"no HIT: {found}")
        time.sleep(PAUSE_S)
        taken.append((took * 1e6, peer.ask() * 1e6))
        time.sleep(PAUSE_S)
    print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
