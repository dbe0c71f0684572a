from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from npgxd.client import Client, Progress, current
from npgxd.client.lease import held
from npgxd.wire import limits
from npgxd.wire import messages as m
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState
from tests.client.conftest import PATIENT
from tests.client.fake_daemon import SILENT, VIEW, is_locked

RECORDS = [("Add_1.json", b'{"a":1}'), ("Mul_2.json", b'{"b":2}')]


def test_a_compiled_round_is_installed_with_a_leased_view(client, fake, store):
    daemon = fake()
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.INSTALLED, Reason.COMPILED)
    assert outcome.installed
    assert outcome.view == store / "views" / VIEW
    assert (outcome.records, outcome.unique, outcome.compiled) == (2, 2, 1)
    assert outcome.simulated
    assert outcome.toolchain is not None
    assert daemon.rounds[outcome.round].records == RECORDS
    assert daemon.leased == [held()[-1].lease]


def test_a_lease_is_held_after_the_client_is_closed(client, fake, store):
    daemon = fake()
    client.static_kernels(RECORDS, graph="model")
    client.close()
    assert is_locked(store / "leases" / daemon.leased[0])


def test_the_daemon_hears_who_this_process_is(environ, fake):
    daemon = fake()
    client = Client({**environ, "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, patience=PATIENT)
    client.identify(soc="Ascend910B3", cores=m.CoreCounts(40, 20))
    assert client.welcome().daemon == "fake"
    hello = daemon.requests[0]
    assert (hello.rank.rank, hello.rank.local_rank, hello.rank.local_world_size) == (3, 1, 8)
    assert (hello.toolchain.soc, hello.toolchain.cores) == ("Ascend910B3", m.CoreCounts(40, 20))
    assert hello.versions == (limits.PROTOCOL_VERSION,)
    client.close()


def test_identifying_anew_says_hello_anew(client, fake):
    daemon = fake()
    client.welcome()
    client.identify(soc="Ascend910B3")
    client.identify(soc="Ascend910B3")
    client.welcome()
    client.welcome()
    assert [hello.toolchain.soc for hello in daemon.asked(m.Hello)] == ["", "Ascend910B3"]


def test_the_final_state_is_reported_and_the_same_is_told_once(client, fake):
    daemon = fake()
    outcome = client.static_kernels(RECORDS, graph="model")
    client.report(outcome.state, outcome.reason, detail=outcome.detail, graph="model")
    assert [(told.state, told.reason, told.graph) for told in daemon.asked(m.Report)] == [
        (ClientState.INSTALLED, "compiled", "model")
    ]


def test_recording_is_told(client, fake):
    daemon = fake()
    client.recording("model[8]")
    assert [(told.state, told.graph) for told in daemon.asked(m.Report)] == [(ClientState.RECORDING, "model[8]")]


def test_a_round_with_nothing_new_to_load_needs_no_lease(client, fake):
    daemon = fake()
    daemon.result = m.RoundResult(state=ClientState.INSTALLED, reason=Reason.HIT, hits=2, compiled=0)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason, outcome.view) == (ClientState.INSTALLED, Reason.HIT, None)
    assert not daemon.asked(m.Lease)


def test_run_packages_come_with_their_vendor_names_and_only_from_the_store(client, fake, store, tmp_path):
    daemon = fake()
    (store / "packages" / "p.run").write_bytes(b"run")
    (tmp_path / "secret").write_bytes(b"no")
    (store / "packages" / "link.run").symlink_to(tmp_path / "secret")
    names = ["packages/p.run", "packages/link.run", "../secret", "/etc/passwd", "packages/absent.run"]
    packages = tuple(m.Package("b" * 64, f"{i}.run", path) for i, path in enumerate(names))
    daemon.result = replace(daemon.result, packages=packages)
    assert client.static_kernels(RECORDS, graph="model").packages == (("0.run", store / "packages" / "p.run"),)


def test_progress_is_told_until_the_round_is_settled(client, fake):
    daemon = fake()
    daemon.settle.clear()
    told: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 3:
            daemon.settle.set()

    assert client.static_kernels(RECORDS, graph="model", on_progress=on_progress).installed
    assert {progress.state for progress in told} == {RoundState.COMPILING}
    assert str(told[0]) == "simulated COMPILING(0/2) Add"


def test_a_fault_in_the_callers_progress_does_not_fail_the_round(client, fake, caplog):
    daemon = fake()
    daemon.settle.clear()

    def on_progress(_: Progress) -> None:
        daemon.settle.set()
        raise ZeroDivisionError

    assert client.static_kernels(RECORDS, graph="model", on_progress=on_progress).installed
    assert "on_progress failed" in caplog.text


def test_a_large_submission_goes_in_parts(client, fake):
    daemon = fake()
    many = [(f"{i}.json", b"{" + b" " * 200_000 + b"}") for i in range(60)]
    outcome = client.static_kernels(many, graph="model")
    assert outcome.installed
    assert daemon.rounds[outcome.round].records == many
    assert daemon.rounds[outcome.round].parts > 1


def test_a_round_without_records_is_submitted_so_that_its_group_does_not_wait(client, fake):
    daemon = fake()
    daemon.result = m.RoundResult(state=ClientState.DISABLED, reason=Reason.NOTHING_TO_COMPILE, hits=0, compiled=0)
    outcome = client.static_kernels([], graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DISABLED, Reason.NOTHING_TO_COMPILE)
    assert len(daemon.asked(m.Submit)) == 1


def test_records_that_cannot_be_sent_are_named_and_the_rest_is_compiled(client, fake):
    daemon = fake()
    records = [*RECORDS, ("big.json", b"x" * (limits.MAX_RECORD_BYTES + 1)), ("", b"{}"), ("bad\udcff", b"{}")]
    outcome = client.static_kernels(records, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.BAD_RECORDS)
    assert [item.name for item in outcome.rejected] == ["big.json", "", "bad\\udcff"]
    assert outcome.view is not None
    assert daemon.rounds[outcome.round].records == RECORDS


def test_failures_are_named_in_the_outcome(client, fake):
    daemon = fake()
    failure = m.Failure("c" * 64, "MatMulV2", KeyOutcome.FAILED, "op_compiler: no such tiling")
    daemon.result = m.RoundResult(
        state=ClientState.DEGRADED, reason=Reason.COMPILE_FAILED, hits=0, compiled=1, view=VIEW, failures=(failure,), failed=1
    )
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason, outcome.failures) == (ClientState.DEGRADED, Reason.COMPILE_FAILED, (failure,))
    assert outcome.detail == "1 of 2 kernels could not be compiled: MatMulV2: op_compiler: no such tiling"
    assert outcome.view is not None


