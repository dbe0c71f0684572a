"""Who shows a job's progress, and when a compile is told to have stalled."""

from __future__ import annotations

from npgxd.daemon.serving import progressing
from npgxd.daemon.serving.progressing import STALL_S, Progresses, speakers
from npgxd.wire.messages import Follow, Report
from npgxd.wire.states import ClientState, Reason, RoundState
from tools.cann_sim import records


def spoken_for(parts, *ranks):
    """The positions of those that speak, among ranks that connect in this order."""
    sessions = [parts.session(**rank) for rank in ranks]
    chosen = speakers(sessions)
    return [position for position, session in enumerate(sessions) if session.id in chosen]


def test_the_lowest_rank_of_a_job_speaks_however_late_it_connects(parts):
    assert spoken_for(parts, {"run_id": "a", "rank": 3}, {"run_id": "a", "rank": 1}, {"run_id": "a", "rank": 2}) == [1]


def test_local_ranks_that_are_all_zero_do_not_make_everybody_speak(parts):
    ranks = [{"run_id": "a", "rank": number, "local_rank": 0} for number in (9, 8, 10)]
    assert spoken_for(parts, *ranks) == [1]
    assert len(spoken_for(parts, *[{"run_id": "b", "local_rank": 0}] * 3)) == 1


def test_each_job_has_its_speaker_and_a_process_without_rank_variables_is_its_own(parts):
    assert spoken_for(parts, {"run_id": "a", "rank": 0}, {"run_id": "b", "rank": 4}, {}, {}) == [0, 1, 2, 3]


def compiling(parts):
    taken = parts.submit(parts.session(rank=0), 16, 32)
    parts.coordinator.tick(1000.0)
    taken.state = RoundState.COMPILING
    return taken


def test_a_compile_that_gives_no_sign_is_told_to_have_stalled_until_it_gives_one(parts, monkeypatch):
    monkeypatch.setattr(parts.coordinator.flights, "cost_of", lambda _need: 1.0)
    taken, progresses = compiling(parts), Progresses(parts.sessions, parts.coordinator)
    assert progresses.of(taken, 0.0).stalled_s == 0.0
    assert progresses.of(taken, STALL_S - 1).stalled_s == 0.0
    told = progresses.of(taken, STALL_S + 1)
    assert told.stalled_s == STALL_S + 1
    taken.current = ("MatMulV2",)  # op_compiler has begun another one
    assert progresses.of(taken, STALL_S + 2).stalled_s == 0.0


def test_kernels_that_take_long_have_their_time(parts, monkeypatch):
    monkeypatch.setattr(parts.coordinator.flights, "cost_of", lambda _need: 100.0)
    taken, progresses = compiling(parts), Progresses(parts.sessions, parts.coordinator)
    progresses.of(taken, 0.0)
    assert progresses.of(taken, 299.0).stalled_s == 0.0
    assert progresses.of(taken, 300.0).stalled_s == 300.0


def test_a_round_that_waits_for_others_has_not_stalled(parts):
    taken, progresses = compiling(parts), Progresses(parts.sessions, parts.coordinator)
    taken.state = RoundState.QUEUED
    progresses.of(taken, 0.0)
    assert progresses.of(taken, 10 * progressing.STALL_S).stalled_s == 0.0


def test_a_process_that_gave_up_waiting_for_a_graph_is_told_no_more_of_it_but_of_others(parts):
    session = parts.session()
    given_up = parts.take(session, records.matmul(16, 32, 64), graph="0")
    awaited = parts.take(session, records.matmul(32, 32, 64), graph="1")
    for followed in (given_up, awaited):
        parts.handlers.handle(session.identity, session.peer, Follow(round=followed.id), (), 0.0)
    gave_up = Report(state=ClientState.DEGRADED, reason=str(Reason.DEADLINE), graph="0")
    parts.handlers.handle(session.identity, session.peer, gave_up, (), 1.0)
    assert session.identity not in parts.handlers.followers[given_up.id]
    assert session.identity in parts.handlers.followers[awaited.id]


def test_of_a_round_that_has_stalled_nobody_is_told_when_it_will_be_done(parts, monkeypatch):
    monkeypatch.setattr(parts.coordinator.flights, "cost_of", lambda _need: 1.0)
    monkeypatch.setattr(parts.coordinator, "eta", lambda _asked, _now: 7.0)
    taken, progresses = compiling(parts), Progresses(parts.sessions, parts.coordinator)
    parts.explainer.progress = progresses.of
    assert progresses.of(taken, 0.0).eta_s == 7.0
    assert progresses.of(taken, STALL_S + 1).eta_s is None
    told = parts.explainer.explain(taken.id, None, STALL_S + 1)
    assert (told["eta_s"], told["stalled_s"]) == (None, STALL_S + 1)
    taken.current = ("MatMulV2",)
    assert progresses.of(taken, STALL_S + 2).eta_s == 7.0
