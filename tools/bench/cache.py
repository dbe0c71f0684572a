"""What a start costs with and without the compile cache: the example decoder, one process a start, on both clocks.

Each way of starting is a process of its own (``tools.bench.cache_start``); they take turns, so that the machine's load is shared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.cann_sim import Costs
from tools.demo.node import Node

if TYPE_CHECKING:
    from tools.demo.children import Children

REPOSITORY: Final = Path(__file__).parents[2]
LAYERS: Final = tuple(int(count) for count in os.environ.get("NPGXD_BENCH_LAYERS", "2,12,24").split(","))
ROUNDS: Final = int(os.environ.get("NPGXD_BENCH_ROUNDS", "3"))
WAYS: Final = ("eager", "cold", "file", "daemon", "torch")
"""As it is; ``torch.compile``; ``cache_compile`` from its file, and from the daemon; torch's own ``load_compiled_function``."""


def cache(directory: Path, children: Children) -> dict[str, str]:
    """Starts with the compile cache against those without, and what a call costs then."""
    told: dict[str, str] = {}
    with Node(directory, children, costs=Costs()) as node:
        node.start_daemon()
        environ = {**os.environ, **node.environment(), "PYTHONPYCACHEPREFIX": str(directory / "pyc"), "OMP_NUM_THREADS": "1"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for layers in LAYERS:
            told |= _layers(layers, directory / f"layers{layers}", environ)
    return told


def _layers(layers: int, directory: Path, environ: dict[str, str]) -> dict[str, str]:
    directory.mkdir()
    for way in ("file", "torch"):  # make what is loaded later; the daemon gets the first one's entry
        _start(way, layers, directory, environ, "make")
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(ROUNDS):
        for way in WAYS:
            runs[way].append(_start(way, layers, directory, environ, str(number)))
    best = {way: min(run["ready_ms"] for run in runs[way]) for way in WAYS}
    wall = {way: min(run["wall_ms"] for run in runs[way]) for way in WAYS}
    title = f"{layers} layers"
    told = {
        f"{title}: {way}: model built -> first output; whole process": f"{best[way]:8.1f} ms; {wall[way]:8.1f} ms" for way in WAYS
    }
    for way in ("file", "daemon"):
        told[f"{title}: {way} against cold, and against torch's own"] = (
            f"{best['cold'] / best[way]:.1f}x and {best['torch'] / best[way]:.1f}x; "
            f"whole process {wall['cold'] / wall[way]:.1f}x and {wall['torch'] / wall[way]:.1f}x"
        )
    parts = min(runs["file"], key=lambda run: run["ready_ms"])["parts"]
    told[f"{title}: where a start from the file goes"] = ", ".join(f"{name} {value:.1f} ms" for name, value in parts.items())
    call = {way: min(run["call_us"] for run in runs[way]) for way in ("eager", "file")}
    check = min(run["check_us"] for run in runs["file"])
    told[f"{title}: one warm call, eager; cached; of which its check"] = (
        f"{call['eager']:.0f} us; {call['file']:.0f} us; {check:.0f} us ({runs['file'][0]['inputs']} inputs)"
    )
    return told


def _start(way: str, layers: int, directory: Path, environ: dict[str, str], name: str) -> dict[str, Any]:
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.cache_start", way, str(layers), str(directory), name],
        env=environ,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = (time.perf_counter() - begun) * 1000
    if done.returncode:
        raise SystemExit(f"a start ({way}, {layers} layers) failed:\n{done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    expected = {"file": "compiled" if name == "make" else "file", "daemon": "daemon"}.get(way)
    if expected and told["origin"] != expected:
        raise SystemExit(f"a start that should be {expected} was {told['origin']}: {told['reason']}\n{done.stderr}")
    told["wall_ms"] = wall - told["measuring_ms"]
    return told
