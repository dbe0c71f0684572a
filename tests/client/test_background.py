"""A round that nobody waits for: followed by a thread, made by whoever calls the graph, told to the daemon in the end."""

from __future__ import annotations

import threading
import time

import pytest

from npgxd.client import Client
from npgxd.client.background import Place
from npgxd.client.changing import Calls, Change
from npgxd.wire import messages as m
from npgxd.wire.states import ClientState, Reason
from npgxd.wire.switch_messages import Switch, Switching, SwitchStep
from tests.client.conftest import HASTY
from tests.client.test_trouble import wait_for

RECORDS = [("Add_1.json", b'{"a":1}')]
BALLOT = "a" * 32
TOGETHER = Place(rank=0, partners=(0, 1))


class Graph:
    """A graph in the background: what its calls and its follower are told."""

    def __init__(self, client: Client, place: Place, **how: object) -> None:
        self.calls = Calls()
        self.box: dict[str, bool] = {}
        self.change = Change(self.calls, vote=self.box.setdefault if place.partners else None, decision_s=0)
        self.ready: list[object] = []
        self.ended: list[object] = []
        client.static_kernels_in_background(
            RECORDS,
            graph="model",
            change=self.change,
            place=place,
            on_ready=self.ready.append,
            on_end=lambda outcome: self.ended.append(outcome) or outcome,
            **how,
        )

    def call_until_it_changes(self) -> None:
        until = time.monotonic() + 60
        while not self.change.is_over:
            assert time.monotonic() < until
            if self.calls.begin():
                for change in self.calls.take():
                    change.made()
            time.sleep(0.01)

    def outcome(self):
        wait_for(lambda: self.ended, "it ends")
        return self.ended[0]


def reports(daemon):
    return [(report.state, report.reason) for report in daemon.asked(m.Report)]


def test_a_process_that_can_have_no_more_threads_keeps_its_kernels_and_is_told_why(client, monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    graph = Graph(client, Place(alone=True))
    assert graph.change.is_over
    (told,) = graph.ended
    assert (told.state, told.reason) == (ClientState.DEGRADED, Reason.NOT_AGREED)
    assert told.detail == "no thread can be had to follow its round: can't start new thread"


def test_with_nobody_to_agree_with_the_graph_changes_when_its_kernels_are_leased(client, fake):
    daemon = fake()
    graph = Graph(client, Place(alone=True))
    graph.call_until_it_changes()
    assert graph.outcome().installed
    assert graph.ready == graph.ended
    assert graph.ready[0].view is not None
    wait_for(lambda: len(reports(daemon)) == 2, "the daemon is told")
    assert reports(daemon) == [("QUEUED", "change_pending"), ("INSTALLED", "compiled")]
    assert daemon.asked(Switch) == []


def test_nothing_changes_while_the_kernels_are_compiled(client, fake):
    daemon = fake()
    daemon.settle.clear()
    graph = Graph(client, Place(alone=True))
    wait_for(lambda: daemon.followers, "the round is followed")
    assert not any(graph.calls.begin() for _ in range(100))
    daemon.settle.set()
    graph.call_until_it_changes()
    assert graph.change.made_at > 100


def test_a_rank_does_what_the_daemon_says(client, fake):
    said = []

    def script(message):
        if not isinstance(message, Switch):
            return None
        said.append(message)
        if message.over:
            return Switching(SwitchStep.WAIT)
        if len(said) < 3:
            return Switching(SwitchStep.WAIT)
        return Switching(SwitchStep.COMMIT if message.ballot else SwitchStep.ARM, BALLOT, said[2].call + 50)

    fake(script=script)
    graph = Graph(client, TOGETHER)
    graph.call_until_it_changes()
    assert graph.outcome().installed
    assert graph.change.made_at == said[2].call + 50
    assert graph.box == {BALLOT: True}
    wait_for(lambda: said[-1].over, "the daemon is told that it is over")
    assert {(message.graph, message.rank, message.partners) for message in said} == {("model", 0, (0, 1))}
    assert len({message.member for message in said}) == 1
    assert [message.turn for message in said] == sorted(message.turn for message in said)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Switching(SwitchStep.NEVER, reason="rank 1 goes on with its own kernels"), "rank 1 goes on"),
        (m.Refusal("UNKNOWN_OP", "unknown op 'switch'"), "unknown op"),
        (m.Refusal("LIMIT", "too many graphs"), "too many"),
    ],
    ids=["never", "an older daemon", "refused"],
)
def test_without_an_agreement_a_graph_with_collectives_keeps_its_kernels_and_says_why(client, fake, answer, why):
    daemon = fake(script=lambda message: answer if isinstance(message, Switch) else None)
    outcome = Graph(client, TOGETHER).outcome()
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.NOT_AGREED)
    assert why in outcome.detail
    assert "the next start" in outcome.hint
    wait_for(lambda: len(reports(daemon)) == 2, "the daemon is told")
    assert reports(daemon)[-1] == ("DEGRADED", "not_agreed")


def test_without_an_agreement_a_graph_without_collectives_changes_alone(client, fake):
    fake(script=lambda message: m.Refusal("UNKNOWN_OP", "unknown op 'switch'") if isinstance(message, Switch) else None)
    graph = Graph(client, Place(rank=0))
    graph.call_until_it_changes()
    assert graph.outcome().installed


def test_what_cannot_be_agreed_on_from_the_start_is_told_and_the_kernels_are_compiled_all_the_same(client, fake):
    daemon = fake()
    outcome = Graph(client, Place(rank=0, problem="5000 ranks")).outcome()
    assert (outcome.state, outcome.reason, outcome.detail) == (ClientState.DEGRADED, Reason.NOT_AGREED, "5000 ranks")
    assert len(daemon.asked(m.Submit)) == 1


@pytest.mark.parametrize("place", [TOGETHER, Place(rank=0)], ids=["collectives", "none"])
def test_a_daemon_that_goes_in_the_middle_of_an_agreement_holds_nobody_up(environ, fake, place):
    daemon = fake(script=lambda message: Switching(SwitchStep.WAIT) if isinstance(message, Switch) else None)
    client = Client(environ, patience=HASTY)
    graph = Graph(client, place)
    wait_for(lambda: daemon.asked(Switch), "it asks")
    daemon.stop()
    graph.call_until_it_changes()
    outcome = graph.outcome()
    assert outcome.installed is not bool(place.partners)
    client.close()


def test_fc71_an_absent_daemon_is_the_usual_state_and_nothing_is_ever_due(hasty):
    graph = Graph(hasty, TOGETHER)
    outcome = graph.outcome()
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE)
    assert graph.ready == []
    assert not any(graph.calls.begin() for _ in range(100))


def test_a_fault_of_ours_in_the_thread_is_logged_and_nothing_is_ever_due(client, fake, caplog):
    fake()
    graph = Graph(client, Place(alone=True), on_progress=None)
    graph.call_until_it_changes()

    def broken(_outcome):
        raise ZeroDivisionError

    calls = Calls()
    change = Change(calls)
    client.static_kernels_in_background(
        RECORDS, graph="broken", change=change, place=Place(alone=True), on_ready=broken, on_end=lambda outcome: outcome
    )
    wait_for(lambda: change.is_over, "it is over")
    assert not any(calls.begin() for _ in range(100))
    assert "cannot be followed in the background" in caplog.text
