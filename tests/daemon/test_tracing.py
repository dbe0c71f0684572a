"""The trace: one track a rank and a worker, spans that lie beside or inside each other, in a ring of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from npgxd.daemon.scheduling.tracing import MAX_ROUNDS, Mark, RoundLine, RunLine, Tracing
from npgxd.daemon.telling.tracing_document import WORKERS, document
from npgxd.wire.messages import RankInfo
from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    from conftest import Parts

TIMES = st.floats(0, 100, allow_nan=False)
LATER = st.floats(0, 50)


@st.composite
def rounds(draw: st.DrawFn) -> RoundLine:
    began = draw(TIMES)
    marks, at = {}, began
    for mark in (Mark.QUEUED, Mark.COMPILING, Mark.SETTLED, Mark.LEASED)[: draw(st.integers(0, 4))]:
        at += draw(LATER)
        marks[mark] = at
    recording = draw(st.none() | st.just(max(0.0, began - draw(LATER))))
    return RoundLine(began, marks, "ab" * 16, draw(st.sampled_from("jk")), draw(st.integers(1, 3)), 0, "decode", 3, recording)


@st.composite
def runs(draw: st.DrawFn) -> RunLine:
    began = draw(TIMES)
    published = began + draw(LATER)
    marks = {Mark.PUBLISHING: published, Mark.ENDED: published + draw(LATER)} if draw(st.booleans()) else {}
    return RunLine(began, marks, "cd" * 8, ("MatMul",), 3, 2)


def tracks(told: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in told["traceEvents"] if e["name"] == "thread_name"}


@given(st.lists(rounds(), max_size=12), st.lists(runs(), max_size=12))
def test_on_every_track_spans_lie_beside_or_inside_each_other(asked: list[RoundLine], ran: list[RunLine]) -> None:
    told = document(asked, ran, job="", now=500.0)
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in told["traceEvents"]:
        assert event["ph"] in "XiM"
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert set(spans) == set(tracks(told))
    for each in spans.values():
        for begin, end in each:
            for other_begin, other_end in each:
                # One microsecond may be lost to rounding where two touch.
                across = begin + 1 < other_begin < end - 1 and other_end > end + 1
                assert not across, each


def test_a_job_is_shown_with_what_the_workers_did_meanwhile_and_no_other_job() -> None:
    mine = RoundLine(10.0, {Mark.SETTLED: 20.0}, "ab" * 16, "mine", 7, 0, "decode", 1, 8.0)
    other = RoundLine(0.0, {Mark.SETTLED: 5.0}, "cd" * 16, "other", 8, 0, "decode", 1, None)
    before = RunLine(1.0, {Mark.PUBLISHING: 2.0, Mark.ENDED: 3.0}, "11" * 8)
    during = RunLine(11.0, {Mark.PUBLISHING: 12.0, Mark.ENDED: 13.0}, "22" * 8)
    told = document([other, mine], [before, during], job="mi", now=30.0)
    assert sorted(tracks(told).values()) == ["rank 0 (pid 7)", "worker 0"]
    assert [e["args"]["job"] for e in told["traceEvents"] if e["name"].startswith("job ") and e["ph"] == "X"] == ["22" * 8]
    assert document([other, mine], [before], job="none", now=30.0)["otherData"]["rounds"] == 0


def test_the_ring_is_bounded_and_forgets_the_oldest(parts: Parts) -> None:
    trace, session = Tracing(), parts.session()
    taken = parts.submit(session, 16)
    for number in range(MAX_ROUNDS + 5):
        taken.id = f"{number:032x}"
        trace.submitted(taken, session, float(number))
    assert len(trace.rounds) == MAX_ROUNDS
    assert next(iter(trace.rounds)) == f"{5:032x}"
    trace.mark(Mark.SETTLED, f"{0:032x}", 1.0)  # forgotten, and not missed


def test_a_start_up_is_told_from_recording_to_the_lease_on_a_track_for_each_rank_and_worker(parts: Parts) -> None:
    session = parts.session(rank=0, local_world_size=2)
    other = parts.session(rank=1, local_world_size=2)
    session.tell(ClientState.RECORDING, 1.0)
    done = parts.submit(session, 16, now=3.0)
    parts.submit(other, 16, now=4.0)
    parts.drive(lambda: done.result is not None and not parts.dispatcher.busy, now=5.0)
    assert done.result is not None
    assert done.result.view is not None
    parts.coordinator.leased(session, done.result.view, 6.0)
    trace = parts.coordinator.trace
    told = document(list(trace.rounds.values()), list(trace.runs.values()), job="", now=7.0)
    names = tracks(told)
    assert sum(pid == WORKERS for pid, _ in names) == 1
    assert sum(name.startswith("rank ") for name in names.values()) == 2
    rank = next(place for place, name in names.items() if name.startswith("rank 0"))
    shown = [(e["name"], e["ts"], e.get("dur")) for e in told["traceEvents"] if (e["pid"], e["tid"]) == rank and e["ph"] != "M"]
    assert ("recording", 0, 2_000_000) in shown
    assert [name for name, _, _ in shown][1:] == ["recording", "submitted", "window", "queued", "compiling", "leasing", "leased"]
    assert RankInfo().rank is None
