"""What a process is shown as, over all of its graphs."""

from __future__ import annotations

import pytest

from npgxd.daemon import sessions
from npgxd.wire.states import ClientState

INSTALLED, DEGRADED, DISABLED = ClientState.INSTALLED, ClientState.DEGRADED, ClientState.DISABLED


@pytest.fixture
def session(parts):
    return parts.session(rank=0)


def shown(session):
    return (session.state, session.reason, session.graph)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_fc62_a_graph_that_is_installed_does_not_hide_one_that_is_degraded(session, order):
    ends = [(INSTALLED, "hit", "0"), (DEGRADED, "compile_failed", "1"), (DISABLED, "nothing_to_compile", "2")]
    for position in order:
        state, reason, graph = ends[position]
        session.tell(state, 0.0, reason=reason, graph=graph)
    assert shown(session) == (DEGRADED, "compile_failed", "1")


def test_a_graph_with_nothing_to_compile_says_nothing_about_the_others(session):
    session.tell(DISABLED, 0.0, reason="nothing_to_compile", graph="0")
    assert shown(session) == (DISABLED, "nothing_to_compile", "0")
    session.tell(INSTALLED, 0.0, reason="hit", graph="1")
    assert shown(session) == (INSTALLED, "hit", "1")


def test_a_graph_that_is_settled_again_counts_as_it_ended_last(session):
    session.tell(DEGRADED, 0.0, reason="deadline", graph="0")
    session.tell(ClientState.RECORDING, 1.0, graph="0")
    assert shown(session) == (ClientState.RECORDING, "", "0")
    session.tell(INSTALLED, 2.0, reason="hit", graph="0")
    assert shown(session) == (INSTALLED, "hit", "0")


def test_what_is_kept_of_a_process_is_bounded(session, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_GRAPHS", 5)
    for number in range(100):
        session.tell(INSTALLED, 0.0, reason="hit", graph=str(number))
    assert len(session.ends) == 5
