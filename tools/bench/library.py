"""A large op library: thousands of kernels made up, put in place by the store's own code, to measure the daemon beside them."""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.store.catalog import Catalog
from npgxd.store.disk import Disk
from npgxd.store.index import IndexEntry
from npgxd.store.kernels import KernelStore
from npgxd.store.manifest import Making, ManifestEntry, Origin
from npgxd.store.staging import MadeFile, stage_kernel
from npgxd.store.state import StateDirectory
from tools.cann_sim import Costs
from tools.demo.node import SOC, VERSION, Node

if TYPE_CHECKING:
    from tools.demo.children import Children

REPOSITORY = Path(__file__).parents[2]
CLIENTS = 8
ROUNDS = 150
_BATCH = 250


class _Quick(Disk):
    """A disk that is not waited for: what is made here need not survive a power loss."""

    def fsync_file(self, path: Path) -> None:
        """Nothing."""

    def fsync_directory(self, path: Path) -> None:
        """Nothing."""


def populate(place: Path, scratch: Path, count: int) -> None:
    """``count`` kernels of 4 KiB each in a state directory."""
    scratch.mkdir()
    state = StateDirectory.open(place, disk=_Quick())
    catalog = Catalog(state.catalog)
    store = KernelStore(state, catalog)
    made = [_stage(state, scratch, number) for number in range(count)]
    for start in range(0, count, _BATCH):
        store.publish(made[start : start + _BATCH])
    store.uses.flush()
    catalog.close()
    state.close()


def _stage(state: StateDirectory, scratch: Path, number: int) -> Path:
    name = hashlib.sha256(str(number).encode()).hexdigest()
    stem = f"static_kernel_Bench_{name[:12]}"
    content = name.encode() * 64
    (scratch / "k.o").write_bytes(content)
    (scratch / "k.json").write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest(), "kernelName": stem}))
    entry = ManifestEntry(stem, IndexEntry((f"Bench/{name}",), 1, 20, stem, (32,)))
    origin = Origin(name, "Bench", "{}", name, name, SOC, "ascend910b", VERSION)
    target = state.staging / name
    stage_kernel(
        target,
        origin,
        Making(package=name, cost_s=1.0, made_at=0.0),
        [MadeFile(entry, scratch / "k.o", scratch / "k.json", scratch)],
        disk=state.disk,
        durable=False,
    )
    return target


def many(directory: Path, children: Children) -> dict[str, str]:
    """The daemon's start beside 10,000 kernels."""
    ready: list[float] = []
    with Node(directory, children, costs=Costs()) as node:
        populate(directory / "state", directory / "scratch", 10_000)
        for _ in range(5):
            node.start_daemon()
            line = next(line for line in (directory / "npgxd.log").read_text().splitlines()[::-1] if "READY after" in line)
            ready.append(float(line.split("READY after ")[1].split(" ms")[0]))
            node.stop_daemon()
    spread = f"min {min(ready):.0f}  median {statistics.median(ready):.0f}  max {max(ready):.0f} ms (n={len(ready)})"
    return {"start -> READY with 10,000 kernels (its own account)": spread}


def gc(directory: Path, children: Children) -> dict[str, str]:
    """A pass that removes 5,000 kernels while 8 processes look up, and the same look-ups without one."""
    with Node(directory, children, costs=Costs()) as node:
        populate(directory / "state", directory / "scratch", 5_000)
        with node.config.open("a") as config:
            config.write("[store]\nmax_gb = 0.000001\nrecent_s = 0\ngc_interval_s = 604800\n")
        node.start_daemon()
        _look_up(node, 1)  # what is looked up is compiled
        alone = _look_up(node, CLIENTS)
        asked: list[subprocess.Popen[str]] = []
        begun = time.perf_counter()
        beside = _look_up(node, CLIENTS, begin=lambda: asked.append(_gc(node)))
        out, _ = asked[0].communicate()
        report = json.loads(out)
        log = next(line for line in (directory / "npgxd.log").read_text().splitlines()[::-1] if "removal: " in line)
    return {
        f"gc of {report['removed']} kernels, work and wall": log.rpartition("; ")[2],
        "look-up (1 record -> leased view), 8 processes, no gc": _tail(alone),
        "the same beside gc": _tail(beside),
        "both took": f"{time.perf_counter() - begun:.1f} s",
    }


def _gc(node: Node) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "npgxd.cli.main", "gc", "--json"]
    return subprocess.Popen(command, env=node.environment(), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def _look_up(node: Node, processes: int, begin: object = None) -> list[float]:
    command = [sys.executable, "-m", "tools.bench.client", "1", str(ROUNDS)]
    running = [
        subprocess.Popen(
            command, env=node.environment(), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    for one in running:
        if one.stdout is None or one.stdout.readline() != "ready\n":
            raise SystemExit("a bench rank did not start")
    if callable(begin):
        begin()
    taken: list[float] = []
    for one in running:
        if one.stdin is not None:
            one.stdin.write("go\n")
            one.stdin.flush()
    for one in running:
        out, _ = one.communicate()
        if one.returncode:
            raise SystemExit("a bench rank failed")
        taken += json.loads(out)
    return taken


def _tail(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {statistics.median(values):.2f}  p99 {cuts[98]:.2f}  max {max(values):.2f} ms (n={len(values)})"