@pytest.mark.parametrize(
    ("refusal", "state", "reason"),
    [
        ("NO_TOOLCHAIN", ClientState.DEGRADED, Reason.NO_TOOLCHAIN),
        ("CANN_VERSION", ClientState.DEGRADED, Reason.CANN_VERSION),
        ("UNSUPPORTED_SOC", ClientState.DISABLED, Reason.UNSUPPORTED_SOC),
        ("TOOLCHAIN_MISMATCH", ClientState.DEGRADED, Reason.TOOLCHAIN_MISMATCH),
        ("STORE", ClientState.DEGRADED, Reason.STORE_FAILED),
        ("NO_SPACE", ClientState.DEGRADED, Reason.NO_SPACE),
        ("TOO_LARGE", ClientState.DEGRADED, Reason.REFUSED),
        ("LIMIT", ClientState.DEGRADED, Reason.REFUSED),
        ("INTERNAL", ClientState.DEGRADED, Reason.REFUSED),
        ("A_CODE_OF_TOMORROW", ClientState.DEGRADED, Reason.REFUSED),
    ],
)
def test_fc62_each_refusal_has_its_state_and_reason(client, fake, refusal, state, reason):
    daemon = fake(script=lambda message: m.Refusal(refusal, "why", "what to do") if isinstance(message, m.Submit) else None)
    client.recording("model")
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason, outcome.hint, outcome.view) == (state, reason, "what to do", None)
    assert "why" in outcome.detail
    last = daemon.asked(m.Report)[-1]
    assert (last.state, last.reason) == (state, str(reason)), "who looks at the node sees it too"


def test_a_client_of_another_protocol_version_is_told_so(client, fake):
    fake(script=lambda message: m.Refusal("UNSUPPORTED_VERSION", "too old") if isinstance(message, m.Hello) else None)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.REFUSED)
    assert client.welcome() is None


def test_another_toolchain_than_the_daemons_is_named_and_nothing_is_submitted(client, fake):
    daemon = fake(differences=(m.Difference("ops_nn", "9.0.0", "9.1.0"),))
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.TOOLCHAIN_MISMATCH)
    assert outcome.detail == "ops_nn: rank 9.0.0, daemon 9.1.0"
    assert "set_env.sh" in outcome.hint
    assert not daemon.asked(m.Submit)


