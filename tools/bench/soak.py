"""The pipeline under many clients for minutes: whether memory stays flat, what is left over afterwards, and how long look-ups take.

Clients come and go, some killed; kernels are compiled all the time, some fail; and removal keeps the store at its limit.  The peer of
look-ups, in the same clients, is a bare echo of as many bytes (``echo``).
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from npgxd.daemon.scheduling import kept, tracing
from tools.bench import echo, soak_client
from tools.bench.processor import Processor
from tools.cann_sim import Costs
from tools.demo.node import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.demo.children import Children

REPOSITORY = Path(__file__).parents[2]
COSTS = Costs(startup_s=0.5, per_op_s=0.2)
"""So that the workers are busy all the time, and still keep up."""
LIMITS = "[store]\nmax_gb = 0.004\ngc_interval_s = 20\nrecent_s = 5\n[limits]\nchurn_shapes = 16\n"
"""So that the store is at its limit all the time, and memory shows what leaks and not what is kept; and that the operator calls that are
watched for churn can be filled up without compiling them (``soak_client.fill``). No client has so many rounds with new shapes."""
SAMPLE_S = 5.0
LIFE_S = (60.0, 240.0)
SETTLE_S = 90.0
LINE_BYTES, ROUND_BYTES = 1024, 12_000
"""What the daemon keeps of a round in the trace (4000), and of a settled round of 18 records (1024)."""
NOISE_MB = 1.5
"""An arena of the interpreter's allocator, runs of op_compiler (2000 are kept), and what sessions and rounds under way differ by."""
BUDGET_MS = 2.0
"""The 99th percentile of look-ups (architecture, section 9)."""


@dataclass(slots=True)
class _Samples:
    at: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """Rounds that were accepted so far."""


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
        processor = Processor(daemon.pid)
        psutil.cpu_percent()  # from here on
        with echo.running(node.runtime / "echo", soak_client.ARTIFACT_BYTES) as peer:
            samples, starts = _run(node, daemon, minutes * 60, clients, peer)
        threads, machine = processor.told(), psutil.cpu_percent()
        after = _settled(node, daemon)
        counters = node.counters()
        log = (directory / "npgxd.log").read_text()
    answers = _answers(directory)
    return {
        f"{clients} clients for {minutes:g} min": f"{starts} processes, {sum(map(len, answers.values()))} requests, "
        f"{counters.compiled} compiled, {counters.hits} hits, {counters.failed} failed",
        "workers busy, mean": f"{statistics.mean(samples.busy):.2f}",
        "the daemon, and how busy all processors are": f"{threads}; {machine:.0f} %",
        **{f"{what}, {len(took)} requests": _spread(took) for what, took in sorted(_times(answers).items())},
        **{
            f"p99 of {what} against the budget": _within(_times(answers)[what], _times(answers)[bare])
            for what, bare in (("lookup", "echo"), ("steady lookup", "steady echo"))
        },
        "answers": ", ".join(f"{what} {word}: {n}" for (what, word), n in sorted(_words(answers).items())),
        "daemon RSS: half way, at the end, most": _memory(samples),
        "daemon RSS, second half": _growth(samples),
        "kernels in the store: least, most": f"{min(samples.kernels)}, {max(samples.kernels)}",
        "descriptors: before, most, after": f"{before.descriptors}, {max(samples.descriptors)}, {after.descriptors}",
        "processes and threads: before, after": f"{before.processes}+{before.threads}, {after.processes}+{after.threads}",
        "files by directory: before, after": ", ".join(
            f"{name} {before.files.get(name, 0)}>{after.files.get(name, 0)}" for name in sorted({*before.files, *after.files})
        ),
        "errors and faults in the log": f"{log.count(' ERROR ')}, {log.count('Traceback')}",
        "what the errors are": errors_told(log),
    }


def errors_told(log: str) -> str:
    """Every kind of error in a daemon's log, by its first line, and how often it was told."""
    first: dict[str, str] = {}
    times: Counter[str] = Counter()
    for line in log.splitlines():
        _, error, text = line.partition(" ERROR ")
        if error:
            kind = re.sub(r"[0-9a-f]{8,}|[0-9]+", "#", text)
            first.setdefault(kind, text)
            times[kind] += 1
    told = (f"{text} ({times[kind]}x)" if times[kind] > 1 else text for kind, text in first.items())
    return "; ".join(told) or "none"


