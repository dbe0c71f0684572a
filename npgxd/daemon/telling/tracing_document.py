"""The trace as a picture: one track for each rank and for each worker, in the Trace Event Format that Perfetto and Chrome open. Pure.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU; times are in microseconds since the oldest event.
Promise: on every track, spans lie beside or inside each other, never across.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from npgxd.daemon.scheduling.tracing import Mark, RoundLine, RunLine, Tracing
from npgxd.wire import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SCHEMA: Final = 1
WORKERS: Final = 1
"""The process id under which workers are shown; the jobs come after it."""
MOST: Final = 20_000
"""Events of one document, which then has less than its frames can carry."""
Event = dict[str, Any]


def frames(tracing: Tracing, job: str, now: float) -> list[bytes]:
    """The picture as JSON, cut into payload frames."""
    told = document(list(tracing.rounds.values()), list(tracing.runs.values()), job=job, now=now)
    text, size = json.dumps(told, separators=(",", ":")).encode(), limits.MAX_FRAME_BYTES
    return [text[start : start + size] for start in range(0, len(text), size)]


def document(rounds: Sequence[RoundLine], runs: Sequence[RunLine], *, job: str, now: float) -> dict[str, Any]:
    """The rounds of the jobs whose names begin with ``job``, and all runs of op_compiler since the first of them."""
    chosen = [line for line in rounds if line.job.startswith(job)]
    start = min((_begin(line) for line in chosen), default=0.0 if job else min((run.began for run in runs), default=0.0))
    # Without rounds of that job there is nothing to show, and of the workers only what overlaps with them.
    during = [run for run in runs if chosen and run.marks.get(Mark.ENDED, now) >= start] if job else list(runs)
    start = min([start, *(run.began for run in during)])
    events = [*_ranks(chosen, start, now), *_workers(during, start, now)]
    return {
        "traceEvents": events[:MOST],
        "displayTimeUnit": "ms",
        "otherData": {
            "schema": SCHEMA,
            "job": job,
            "rounds": len(chosen),
            "runs": len(during),
            "left_out": max(0, len(events) - MOST),
        },
    }


def _begin(line: RoundLine) -> float:
    return line.began if line.recording is None else line.recording


# ---- ranks -----------------------------------------------------------------------------------------------------------


def _ranks(rounds: Iterable[RoundLine], start: float, now: float) -> Iterator[Event]:
    processes: dict[str, int] = {}
    tracks: dict[tuple[int, int], list[RoundLine]] = {}
    for line in rounds:
        if line.job not in processes:
            processes[line.job] = WORKERS + 1 + len(processes)
            yield _named("process_name", processes[line.job], 0, f"job {line.job}")
        tracks.setdefault((processes[line.job], line.pid), []).append(line)
    for (process, pid), lines in tracks.items():
        rank = "rank ?" if lines[0].rank is None else f"rank {lines[0].rank}"
        lanes = _lanes([(_begin(line), _end(line, now)) for line in lines])
        for lane in range(max(lanes) + 1):
            # Rounds of one process that overlap need a track each; the first is the rank's own.
            yield _named("thread_name", process, _thread(pid, lane), f"{rank} (pid {pid})" + (f", {lane + 1}" if lane else ""))
        for line, lane in zip(lines, lanes, strict=True):
            yield from _round(line, process, _thread(pid, lane), start, now)


def _thread(pid: int, lane: int) -> int:
    return pid * 100 + min(lane, 99)


def _end(line: RoundLine, now: float) -> float:
    settled = line.marks.get(Mark.SETTLED, now)
    return max(settled, line.marks.get(Mark.LEASED, settled))


def _round(line: RoundLine, process: int, thread: int, start: float, now: float) -> Iterator[Event]:
    facts = {"round": line.round, "graph": line.graph, "kernels": line.keys, "settled": Mark.SETTLED in line.marks}
    begin, end = _begin(line), _end(line, now)
    yield _span(line.graph or f"round {line.round[:8]}", process, thread, (begin, end), start, facts)
    if line.recording is not None:
        yield _span("recording", process, thread, (line.recording, line.began), start)
    yield _instant("submitted", process, thread, line.began, start)
    settled = line.marks.get(Mark.SETTLED, now)
    moments = [("window", line.began)]
    moments += [(str(mark), line.marks[mark]) for mark in (Mark.QUEUED, Mark.COMPILING) if mark in line.marks]
    for (name, at), (_, until) in zip(moments, [*moments[1:], ("", settled)], strict=True):
        yield _span(name, process, thread, (at, max(at, until)), start)
    if Mark.LEASED in line.marks:
        yield _span("leasing", process, thread, (settled, end), start)
        yield _instant("leased", process, thread, line.marks[Mark.LEASED], start)


# ---- workers ---------------------------------------------------------------------------------------------------------


def _workers(runs: Sequence[RunLine], start: float, now: float) -> Iterator[Event]:
    yield _named("process_name", WORKERS, 0, "workers")
    lanes = _lanes([(run.began, run.marks.get(Mark.ENDED, now)) for run in runs])
    for lane in range(max(lanes, default=-1) + 1):
        yield _named("thread_name", WORKERS, lane + 1, f"worker {lane}")
    for run, lane in zip(runs, lanes, strict=True):
        facts = {"job": run.job, "operators": list(run.ops), "kernels": run.keys, "processes": run.processes}
        end = run.marks.get(Mark.ENDED, now)
        published = run.marks.get(Mark.PUBLISHING, end)
        yield _span(f"job {run.job[:8]}", WORKERS, lane + 1, (run.began, end), start, facts)
        yield _span("op_compiler", WORKERS, lane + 1, (run.began, published), start)
        if Mark.PUBLISHING in run.marks:
            yield _span("publishing", WORKERS, lane + 1, (published, end), start)


# ---- events ----------------------------------------------------------------------------------------------------------


def _lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """For each span, in the order given, the first lane in which no earlier one is in its way."""
    chosen = [0] * len(spans)
    free_at: list[float] = []
    for place in sorted(range(len(spans)), key=lambda place: spans[place]):
        begin, end = spans[place]
        lane = next((lane for lane, free in enumerate(free_at) if free <= begin), len(free_at))
        free_at[lane : lane + 1] = [end]
        chosen[place] = lane
    return chosen


def _span(
    name: str, process: int, thread: int, times: tuple[float, float], start: float, facts: dict[str, Any] | None = None
) -> Event:
    begin, end = _us(times[0], start), _us(times[1], start)
    told: Event = {"name": name, "ph": "X", "ts": begin, "dur": end - begin, "pid": process, "tid": thread}
    return told if facts is None else {**told, "args": facts}


def _instant(name: str, process: int, thread: int, at: float, start: float) -> Event:
    return {"name": name, "ph": "i", "s": "t", "ts": _us(at, start), "pid": process, "tid": thread}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _us(at: float, start: float) -> int:
    return round((at - start) * 1e6)
