"""Whatever the daemon does, the caller gets an outcome, in bounded time, and one line that says so (FC-71)."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import threading
import time
from pathlib import Path

import msgpack
import pytest
import zmq

from npgxd.client import Client
from npgxd.client.connection import GIVEN_UP, Connection, DaemonSilent
from npgxd.wire import messages as m
from npgxd.wire.codec import encode
from npgxd.wire.states import ClientState, Reason
from tests.client.conftest import HASTY, PATIENT
from tests.client.fake_daemon import SILENT, VIEW, FakeDaemon

RECORDS = [("Add_1.json", b'{"a":1}')]


def wait_for(condition, what):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def stop(pid):
    """SIGSTOP, and wait until every thread has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    wait_for(lambda: all((task / "stat").read_text().rpartition(") ")[2][0] == "T" for task in tasks), "it stops")


def unavailable(outcome):
    return (outcome.state, outcome.reason, outcome.view) == (ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE, None)


def in_thread(call):
    """Start ``call`` in a thread; the list gets its result."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_fc71_an_absent_daemon_is_one_warning_with_the_remedy(hasty, environ, caplog):
    with caplog.at_level(logging.WARNING):
        outcomes = [hasty.static_kernels(RECORDS, graph=str(n)) for n in range(3)]
    assert all(map(unavailable, outcomes))
    assert [record.getMessage() for record in caplog.records] == [
        (
            f"npgxd: no daemon answers; looked at {environ['NPGXD_SOCKET']} (not there); this process runs with dynamic kernels. "
            "Start it with 'systemctl start npgxd' or 'npgxd --user', or set NPGXD_SOCKET"
        )
    ]
    assert hasty.welcome() is None
    assert hasty.gathered("0" * 32) == []
    hasty.recording("model")


def test_an_absent_daemon_costs_no_look_at_this_processs_cann(hasty, monkeypatch):
    monkeypatch.setattr(hasty._session, "_identify", lambda: pytest.fail("CANN was read for nobody"))
    assert unavailable(hasty.static_kernels(RECORDS, graph="model"))


def test_fc71_a_socket_left_by_a_dead_daemon_is_an_absent_daemon(hasty, fake):
    fake().stop()
    outcome = hasty.static_kernels(RECORDS, graph="model")
    assert unavailable(outcome)
    assert "nobody listens" in outcome.detail


def test_fc71_a_stopped_daemon_is_given_up(environ, fake_process):
    process = fake_process()
    stop(process.pid)
    client = Client(environ, patience=HASTY)
    outcome = client.static_kernels(RECORDS, graph="model")
    client.close()
    assert unavailable(outcome)
    assert "does not answer the connection" in outcome.detail


def test_fc71_a_daemon_that_stops_in_the_middle_is_given_up_and_then_left_alone(environ, fake_process):
    process = fake_process("unsettled")
    client = Client(environ, patience=HASTY)
    outcome = client.static_kernels(RECORDS, graph="model", on_progress=lambda _: stop(process.pid))
    assert unavailable(outcome)
    assert outcome.round
    outcome = client.static_kernels(RECORDS, graph="next")
    assert unavailable(outcome)
    assert outcome.round == ""  # it was not even asked
    assert re.search("said nothing|does not answer", outcome.detail)
    client.close()


def test_fc71_a_daemon_killed_in_the_middle_and_not_restarted_is_given_up(environ, fake_process):
    process = fake_process("unsettled")
    client = Client(environ, patience=HASTY)
    outcome = client.static_kernels(RECORDS, graph="model", on_progress=lambda _: process.kill())
    client.close()
    assert unavailable(outcome)


def test_a_round_goes_on_with_the_daemon_that_comes_after_a_killed_one(environ, fake_process, fake):
    process = fake_process("unsettled")
    client = Client(environ, patience=PATIENT)
    thread, outcomes = in_thread(lambda: client.static_kernels(RECORDS, graph="model", on_progress=lambda _: process.kill()))
    process.wait(60)
    daemon = fake()
    thread.join(60)
    client.close()
    (outcome,) = outcomes
    assert outcome.installed
    # This daemon knew nothing: it was asked about the round, and then got it whole, under the same id.
    assert [type(request) for request in daemon.requests[:3]] == [m.Hello, m.Follow, m.Submit]
    assert list(daemon.rounds) == [outcome.round]
    assert daemon.rounds[outcome.round].records == RECORDS


def test_a_round_that_the_next_daemon_knows_is_not_sent_again(client, fake):
    first = fake()
    first.settle.clear()
    thread, outcomes = in_thread(lambda: client.static_kernels(RECORDS, graph="model"))
    wait_for(lambda: first.followers, "the round is followed")
    first.stop()
    second = fake()
    second.rounds = first.rounds  # as if from the journal
    thread.join(60)
    assert outcomes[0].installed
    assert second.asked(m.Follow)
    assert not second.asked(m.Submit)


def test_a_daemon_that_forgot_this_process_is_greeted_on_a_fresh_socket(client, fake):
    daemon = fake()
    client.welcome()
    daemon.greeted.clear()  # what a restarted daemon knows of an old connection
    assert client.static_kernels(RECORDS, graph="model").installed
    assert len(daemon.asked(m.Hello)) == 2


def test_a_dropped_event_is_made_good_by_asking_again(client, fake):
    daemon = fake()
    daemon.settle.clear()
    thread, outcomes = in_thread(lambda: client.static_kernels(RECORDS, graph="model"))
    wait_for(lambda: daemon.followers, "the round is followed")
    daemon.followers.clear()  # no event comes any more
    daemon.settle.set()
    thread.join(60)
    assert outcomes[0].installed


def test_a_stopping_daemon_is_waited_for_as_a_restarting_one(client, fake):
    drains = []

    def script(message: m.Message) -> object:
        if isinstance(message, m.Submit) and len(drains) < 3:
            drains.append(message.round)
            return m.Refusal("DRAINING", "the daemon is stopping")
        return None

    fake(script=script)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert outcome.installed
    assert drains == [outcome.round] * 3


def test_a_daemon_that_does_not_stop_stopping_is_a_state(hasty, fake):
    fake(script=lambda message: m.Refusal("DRAINING", "stopping") if isinstance(message, m.Submit) else None)
    outcome = hasty.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.DAEMON_DRAINING)


def test_a_view_that_the_daemon_no_longer_knows_is_made_again(client, fake):
    forgotten = []

    def script(message: m.Message) -> object:
        if isinstance(message, m.Lease) and not forgotten:
            forgotten.append(message.view)
            return m.Refusal("UNKNOWN_VIEW", "no such view")
        return None

    daemon = fake(script=script)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert outcome.installed
    assert len(daemon.asked(m.Submit)) == 2
    assert list(daemon.rounds) == [outcome.round]


def test_a_view_that_stays_unknown_is_a_state(client, fake):
    fake(script=lambda message: m.Refusal("UNKNOWN_VIEW", "no such view") if isinstance(message, m.Lease) else None)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason, outcome.view) == (ClientState.DEGRADED, Reason.REFUSED, None)


def test_a_lease_that_was_taken_back_is_asked_for_again(client, fake, store):
    offered = []

    def script(message: m.Message) -> object:
        if isinstance(message, m.Lease) and not offered:
            offered.append("e" * 32)
            path = store / "leases" / offered[0]
            path.touch()
            import fcntl

            taken = path.open("rb")
            fcntl.flock(taken, fcntl.LOCK_EX)
            offered.append(taken)
            return m.LeaseOffer("e" * 32, f"leases/{'e' * 32}", f"views/{VIEW}")
        return None

    daemon = fake(script=script)
    assert client.static_kernels(RECORDS, graph="model").installed
    assert len(daemon.asked(m.Lease)) == 2
    offered[1].close()


def test_a_lease_counts_although_the_daemon_died_before_it_was_told(client, fake):
    daemon = fake(script=lambda message: [b"garbage"] if isinstance(message, m.Leased) else None)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert outcome.installed
    assert outcome.view is not None
    assert daemon.asked(m.Leased)


GARBAGE = {
    "not msgpack": [b"\xc1"],
    "empty": [b""],
    "a pickle": [b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94."],
    "http": [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    "no id": [msgpack.packb({"v": 1, "op": "done"})],
    "unknown op": [msgpack.packb({"v": 1, "id": 1, "op": "rm -rf"})],
    "another version": [msgpack.packb({"v": 9, "id": 1, "op": "done"})],
    "deep": [b"\x91" * 5000 + b"\x90"],
    "too many frames": [msgpack.packb({"v": 1, "id": 1, "op": "done"}), *[b""] * 100],
    "a refusal of nothing": encode(m.Refusal("BAD_REQUEST", "could not read that"), 0),
    "an event of nothing": encode(m.Done(), 0),
}


@pytest.mark.parametrize("kind", [m.Hello, m.Follow], ids=lambda kind: kind.op)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_fc71_garbage_is_given_up(environ, fake, kind, garbage):
    daemon = fake(script=lambda message: garbage if isinstance(message, kind) else None)
    if kind is m.Follow:
        daemon.settle.clear()
    client = Client(environ, patience=HASTY._replace(reconnect_s=0.1))
    outcome = client.static_kernels(RECORDS, graph="model")
    client.close()
    assert unavailable(outcome)


@pytest.mark.parametrize("kind", [m.Hello, m.Submit, m.Follow, m.Lease, m.Gathered], ids=lambda kind: kind.op)
def test_a_wrong_reply_is_given_up(environ, fake, kind):
    daemon = fake(script=lambda message: m.Done() if isinstance(message, kind) else None)
    if kind is m.Follow:
        daemon.settle.clear()
    client = Client(environ, patience=HASTY._replace(reconnect_s=0.1))
    outcome = client.static_kernels(RECORDS, graph="model")
    assert client.gathered("0" * 32) == []
    client.close()
    assert unavailable(outcome) or kind is m.Gathered


@pytest.mark.parametrize("kind", [m.Hello, m.Submit, m.Follow], ids=lambda kind: kind.op)
def test_fc71_silence_is_given_up(hasty, fake, kind):
    daemon = fake(script=lambda message: SILENT if isinstance(message, kind) else None)
    if kind is m.Follow:
        daemon.settle.clear()
    outcome = hasty.static_kernels(RECORDS, graph="model")
    assert unavailable(outcome)
    assert "said nothing" in outcome.detail


ENDLESS = PATIENT._replace(handshake_s=10_000, silence_s=10_000, reconnect_s=10_000)
"""With this the product's own limits never pass in a test: what ends, ends by the caller's deadline."""


@pytest.mark.parametrize("kind", [m.Hello, m.Submit, m.Follow, m.Lease, m.Leased, m.Report], ids=lambda kind: kind.op)
def test_fc71_a_deadline_holds_over_all_that_is_asked_of_a_silent_daemon(environ, fake, kind):
    daemon = fake(script=lambda message: SILENT if isinstance(message, kind) else None)
    if kind is m.Follow:
        daemon.settle.clear()
    client = Client(environ, patience=ENDLESS)
    outcome = client.static_kernels(RECORDS, graph="model", deadline_s=0.2)
    assert outcome.installed if kind in {m.Leased, m.Report} else outcome.reason is Reason.DEADLINE
    client.close()


def test_fc71_a_deadline_holds_over_the_connection_to_a_stopped_daemon(environ, fake_process):
    stop(fake_process().pid)
    client = Client(environ, patience=ENDLESS)
    assert client.static_kernels(RECORDS, graph="model", deadline_s=0.2).reason is Reason.DEADLINE
    client.close()


def test_a_deadline_holds_while_another_thread_waits_for_the_daemon(environ, fake):
    fake(script=lambda message: SILENT if isinstance(message, m.Report) else None)
    client = Client(environ, patience=ENDLESS._replace(silence_s=3))
    client.welcome()
    thread, _ = in_thread(lambda: client.recording("slow"))
    wait_for(client._session._turns._inside.locked, "the other thread has its turn")
    assert client.static_kernels(RECORDS, graph="model", deadline_s=0.1).reason is Reason.DEADLINE
    thread.join(60)
    client.close()


def test_time_that_ran_out_is_no_silence_of_the_daemons(environ, fake):
    """The next one, with more time, is served at once: nothing rests, and nobody is given up."""
    slow = [True]
    fake(script=lambda message: SILENT if isinstance(message, m.Hello) and slow[0] else None)
    client = Client(environ, patience=PATIENT)
    assert client.static_kernels(RECORDS, graph="model", deadline_s=0.1).reason is Reason.DEADLINE
    slow[0] = False
    assert client.static_kernels(RECORDS, graph="model").installed
    client.close()


def test_a_daemon_that_always_dies_is_given_up_after_so_many(short, store, environ):
    """Each daemon takes the round, tells of progress and goes: there is progress each time, and still an end."""
    socket = short / "npgxd.sock"
    daemons = [FakeDaemon(socket, store)]
    daemons[0].settle.clear()
    over = threading.Event()

    def replace() -> None:
        while not over.is_set():
            if daemons[-1].followers:
                daemons[-1].stop()
                daemons.append(FakeDaemon(socket, store))
                daemons[-1].settle.clear()
            time.sleep(0.01)

    replacing = threading.Thread(target=replace)
    replacing.start()
    client = Client(environ, patience=PATIENT._replace(losses=3))
    outcome = client.static_kernels(RECORDS, graph="model")
    over.set()
    replacing.join(60)
    client.close()
    daemons[-1].stop()
    assert unavailable(outcome)
    assert 3 <= len(daemons) <= 6


def test_after_giving_up_once_a_missing_daemon_is_not_waited_for(environ, fake):
    daemon = fake()
    client = Client(environ, patience=HASTY)
    assert client.static_kernels(RECORDS, graph="first").installed
    daemon.stop()
    assert unavailable(client.static_kernels(RECORDS, graph="second"))
    client._session.patience = PATIENT._replace(reconnect_s=10_000)  # waiting again would never end
    assert unavailable(client.static_kernels(RECORDS, graph="third"))
    fake()
    assert client.static_kernels(RECORDS, graph="fourth").installed
    client.close()


def test_out_of_descriptors_is_a_state(environ, fake, monkeypatch, caplog):
    fake()

    def refuse(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    client = Client(environ, patience=HASTY)
    monkeypatch.setattr("npgxd.client.session.context_of_process", refuse)
    assert unavailable(client.static_kernels(RECORDS, graph="model"))
    assert client.welcome() is None
    client.report(ClientState.DISABLED)
    client.close()


def test_a_connection_whose_answers_do_not_come_sends_no_more_until_they_do(tmp_path):
    """A daemon ends a connection that floods it: whoever's own time is over again and again is no flood."""
    path = tmp_path / "s"
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{path}")
    connection = Connection(context, path, handshake_s=60)
    for _ in range(GIVEN_UP + 5):
        with pytest.raises(DaemonSilent):
            connection.request(m.Status(), timeout_s=0)
    asked = []
    while router.poll(60_000 if len(asked) < GIVEN_UP else 100):
        asked.append(router.recv_multipart())
    assert len(asked) == GIVEN_UP
    for identity, head in asked:
        router.send_multipart([identity, *encode(m.Done(), msgpack.unpackb(head)["id"])])
    with pytest.raises(DaemonSilent):
        connection.request(m.Status(), timeout_s=1)
    assert router.poll(60_000), "with the first answer that comes it asks again"
    connection.close()
    context.destroy(linger=0)