def _prepare(node: Node) -> None:
    """What all clients know is there, and the histories of operator calls and rounds are full; one operator fails, always."""
    node.cann.order(soak_client.REFUSED, "fail")
    command = [sys.executable, "-m", "tools.bench.soak_client"]  # a process of its own: what it leases it holds for life
    subprocess.run(command, env=node.environment(), cwd=REPOSITORY, check=True)


def _run(node: Node, daemon: psutil.Process, seconds: float, clients: int, peer: Mapping[str, str]) -> tuple[_Samples, int]:
    """Keep ``clients`` processes running, each for a while; the daemon is looked at every few seconds."""
    chance = random.Random(4)  # noqa: S311 -- a spread, no secret
    running: list[subprocess.Popen[bytes]] = []
    samples, starts, begun = _Samples(), 0, time.monotonic()
    environment = {**node.environment(), **peer}
    next_sample = begun
    command = [
        sys.executable,
        "-m",
        "tools.bench.soak_client",
        "steadily",
        str(seconds),
        str(node.directory / "client-steady.jsonl"),
    ]
    steady = subprocess.Popen(command, env=environment, cwd=REPOSITORY, start_new_session=True)  # as a rank has one of its own
    while time.monotonic() < begun + seconds:
        running = [client for client in running if client.poll() is None]
        while len(running) < clients:
            left = begun + seconds - time.monotonic()
            life = max(1.0, min(chance.uniform(*LIFE_S), left))
            how = "killed" if chance.random() < 0.3 else "ends"  # noqa: PLR2004 -- three of ten
            command = [sys.executable, "-m", "tools.bench.soak_client", str(starts), str(life), how]
            told = node.directory / f"client{starts}.jsonl"
            running.append(subprocess.Popen([*command, str(told)], env=environment, cwd=REPOSITORY))
            starts += 1
        if time.monotonic() >= next_sample:
            next_sample += SAMPLE_S
            _sample(node, daemon, samples, time.monotonic() - begun)
        time.sleep(0.2)
    for client in [*running, steady]:
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
    samples.rounds.append(document["cache"]["rounds"])


def _settled(node: Node, daemon: psutil.Process) -> _Left:
    """What there is when queue, workers, leases and views are gone (a view that was told stays for a minute), or after a while."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        document = node.status()
        quiet = document is not None and not document["workers"]["busy"] and not document["queue"]["rounds"]
        kernels = document["kernels"] if document is not None else {}
        if quiet and document is not None and not (kernels["leases"] or kernels["views"] or document["jobs"]):
            break
        time.sleep(0.5)
    state = node.directory / "state"
    files = Counter[str]()
    for place, _, names in os.walk(state):  # what is removed meanwhile is not missed
        if Path(place) != state:
            files[Path(place).relative_to(state).parts[0]] += len(names)
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
    half, end = _medians(samples)
    return f"{half:.1f}, {end:.1f}, {max(samples.rss):.1f} MB"


def _medians(samples: _Samples) -> tuple[float, float]:
    """RSS after one half and at the end, each as the median of an eighth of the samples."""
    half, eighth = len(samples.rss) // 2, max(1, len(samples.rss) // 8)
    return statistics.median(samples.rss[half : half + eighth]), statistics.median(samples.rss[-eighth:])


def _growth(samples: _Samples) -> str:
    """How much it grew, against what the histories that are not full yet may take meanwhile: more than that is a leak."""
    half = len(samples.rss) // 2
    before, after = _medians(samples)
    lines, rounds = (
        min(most, samples.rounds[-1]) - min(most, samples.rounds[half]) for most in (tracing.MAX_ROUNDS, kept.KEPT_ROUNDS)
    )
    allowed = (lines * LINE_BYTES + rounds * ROUND_BYTES) / 1e6 + NOISE_MB
    verdict = "flat" if after - before <= allowed else "GROWS"
    told = f"noise, and histories that are not full, may take {allowed:.1f} MB ({lines} and {rounds} rounds)"
    return f"{verdict}: {after - before:+.1f} MB in {samples.at[-1] - samples.at[half]:.0f} s; {told}"


def _within(values: list[float], bare: list[float]) -> str:
    """Against the budget, and against what this machine let a bare echo have at the same time."""
    p99, least = (statistics.quantiles(each, n=100)[98] for each in (values, bare))
    told = f"{p99:.2f} of {BUDGET_MS:g} ms; {p99 / least:.2f} times a bare echo's {least:.2f} ms, {p99 - least:+.2f} ms"
    return f"{'within' if p99 <= BUDGET_MS else 'OVER'}: {told}"
