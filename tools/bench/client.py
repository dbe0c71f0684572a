"""One rank of a bench, as a process: it submits the same records again and again and prints how long each round trip took (ms)."""

from __future__ import annotations

import json
import sys
import time

from npgxd.client import Client
from tools.cann_sim import records


def main(count: int, times: int) -> None:
    """Submit ``count`` records ``times`` times, each from a fresh client, so that every round ends in a leased view."""
    items = [(f"{at}.json", json.dumps(item).encode()) for at, item in enumerate(records.many(count))]
    print("ready", flush=True)
    sys.stdin.readline()
    taken = []
    for _ in range(times):
        client = Client()
        client.welcome()  # the connection and what a rank says of its CANN are measured apart
        begun = time.perf_counter()
        outcome = client.static_kernels(items, graph="0")
        taken.append((time.perf_counter() - begun) * 1000)
        if str(outcome.state) != "INSTALLED":
            raise SystemExit(f"not INSTALLED: {outcome}")
        client.close()
    print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
