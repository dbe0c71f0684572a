"""``python -m tools.bench``: measure, and print one table."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from tools.bench import (
    cache,
    call_check,
    cold_clients,
    files,
    flood,
    fuzz,
    identity,
    library,
    lookups,
    schedule,
    simulated_schedule,
    soak,
)
from tools.cann_sim import Costs, records
from tools.cann_sim.compiler.record import Record
from tools.demo.children import Children
from tools.demo.node import JOBS, Node

Bench = Callable[[Path, Children], dict[str, str]]
LONG = ("soak", "group-full")
"""Benches that take longer than all the others together: only where they are named."""
REPOSITORY = Path(__file__).parents[2]
IMPORT_AFTER_TORCH = "import time, torch; b = time.perf_counter(); import npgxd.client; print((time.perf_counter() - b) * 1000)"
IMPORT_ALONE = "import time; b = time.perf_counter(); import npgxd.client; print((time.perf_counter() - b) * 1000)"


def main() -> None:
    """Run the benches that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Measure npgxd on a simulated CANN.")
    parser.add_argument("bench", nargs="*", choices=[*BENCHES, []], help=f"which; all but {' and '.join(LONG)} by default")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long soak takes (default: 10)")
    parser.add_argument("--clients", type=int, default=64, help="how many clients soak has at a time (default: 64)")
    options = parser.parse_args()
    chosen = options.bench or [name for name in BENCHES if name not in LONG]
    benches: dict[str, Bench] = {**BENCHES, "soak": partial(soak.soak, minutes=options.minutes, clients=options.clients)}
    print(f"simulated CANN; {psutil.cpu_count()} processors, load {psutil.getloadavg()[0]:.1f}")
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="npgxd-bench-") as directory, Children(f"bench-{name}") as children:
            for what, figures in benches[name](Path(directory) / "node", children).items():
                print(f"{what:<64} {figures}", flush=True)


def known_records(directory: Path, children: Children) -> dict[str, str]:
    """Records that are all known: from submit to a leased view."""
    with Node(directory, children, costs=Costs()) as node:
        node.start_daemon()
        _ranks(node, 431, ranks=1, times=1)
        one = _ranks(node, 431, ranks=1, times=30)
        many = _ranks(node, 431, ranks=16, times=3)
        few = _ranks(node, 1, ranks=1, times=30)
    return {
        "submit 431 known records -> leased view, one rank": _spread(one, "ms"),
        "the same, 16 ranks at once": _spread(many, "ms"),
        "submit 1 known record -> leased view, one rank": _spread(few, "ms"),
    }


def cold_compile(directory: Path, children: Children) -> dict[str, str]:
    """Wall of a cold round against the least that the compiler's cost model allows."""
    costs = Costs(startup_s=1.0, per_op_s=0.2)
    items = records.many(60)
    ideal = costs.ideal([Record.parse(json.dumps(item).encode()) for item in items], JOBS)
    with Node(directory, children, costs=costs) as node:
        node.start_daemon()
        wall = _ranks(node, 60, ranks=1, times=1)[0] / 1000
    return {
        "cold round of 60 kernels, wall": f"{wall:.2f} s",
        "ideal (one start-up + cost / slots)": f"{ideal:.2f} s",
        "ratio": f"{wall / ideal:.3f}",
    }


def starts(directory: Path, children: Children) -> dict[str, str]:
    """The daemon's start and size; the client's import and connection."""
    ready: list[float] = []
    with Node(directory, children, costs=Costs()) as node:
        for _ in range(5):
            node.start_daemon()
            line = next(line for line in (directory / "npgxd.log").read_text().splitlines()[::-1] if "READY after" in line)
            ready.append(float(line.split("READY after ")[1].split(" ms")[0]))
            node.stop_daemon()
        node.start_daemon()
        time.sleep(2)
        process = psutil.Process(node.daemon.pid if node.daemon is not None else 0)
        rss = process.memory_info().rss / 1e6
        before = sum(process.cpu_times()[:2])
        time.sleep(10)
        idle = (sum(process.cpu_times()[:2]) - before) / 10
        connect = _connect(node)
    return {
        "daemon start -> READY (its own account, from main())": _spread(ready, "ms"),
        "idle RSS": f"{rss:.1f} MB",
        "idle CPU": f"{idle * 100:.3f} %",
        "client: import after torch": _spread(_times(IMPORT_AFTER_TORCH, 7), "ms"),
        "client: import alone": _spread(_times(IMPORT_ALONE, 7), "ms"),
        "client: hello -> welcome": _spread(connect, "ms"),
    }


def _connect(node: Node) -> list[float]:
    program = (
        "import time, json\nfrom npgxd.client import Client\ntaken = []\n"
        "for _ in range(20):\n    c = Client(); b = time.perf_counter(); "
        "c.welcome(); taken.append((time.perf_counter() - b) * 1000); c.close()\n"
        "print(json.dumps(taken))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=node.environment(), capture_output=True, text=True, check=True)
    return [float(value) for value in json.loads(done.stdout)]


def _ranks(node: Node, count: int, *, ranks: int, times: int) -> list[float]:
    """Round trips in ms of ``ranks`` processes that begin together."""
    command = [sys.executable, "-m", "tools.bench.client", str(count), str(times)]
    running = [
        subprocess.Popen(
            command, env=node.environment(), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(ranks)
    ]
    taken: list[float] = []
    for rank in running:
        if rank.stdout is None or rank.stdout.readline() != "ready\n":
            raise SystemExit("a bench rank did not start")
    for rank in running:
        if rank.stdin is not None:
            rank.stdin.write("go\n")
            rank.stdin.flush()
    for rank in running:
        out, _ = rank.communicate()
        if rank.returncode:
            raise SystemExit("a bench rank failed")
        taken += [float(value) for value in json.loads(out)]
    return taken


def _times(program: str, times: int) -> list[float]:
    """What ``program`` prints, run ``times`` times; compiled bytecode is used, as in an installed package."""
    command = [sys.executable, "-c", program]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environ, cwd=REPOSITORY) for _ in range(times + 1)
    ]
    return [float(run.stdout) for run in runs[1:]]


def _spread(values: list[float], unit: str) -> str:
    return f"min {min(values):.2f}  median {statistics.median(values):.2f}  max {max(values):.2f} {unit} (n={len(values)})"


BENCHES: dict[str, Bench] = {
    "known": known_records,
    "cold": cold_compile,
    "starts": starts,
    "many": library.many,
    "gc": library.gc,
    "clients": cold_clients.cold_clients,
    "group": schedule.group,
    "group-full": schedule.group_full,
    "turns": schedule.small_behind_large,
    "plans": simulated_schedule.plans,
    "soak": soak.soak,
    "fuzz": fuzz.fuzz,
    "publish": files.publish,
    "fingerprint": files.fingerprint,
    "identity": identity.identity,
    "cache": cache.cache,
    "call": call_check.call_check,
    "lookups": lookups.lookups,
    "flood": flood.flood,
}

if __name__ == "__main__":
    main()
