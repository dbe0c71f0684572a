"""The pipeline under many clients for minutes: whether memory stays flat, what is left over afterwards, and how long look-ups take.

Clients come and go, some killed; kernels are compiled all the time, some fail; and removal keeps the store at its limit.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tools.bench import soak_client
from tools.cann_sim import Costs
from tools.demo.node import Node

if TYPE_CHECKING:
    from tools.demo.children import Children

REPOSITORY = Path(__file__).parents[2]
COSTS = Costs(startup_s=0.5, per_op_s=0.2)
"""So that the workers are busy all the time, and still keep up."""
LIMITS = "[store]\nmax_gb = 0.004\ngc_interval_s = 20\nrecent_s = 5\n"
"""So that the store is at its limit all the time, and memory shows what leaks and not what is kept."""
SAMPLE_S = 5.0
LIFE_S = (60.0, 240.0)
SETTLE_S = 90.0
WARM = 1 / 3
"""The first part of the time, in which memos and histories fill, is not part of the slope."""


@dataclass(slots=True)
class _Samples:
    at: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Left:
    """What a daemon has, when nobody asks anything of it."""

    descriptors: int
    processes: int
    threads: int
    files: dict[str, int]


def soak(directory: Path, children: Children, *, minutes: float = 10.0, clients: int = 64) -> dict[str, str]:
    """Run ``clients`` clients for ``minutes``."""
    with Node(directory, children, costs=COSTS) as node:
        drop_in = node.config.with_name(f"{node.config.name}.d") / "soak.toml"
        drop_in.parent.mkdir()
        drop_in.write_text(LIMITS, encoding="utf-8")
        node.start_daemon()
        daemon = psutil.Process(node.daemon.pid if node.daemon is not None else 0)
        _prepare(node)
        before = _settled(node, daemon)
        used = sum(daemon.cpu_times()[:2])
        samples, starts = _run(node, daemon, minutes * 60, clients)
        used = sum(daemon.cpu_times()[:2]) - used
        after = _settled(node, daemon)
        counters = node.counters()
        log = (directory / "npgxd.log").read_text()
    answers = _answers(directory)
    return {
        f"{clients} clients for {minutes:g} min": f"{starts} processes, {sum(map(len, answers.values()))} requests, "
        f"{counters.compiled} compiled, {counters.hits} hits, {counters.failed} failed",
        "workers busy, mean": f"{statistics.mean(samples.busy):.2f}",
        "daemon's part of one processor": f"{used / (minutes * 60):.1%}",
        **{f"{what}, {len(took)} requests": _spread(took) for what, took in sorted(_times(answers).items())},
        "answers": ", ".join(f"{what} {word}: {n}" for (what, word), n in sorted(_words(answers).items())),
        "daemon RSS: after a third, at the end, most": _memory(samples),
        "slope of RSS over the last two thirds": f"{_slope(samples):+.2f} MB an hour",
        "kernels in the store: least, most": f"{min(samples.kernels)}, {max(samples.kernels)}",
        "descriptors: before, most, after": f"{before.descriptors}, {max(samples.descriptors)}, {after.descriptors}",
        "processes and threads: before, after": f"{before.processes}+{before.threads}, {after.processes}+{after.threads}",
        "files by directory: before, after": ", ".join(
            f"{name} {before.files.get(name, 0)}>{after.files.get(name, 0)}" for name in sorted({*before.files, *after.files})
        ),
        "errors and faults in the log": f"{log.count(' ERROR ')}, {log.count('Traceback')}",
        "the last error": next((line for line in reversed(log.splitlines()) if " ERROR " in line), "none"),
    }


def _prepare(node: Node) -> None:
    """What all clients know is there; one operator fails, always."""
    node.cann.order(soak_client.REFUSED, "fail")
    command = [sys.executable, "-m", "tools.bench.soak_client"]  # a process of its own: what it leases it holds for life
    subprocess.run(command, env=node.environment(), cwd=REPOSITORY, check=True)


def _run(node: Node, daemon: psutil.Process, seconds: float, clients: int) -> tuple[_Samples, int]:
    """Keep ``clients`` processes running, each for a while; the daemon is looked at every few seconds."""
    chance = random.Random(4)  # noqa: S311 -- a spread, no secret
    running: list[subprocess.Popen[bytes]] = []
    samples, starts, begun = _Samples(), 0, time.monotonic()
    next_sample = begun
    while time.monotonic() < begun + seconds:
        running = [client for client in running if client.poll() is None]
        while len(running) < clients:
            left = begun + seconds - time.monotonic()
            life = max(1.0, min(chance.uniform(*LIFE_S), left))
            how = "killed" if chance.random() < 0.3 else "ends"  # noqa: PLR2004 -- three of ten
            command = [sys.executable, "-m", "tools.bench.soak_client", str(starts), str(life), how]
            told = node.directory / f"client{starts}.jsonl"
            running.append(subprocess.Popen([*command, str(told)], env=node.environment(), cwd=REPOSITORY))
            starts += 1
        if time.monotonic() >= next_sample:
            next_sample += SAMPLE_S
            _sample(node, daemon, samples, time.monotonic() - begun)
        time.sleep(0.2)
    for client in running:
        client.wait()
    return samples, starts


def _sample(node: Node, daemon: psutil.Process, samples: _Samples, at: float) -> None:
    document = node.status()
    if document is None:
        raise SystemExit("the daemon does not answer")
    samples.at.append(at)
    samples.rss.append(daemon.memory_info().rss / 1e6)
    samples.descriptors.append(daemon.num_fds())
    samples.busy.append(document["workers"]["busy"])
    samples.kernels.append(document["kernels"]["count"])


def _settled(node: Node, daemon: psutil.Process) -> _Left:
    """What there is when queue, workers and leases are empty, or after a while in any case."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        document = node.status()
        quiet = document is not None and not document["workers"]["busy"] and not document["queue"]["rounds"]
        if quiet and document is not None and not document["kernels"]["leases"] and not document["jobs"]:
            break
        time.sleep(0.5)
    state = node.directory / "state"
    files = Counter(path.relative_to(state).parts[0] for path in state.rglob("*") if path.is_file() and path.parent != state)
    files["(run)"] = sum(1 for _ in node.runtime.iterdir())
    return _Left(daemon.num_fds(), len(daemon.children(recursive=True)), daemon.num_threads(), dict(files))


Answers = dict[str, list[tuple[float, str]]]


def _answers(directory: Path) -> Answers:
    found: Answers = defaultdict(list)
    for path in directory.glob("client*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            what, took, word = json.loads(line)
            found[what].append((took, word))
    return found


def _times(answers: Answers) -> dict[str, list[float]]:
    return {what: [took for took, _ in each] for what, each in answers.items()}


def _words(answers: Answers) -> Counter[tuple[str, str]]:
    return Counter((what, word) for what, each in answers.items() for _, word in each)


def _spread(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {statistics.median(values):.2f}  p99 {cuts[98]:.2f}  max {max(values):.1f} ms"


def _memory(samples: _Samples) -> str:
    third = max(1, int(len(samples.rss) * WARM))
    end = statistics.median(samples.rss[-max(1, third // 4) :])
    return f"{samples.rss[third - 1]:.1f}, {end:.1f}, {max(samples.rss):.1f} MB"


def _slope(samples: _Samples) -> float:
    third = int(len(samples.rss) * WARM)
    if len(samples.rss) - third < 3:  # noqa: PLR2004 -- a line through two points says nothing
        return 0.0
    return statistics.linear_regression(samples.at[third:], samples.rss[third:]).slope * 3600
