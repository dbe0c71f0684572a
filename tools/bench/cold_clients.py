"""Independent cold clients with the same key sets: how much later than the first the last one is done."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.client import Client
from tools.cann_sim import Costs, records
from tools.demo.node import Node

if TYPE_CHECKING:
    from tools.demo.children import Children

REPOSITORY = Path(__file__).parents[2]
CLIENTS, ROUNDS, RECORDS = 8, 20, 10
COSTS = Costs(startup_s=0.5, per_op_s=0.1)


def cold_clients(directory: Path, children: Children) -> dict[str, str]:
    """Each of 8 clients submits the same 20 new sets, one after the other."""
    with Node(directory, children, costs=COSTS) as node:
        node.start_daemon()
        command = [sys.executable, "-m", "tools.bench.cold_clients"]
        running = [
            subprocess.Popen(
                command,
                env={**node.environment(), "MASTER_PORT": str(number)},
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(CLIENTS)
        ]
        for client in running:
            if client.stdout is None or client.stdout.readline() != "ready\n":
                raise SystemExit("a client did not start")
        for client in running:
            if client.stdin is not None:
                client.stdin.write("go\n")
                client.stdin.flush()
        walls = [float(json.loads(client.communicate()[0])) for client in running]
        compiled = [op.record for run in node.cann.runs() for op in run.ops]
    return {
        f"{CLIENTS} cold clients, {ROUNDS} rounds of {RECORDS} records: first, last": f"{min(walls):.2f}, {max(walls):.2f} s",
        "last / first": f"{max(walls) / min(walls):.3f}",
        "kernels, compiles of them": f"{len(set(compiled))}, {len(compiled)}",
    }


def main() -> None:
    """One client: seconds from the word to the end of its last round."""
    sets = [[records.matmul(16 * (turn + 1), 32, 16 * (at + 1)) for at in range(RECORDS)] for turn in range(ROUNDS)]
    client = Client()
    client.welcome()
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    for turn, items in enumerate(sets):
        outcome = client.static_kernels([(f"{at}.json", records.encode(i)) for at, i in enumerate(items)], graph=str(turn))
        if str(outcome.state) != "INSTALLED":
            raise SystemExit(f"not INSTALLED: {outcome}")
    print(time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