def test_a_daemon_without_toolchain_says_why(client, fake):
    daemon = fake(toolchain=None, toolchain_problem="no op_compiler below /usr/local/Ascend")
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.NO_TOOLCHAIN)
    assert outcome.detail == "the daemon has no CANN toolchain: no op_compiler below /usr/local/Ascend"
    assert not daemon.asked(m.Submit)


def test_a_deadline_ends_the_wait_and_says_how_far_it_was(client, fake):
    daemon = fake()
    daemon.settle.clear()
    outcome = client.static_kernels(RECORDS, graph="model", deadline_s=0.3)
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.DEADLINE)
    assert "0 of 2 kernels were ready" in outcome.detail
    assert outcome.round in daemon.rounds


def test_a_deadline_holds_while_the_daemon_is_silent(client, fake):
    fake(script=lambda message: SILENT if isinstance(message, m.Submit) else None)
    outcome = client.static_kernels(RECORDS, graph="model", deadline_s=0.3)
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.DEADLINE)


def test_what_all_ranks_submitted_can_be_had(client, fake):
    fake()
    records = [(f"{i}.json", b"{}") for i in range(5)]
    outcome = client.static_kernels(records, graph="model")
    assert client.gathered(outcome.round) == records


def test_a_store_that_is_not_visible_here_is_a_state(environ, fake, tmp_path):
    fake()
    client = Client({**environ, "NPGXD_STORE": str(tmp_path)}, patience=PATIENT)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason, outcome.view) == (ClientState.DEGRADED, Reason.STORE_NOT_VISIBLE, None)
    assert "NPGXD_STORE" in outcome.hint
    client.close()


def test_the_store_may_be_mounted_elsewhere(environ, fake, store, tmp_path):
    fake()
    (tmp_path / "mounted").symlink_to(store)
    client = Client({**environ, "NPGXD_STORE": str(tmp_path / "mounted")}, patience=PATIENT)
    assert client.static_kernels(RECORDS, graph="model").view == tmp_path / "mounted" / "views" / VIEW
    client.close()


@pytest.mark.parametrize("path", ["../store/views/x", "/etc", "views/../../etc", "views/link", "", "views//x"])
def test_a_view_outside_the_store_is_not_followed(client, fake, store, path):
    (store / "views" / "link").symlink_to("/etc")

    def script(message: m.Message) -> object:
        if isinstance(message, m.Lease):
            (store / "leases" / ("d" * 32)).touch()
            return m.LeaseOffer("d" * 32, "leases/" + "d" * 32, path)
        return None

    fake(script=script)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason, outcome.view) == (ClientState.DEGRADED, Reason.STORE_NOT_VISIBLE, None)


def test_a_thread_that_follows_does_not_keep_the_others_out(client, fake):
    daemon = fake()
    daemon.settle.clear()
    outcomes = []
    first = threading.Thread(target=lambda: outcomes.append(client.static_kernels(RECORDS, graph="first")))
    first.start()
    while not daemon.asked(m.Follow):
        client.report(ClientState.COMPILING, graph="second")
    client.recording("third")
    assert daemon.asked(m.Report)[-1].graph == "third"
    daemon.settle.set()
    first.join(60)
    assert [outcome.installed for outcome in outcomes] == [True]


def test_two_threads_have_their_own_rounds_on_one_connection(client, fake):
    daemon = fake()
    outcomes = []
    threads = [
        threading.Thread(target=lambda n=n: outcomes.append(client.static_kernels([(f"{n}.json", b"{}")], graph=str(n))))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [outcome.installed for outcome in outcomes] == [True] * 4
    assert len({outcome.round for outcome in outcomes}) == 4
    assert len(daemon.asked(m.Hello)) == 1


def test_a_fault_of_the_client_itself_is_a_state_not_an_exception(client, fake, monkeypatch, caplog):
    fake()
    monkeypatch.setattr("npgxd.client.client.fetch", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE)
    assert "the client failed" in caplog.text


def test_there_is_one_client_a_process():
    assert current() is current()


def test_what_a_round_is_at_is_told_in_words_also_where_no_operator_is_compiled() -> None:
    told = Progress("r", RoundState.COMPILING, records=4, unique=4, done=1, total=4, current=("Add", "Mul"))
    assert told.at == "Add, Mul"
    assert replace(told, current=()).at == "op_compiler"
    assert "all is compiled" in replace(told, current=(), done=4).at
