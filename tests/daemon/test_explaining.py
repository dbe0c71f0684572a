"""What is explained of kernels, processes and rounds, to whom, and what is forgotten for another try."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import replace

import pytest

from npgxd.compile.summary import log_tails
from npgxd.daemon.compiling.job_history import MAX_JOBS, JobHistory
from npgxd.daemon.refusals import Refused
from npgxd.wire.admin import Retry
from npgxd.wire.codec import encode
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.explain_messages import Explain, Explained
from npgxd.wire.messages import Hello, Submit, ToolchainIdentity
from npgxd.wire.states import ClientState
from tools.cann_sim import records

ME = PeerCredentials(os.getuid() + 1, os.getgid(), 4711)
OTHER = PeerCredentials(os.getuid() + 2, os.getgid(), 0)
ADD = records.elementwise("Add", (16, 8))


@pytest.fixture
def failed(parts):
    """A round of ME of one kernel that failed and one that did not."""
    parts.cann.order("Add", "fail")
    taken = parts.take(parts.session(ME), ADD, records.matmul(16, 32, 64))
    parts.drive(lambda: taken.result is not None)
    parts.cann.cancel_orders()
    assert taken.result.state is ClientState.DEGRADED
    return taken


def key_of(taken, op_type: str) -> str:
    return next(key for key, need in taken.needs.items() if need.record.op_type == op_type)


def test_a_failed_kernel_is_explained_with_reason_tries_command_exit_and_log(parts, failed) -> None:
    key = key_of(failed, "Add")
    told = parts.explainer.explain(key[:12], None, 5.0)
    assert (told["kind"], told["key"], told["op_type"], told["state"]) == ("kernel", key, "Add", "failed")
    assert "tiling failed" in told["why"]
    assert (told["failure"]["outcome"], told["failure"]["until"]) == ("failed", 0.0)
    assert told["failure"]["attempts"] == len(told["tries"]) == len(told["jobs"]) == 2
    last = told["jobs"][0]
    assert (last["outcome"], last["exit_code"], last["keys"], last["uid"]) == ("failed", 1, 1, ME.uid)
    assert last["command"].startswith(str(parts.cann.op_compiler))
    assert any("tiling failed" in log["text"] for log in last["logs"])
    assert json.loads(json.dumps(told)) == told


def test_a_kernel_that_is_there_is_explained_with_its_making_and_job(parts, failed) -> None:
    told = parts.explainer.explain("key:" + key_of(failed, "MatMulV2"), None, 5.0)
    assert (told["state"], told["failure"]) == ("present", None)
    assert told["kernel"]["cann_version"] == "9.1.0"
    assert told["jobs"][0]["outcome"] == "compiled"


def test_a_kernel_is_found_by_its_id_too_as_verify_and_the_log_name_it(parts, failed) -> None:
    key = key_of(failed, "MatMulV2")
    name = parts.stores.kernels.find(key).id
    assert name != key
    assert {parts.explainer.explain(asked, None, 5.0)["key"] for asked in (name, name[:12], f"key:{name[:12]}")} == {key}


def test_other_users_see_that_a_kernel_failed_and_why_and_nothing_of_whose_it_was(parts, failed) -> None:
    key = key_of(failed, "Add")
    told = parts.explainer.explain(key, OTHER.uid, 5.0)
    assert "tiling failed" in told["why"]
    assert {name for job in told["jobs"] for name in job} == {"job", "began_at", "wall_s", "running", "outcome", "reason"}
    assert str(parts.stores.state.path) not in json.dumps(told)
    for name in (failed.id[:8], str(ME.pid), "round:" + failed.id):
        assert parts.explainer.explain(name, ME.uid, 5.0)
        with pytest.raises(Refused, match="nothing is known"):
            parts.explainer.explain(name, OTHER.uid, 5.0)


def test_over_the_ranks_socket_the_kernels_word_decides_who_sees_what(parts, failed) -> None:
    ask = Explain(what=failed.id[:8])
    _, frames = parts.handlers.handle(b"unknown", ME, ask, (), 5.0)
    assert json.loads(b"".join(frames))["round"] == failed.id
    parts.handlers.handle(b"unknown", replace(OTHER, uid=os.geteuid()), ask, (), 5.0)
    with pytest.raises(Refused, match="nothing is known"):
        parts.handlers.handle(b"unknown", OTHER, ask, (), 5.0)


def test_who_waits_for_a_kernel_and_with_which_job_it_is(parts) -> None:
    taken = parts.take(parts.session(ME), ADD)
    (key,) = taken.needs
    waiting = parts.explainer.explain(key, None, 3.0)
    assert (waiting["state"], [each["round"] for each in waiting["waiting"]]) == ("waiting", [taken.id])
    assert "no kernel was ever compiled" in waiting["why"]
    assert parts.explainer.explain(key, OTHER.uid, 3.0)["waiting"] == []
    parts.dispatcher.tick(0.0)
    compiling = parts.explainer.explain(key, None, 3.0)
    assert compiling["state"] == compiling["jobs"][0]["outcome"].replace("running", "compiling") == "compiling"
    told = parts.explainer.explain(taken.id, None, 3.0)
    assert (told["kind"], told["why"], told["waits_for_total"]) == ("round", "its kernels are being compiled", 1)
    assert told["waits_for"][0]["job"] == compiling["jobs"][0]["job"]


def test_a_process_is_explained_by_its_session_and_rounds_and_by_its_rounds_alone_when_it_has_ended(parts, failed) -> None:
    told = parts.explainer.explain(str(ME.pid), None, 5.0)
    assert (told["kind"], told["rounds_total"], told["rounds"][0]["outcome"]) == ("process", 1, "DEGRADED")
    assert [session["uid"] for session in told["sessions"]] == [ME.uid]
    for session in parts.sessions:
        parts.sessions.end(session)
    assert parts.explainer.explain(f"pid:{ME.pid}", None, 5.0)["sessions"] == []


def test_a_job_is_explained_by_all_its_processes_and_rounds_those_that_wait_last(parts, failed) -> None:
    waiting = parts.submit(parts.session(ME, local_world_size=2), 48, now=9.0)
    assert waiting.job == failed.job
    told = parts.explainer.explain(failed.job[:6], ME.uid, 10.0)
    assert (told["kind"], told["job"], told["sessions_total"]) == ("job", failed.job, 2)
    assert {"QUEUED"} & {each["state"] for each in told["sessions"]}, "as status shows it"
    assert [(each["round"], each["outcome"]) for each in told["rounds"]] == [(failed.id, "DEGRADED"), (waiting.id, None)]
    assert parts.explainer.explain(f"job:{failed.job}", None, 10.0)["rounds_total"] == 2
    with pytest.raises(Refused, match="nothing is known"):
        parts.explainer.explain(failed.job, OTHER.uid, 10.0)


def test_a_run_of_op_compiler_is_answered_with_what_to_type(parts, failed) -> None:
    """The log names runs, too, and somebody at three in the morning types what he reads."""
    run = parts.explainer.explain(key_of(failed, "Add"), None, 5.0)["jobs"][0]["job"]
    with pytest.raises(Refused) as refused:
        parts.explainer.explain(run, ME.uid, 5.0)
    assert "it is a run of op_compiler" in refused.value.hint
    assert f"npgxctl logs {run}" in refused.value.hint
    with pytest.raises(Refused) as refused:
        parts.explainer.explain(run, OTHER.uid, 5.0)
    assert "op_compiler" not in refused.value.hint


def test_an_answer_can_be_sent_however_much_clients_say(parts) -> None:
    wide = "\N{GRINNING FACE}"
    hello = Hello(
        versions=(1,), program=wide * 4000, toolchain=ToolchainIdentity(versions={f"{n}{wide}": wide * 200 for n in range(60)})
    )
    for number in range(40):
        parts.handlers.handle(bytes([number]), ME, hello, (), 0.0)
        session = parts.sessions.by_identity(bytes([number]))
        session.tell(ClientState.DEGRADED, 0.0, reason="x", detail=wide * 4000, graph=wide * 255)
        bad = [(f"{at}{wide * 250}", f'{{"{wide * 64}": 1, "{wide * 64}": 2}}'.encode()) for at in range(200)]
        parts.coordinator.accept(session, Submit(round=secrets.token_hex(16), graph=wide * 255), bad, 0.0)
    frames = parts.explainer.frames(ME, str(ME.pid), 0.0)
    assert len(encode(Explained(schema=1), 1, frames)) == len(frames) + 1
    document = json.loads(b"".join(frames))
    assert (len(document["sessions"]), len(document["rounds"]), document["rounds_total"]) == (10, 10, 40)


def test_a_toolchain_that_changed_is_told_as_the_reason_of_a_miss(parts) -> None:
    first = parts.take(parts.session(), ADD)
    parts.drive(lambda: first.result is not None)
    source = next((parts.cann.opp / "built-in/op_impl/ai_core/tbe/impl").rglob("add.cpp"))
    source.write_bytes(source.read_bytes() + b"\n")
    second = parts.take(parts.session(), ADD, now=10.0)
    assert first.needs.keys().isdisjoint(second.needs)
    told = parts.explainer.explain(next(iter(second.needs)), None, 10.0)
    assert told["why"].startswith("the toolchain changed for this operator: a kernel of the same record was made")


def test_an_accepted_round_that_waits_for_a_toolchain_is_explained_as_that(parts) -> None:
    taken = parts.submit(parts.session(ME, local_world_size=2), 16)
    entries = parts.stores.rounds.pending()
    parts.coordinator.rounds.clear()
    parts.cann.home.resolve().rename(parts.cann.home.resolve().with_name("away"))
    parts.keyer.find()
    parts.coordinator.resume(entries, 0.0)
    told = parts.explainer.explain(taken.id[:8], ME.uid, 0.0)
    assert (told["round"], told["outcome"], told["records"]) == (taken.id, None, 1)
    assert "waits for a CANN toolchain" in told["why"]
    with pytest.raises(Refused, match="nothing is known"):
        parts.explainer.explain(taken.id[:8], OTHER.uid, 0.0)


def test_names_that_mean_several_things_are_refused_with_what_they_may_mean(parts) -> None:
    for digit in "12":
        parts.submit(parts.session(local_world_size=2), 16, name=f"{'a' * 31}{digit}")
    with pytest.raises(Refused, match=r"may mean round:a{31}1, round:a{31}2") as refused:
        parts.explainer.explain("aaaa", None, 0.0)
    assert refused.value.refusal == "AMBIGUOUS"
    assert parts.explainer.explain("a" * 31 + "2", None, 0.0)["round"].endswith("2")
    with pytest.raises(Refused, match="nothing is known under key:aaaa"):
        parts.explainer.explain("key:aaaa", None, 0.0)


def test_retry_forgets_what_was_named_and_the_next_round_compiles_it(parts, acts, failed) -> None:
    key = key_of(failed, "Add")
    assert parts.take(parts.session(), ADD).result.state is ClientState.DEGRADED, "it is remembered"
    assert acts.do(Retry(keys=("0" * 8,)), (), ME, 0.0) == {"forgotten": 0, "churn": 0, "unknown": ["0" * 8], "named": []}
    told = acts.do(Retry(keys=(key[:10],)), (), ME, 0.0)
    assert (told["forgotten"], told["unknown"], told["named"][0]["op_type"]) == (1, [], "Add")
    assert "that is not remembered" in parts.explainer.explain(key, None, 5.0)["why"]
    again = parts.take(parts.session(), ADD)
    parts.drive(lambda: again.result is not None)
    assert again.result.state is ClientState.INSTALLED


@pytest.mark.parametrize(("asked", "forgotten"), [(Retry(op_type="Add"), 1), (Retry(op_type="Mul"), 0), (Retry(all=True), 1)])
def test_retry_forgets_by_operator_or_all(parts, acts, failed, asked, forgotten) -> None:
    assert acts.do(asked, (), ME, 0.0)["forgotten"] == forgotten


@pytest.mark.parametrize("asked", [Retry(), Retry(keys=("0" * 8,), all=True), Retry(op_type="Add", all=True)])
def test_retry_of_nothing_or_of_several_kinds_is_refused(acts, asked) -> None:
    with pytest.raises(Refused, match="for keys, for one operator, or for all"):
        acts.do(asked, (), ME, 0.0)


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_what_was_run_is_known_also_to_the_next_daemon_as_long_as_its_logs_are_kept(parts, failed) -> None:
    key = key_of(failed, "Add")
    now, later = parts.dispatcher.history.of_key(key), JobHistory(parts.stores.state.jobs).of_key(key)
    assert len(later) == 2
    assert later == now
    for job in later:
        shutil.rmtree(parts.stores.state.jobs / job.job)
    assert JobHistory(parts.stores.state.jobs).of_key(key) == []


def test_jobs_without_a_directory_and_damaged_summaries_are_no_trouble(parts, tmp_path, caplog) -> None:
    jobs = tmp_path / "jobs"
    (jobs / "damaged").mkdir(parents=True)
    (jobs / "damaged" / "summary.json").write_text('{"job": 1')
    (jobs / "strange").mkdir()
    (jobs / "strange" / "summary.json").write_text("[]")
    history = JobHistory(jobs)
    for number in range(MAX_JOBS + 10):
        history.begun(f"{number:016x}", 0, [secrets.token_hex(32)], 0.0)
    assert len(history._jobs) == MAX_JOBS
    assert history.of_key("f" * 64) == []
    assert log_tails(jobs / "nowhere") == []
