from __future__ import annotations

import logging
import os
from dataclasses import replace

import pytest
import torch

import npugraph_ex
from npgxd.client import Progress
from npgxd.wire.messages import CompileOptions, ToolchainInfo
from npgxd.wire.states import ClientState, Reason, RoundState
from npugraph_ex.recording.switch import SWITCH
from npugraph_ex.telling import ProgressTeller

ON = {"static_kernel_compile": True}


def run(options=None, function=None, times=1):
    """Compile a small model anew and call it; returns its results, checked against eager."""
    torch._dynamo.reset()
    function = function or (lambda x: torch.exp(x @ x) + 1)
    compiled = torch.compile(function, backend="npugraph_ex", options=options or ON, fullgraph=True, dynamic=False)
    x = torch.rand(4, 4)
    for _ in range(times):
        assert torch.equal(compiled(x), function(x))
    return npugraph_ex.static_kernel_report()


def lines(caplog, level=logging.INFO):
    return [record.getMessage() for record in caplog.records if record.name == "npugraph_ex" and record.levelno >= level]


@pytest.fixture(autouse=True)
def listening(caplog):
    caplog.set_level(logging.DEBUG, "npugraph_ex")


def test_the_daemon_hears_of_the_recording_before_the_records(client):
    run()
    assert client.told == [("recording", "0"), ("submitted", "0")]


def test_installed_is_one_line_with_what_was_compiled(client, caplog):
    (report,) = run(times=3)
    assert report.outcome.state is ClientState.INSTALLED
    assert [name for name, _ in report.submitted] == [
        "MatMulV2_float_ND_4_4_0.json",
        "Exp_float_ND_4_4_0.json",
        "Adds_float_ND_4_4_0.json",
    ]
    assert list(report.submitted) == client.rounds[0]["records"]
    (line,) = lines(caplog)
    assert line == (
        "npugraph_ex: graph 0: static kernels INSTALLED (simulated; compiled 3 of 3 kernels, 0 were there; 3 records)"
    )


def test_other_ranks_tell_it_at_debug_level_only(client, caplog, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    run()
    assert lines(caplog) == []
    assert any("static kernels INSTALLED" in line for line in lines(caplog, logging.DEBUG))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (ClientState.DEGRADED, Reason.COMPILE_FAILED),
        (ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE),
        (ClientState.DEGRADED, Reason.TOOLCHAIN_MISMATCH),
        (ClientState.DEGRADED, Reason.SHADOWED),
        (ClientState.DISABLED, Reason.NO_TOOLCHAIN),
    ],
)
def test_every_other_state_runs_on_and_is_told_with_its_remedy(client, caplog, make_outcome, state, reason):
    client.answer = lambda records: make_outcome(state, reason, records=len(records), detail="what happened", hint="What to do")
    (report,) = run(times=2)
    assert (report.outcome.state, report.outcome.reason) == (state, reason)
    (line,) = lines(caplog)
    assert f"static kernels {state} (simulated; {reason}: what happened; 3 records). What to do" in line


def test_a_reason_is_a_warning_once(client, caplog, make_outcome):
    client.answer = lambda records: make_outcome(ClientState.DEGRADED, Reason.COMPILE_FAILED, records=len(records))
    run()
    run()
    assert len(lines(caplog)) == 2
    assert len(lines(caplog, logging.WARNING)) == 1


def test_an_absent_daemon_is_the_clients_to_warn_of(client, caplog, make_outcome):
    client.answer = lambda records: make_outcome(ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE, records=len(records), round="")
    run()
    assert len(lines(caplog)) == 1
    assert lines(caplog, logging.WARNING) == []


def test_whatever_breaks_in_the_client_does_not_reach_the_model(client, caplog):
    def broken(_records):
        raise ValueError("garbage")

    client.answer = broken
    (report,) = run(times=2)
    assert (report.outcome.state, report.outcome.reason) == (ClientState.DEGRADED, Reason.RECORDING_FAILED)
    assert "ValueError: garbage" in report.outcome.detail
    assert ("report", (ClientState.DEGRADED, Reason.RECORDING_FAILED, "0")) in client.told


def test_no_daemon_is_no_platform_but_still_records(client, make_outcome):
    client.toolchain = None
    client.answer = lambda records: make_outcome(
        ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE, records=len(records), toolchain=None, round=""
    )
    (report,) = run()
    assert len(report.submitted) == 3
    assert b"platform_info" not in report.submitted[0][1]


def test_platform_and_determinism_are_in_the_records(client):
    torch.use_deterministic_algorithms(mode=True)
    try:
        (report,) = run()
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert b'"deterministic": "true"' in report.submitted[0][1]
    assert b'"cube_core_cnt": 20' in report.submitted[0][1]


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910A", "Ascend910B", "Ascend950PR_9599"])
def test_an_unsupported_soc_is_disabled_before_anything_is_recorded(client, caplog, soc):
    client.toolchain = ToolchainInfo(soc=soc, family="x", cann_version="9.1.0", simulated=True)
    (report,) = run(times=2)
    assert (report.outcome.state, report.outcome.reason) == (ClientState.DISABLED, Reason.UNSUPPORTED_SOC)
    assert client.rounds == []
    assert report.outputs is None
    assert client.told == [("report", (ClientState.DISABLED, Reason.UNSUPPORTED_SOC, "0"))]
    assert soc in lines(caplog)[0]


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend910B4-1", "Ascend910B2C", "Ascend910_9382", "Ascend910_9362"])
def test_a_supported_soc_is_served(client, soc):
    client.toolchain = ToolchainInfo(soc=soc, family="x", cann_version="9.1.0", simulated=True)
    (report,) = run()
    assert report.outcome.state is ClientState.INSTALLED


def test_a_graph_of_views_has_nothing_to_compile(client, caplog):
    (report,) = run(function=lambda x: x.t())
    assert (report.outcome.state, report.outcome.reason) == (ClientState.DISABLED, Reason.NOTHING_TO_COMPILE)
    assert client.rounds == []
    assert lines(caplog, logging.WARNING) == []


def test_undescribed_operators_are_in_the_report_and_the_line(client, caplog):
    (report,) = run(function=lambda x: torch.logcumsumexp(x, 0) + 1)
    assert report.undescribed == (("aten.logcumsumexp.default", 1, "not in the table of operators"),)
    assert "1 operator is in no record" in lines(caplog)[0]


@pytest.mark.parametrize("off", [True, False])
def test_the_cache_option_asks_for_compiling_again(client, off):
    run(ON | {"disable_static_kernel_compile_cache": off})
    assert client.rounds[0]["recompile"] is off


def test_super_kernel_options_are_part_of_what_is_asked(client):
    run(
        ON
        | {
            "super_kernel_optimize": True,
            "super_kernel_optimize_options": {"dcci_after_kernel_end": [".*a", ".*b"]},
            "super_kernel_debug_options": {"debug_per_op_max_core_num": 1},
        }
    )
    assert client.rounds[0]["options"] == CompileOptions(
        super_kernel={"enable": "true", "dcci_after_kernel_end": ".*a,.*b", "debug_per_op_max_core_num": "1"}
    )
    run(ON)
    assert client.rounds[1]["options"] == CompileOptions()


# ---- the dump switch -------------------------------------------------------------------------------------------------


def test_a_profiler_that_holds_the_dump_is_named_and_the_model_runs(client, caplog, outputs_root):
    assert SWITCH.ask("the profiler")
    try:
        (report,) = run(times=2)
    finally:
        assert SWITCH.give_back()
    assert (report.outcome.state, report.outcome.reason) == (ClientState.DEGRADED, Reason.DUMP_SWITCH_HELD)
    assert client.rounds == []
    assert ("report", (ClientState.DEGRADED, Reason.DUMP_SWITCH_HELD, "0")) in client.told
    assert "held by the profiler" in lines(caplog)[0]
    assert "skip_first=1" in lines(caplog)[0]
    assert report.outputs is None
    assert list(outputs_root.iterdir()) == []


def test_a_profiler_that_starts_while_recording_is_refused_and_nothing_is_submitted(client, caplog):
    answers = []

    @torch.library.custom_op("npugraph_ex_test::profile", mutates_args=())
    def profile(x: torch.Tensor) -> torch.Tensor:
        answers.append(SWITCH.ask("the profiler"))
        return x.clone()

    @profile.register_fake
    def _(x):
        return torch.empty_like(x)

    (report,) = run(function=lambda x: profile(x) + 1)
    assert answers[0] is False
    assert (report.outcome.state, report.outcome.reason) == (ClientState.DEGRADED, Reason.DUMP_SWITCH_HELD)
    assert client.rounds == []
    assert "asked for the operator dump" in lines(caplog)[0]
    SWITCH.give_back()


def test_a_graph_that_finds_another_recording_has_its_turn_at_its_next_call(client):
    compiled = torch.compile(torch.exp, backend="npugraph_ex", options=ON, fullgraph=True)
    x = torch.rand(3)
    with SWITCH.hold("graph 9"):
        assert torch.equal(compiled(x), torch.exp(x))
    assert npugraph_ex.static_kernel_report() == ()
    assert torch.equal(compiled(x), torch.exp(x))
    assert [report.outcome.state for report in npugraph_ex.static_kernel_report()] == [ClientState.INSTALLED]


# ---- the documented tree ---------------------------------------------------------------------------------------------


@pytest.fixture
def packages(tmp_path):
    package = tmp_path / "store" / "abc.run"
    package.parent.mkdir()
    package.write_bytes(b"#!/bin/sh\n")
    return (("static_kernel_202601010101010101_7.run", package),)


def folders(tree):
    return sorted(path.name.replace(str(os.getpid()), "<pid>") for path in tree.iterdir())


def test_a_single_process_is_local_rank_0(client, make_outcome, packages, outputs_root):
    client.answer = lambda records: make_outcome(records=len(records), packages=packages)
    (report,) = run()
    tree = report.outputs
    assert tree.parent == outputs_root
    assert tree.name.startswith("ts2")
    assert tree.name.endswith(f"_pid{os.getpid()}_outputs")
    assert folders(tree) == ["<pid>", "<pid>_debug", "<pid>_opcompile", "<pid>_opcompile_selected", packages[0][0]]
    assert sorted(path.name for path in (tree / str(os.getpid())).iterdir()) == ["MatMulV2_float_ND_4_4_0.json"]
    selected = {path.name: path.read_bytes() for path in (tree / f"{os.getpid()}_opcompile_selected").iterdir()}
    assert selected == dict(report.submitted)
    for folder in tree.iterdir():
        if folder.is_dir():
            assert folder.stat().st_mode & 0o777 == 0o700
            assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert sorted(path.name for path in (outputs_root / "static_kernel_cache").iterdir()) == [
        "CANN-9.1.0_Ascend910B3.json",
        "CANN-9.1.0_Ascend910B3.lock",
    ]


def test_local_rank_0_of_several_also_gathers(client, make_outcome, packages, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    client.answer = lambda records: make_outcome(records=len(records), packages=packages)
    (report,) = run()
    gathered = report.outputs / f"{os.getpid()}_opcompile_gathered"
    assert len(list(gathered.iterdir())) == 2 * len(report.submitted)
    assert (report.outputs / packages[0][0]).exists()


def test_other_ranks_have_their_records_only(client, make_outcome, packages, monkeypatch, outputs_root):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    client.answer = lambda records: make_outcome(records=len(records), packages=packages)
    (report,) = run()
    assert folders(report.outputs) == ["<pid>", "<pid>_debug", "<pid>_opcompile", "<pid>_opcompile_selected"]
    assert not (outputs_root / "static_kernel_cache").exists()


def test_undescribed_operators_are_named_in_the_debug_folder(client):
    (report,) = run(function=lambda x: torch.logcumsumexp(x, 0) + 1)
    debug = report.outputs / f"{os.getpid()}_debug"
    assert "aten.logcumsumexp.default" in (debug / "undescribed_operators.json").read_text()


def test_a_tree_that_cannot_be_written_hurts_nobody(client, caplog, monkeypatch, tmp_path):
    (tmp_path / "program" / "static_kernel_compile_outputs").write_text("a file in the way")
    (tmp_path / "static_kernel_compile_outputs").write_text("another")
    (report,) = run()
    assert report.outcome.state is ClientState.INSTALLED
    assert report.outputs is None
    assert any("static_kernel_compile_outputs is not written" in line for line in lines(caplog, logging.WARNING))


def test_a_package_that_is_gone_hurts_nobody(client, caplog, make_outcome, tmp_path):
    client.answer = lambda records: make_outcome(records=len(records), packages=(("a.run", tmp_path / "gone.run"),))
    (report,) = run()
    assert report.outcome.state is ClientState.INSTALLED
    assert any("the run packages could not be written" in line for line in lines(caplog, logging.WARNING))


# ---- reselecting -----------------------------------------------------------------------------------------------------


def test_a_device_without_a_runtime_has_nothing_to_reselect(client, caplog, make_outcome, tmp_path):
    client.answer = lambda records: make_outcome(records=len(records), view=tmp_path)
    (report,) = run()
    assert report.outcome.state is ClientState.INSTALLED
    assert any("nothing to reselect" in line for line in lines(caplog, logging.DEBUG))


def test_a_failed_reselect_is_degraded_and_the_daemon_hears_of_it(client, make_outcome, monkeypatch, tmp_path):
    from npugraph_ex.engines import ReselectFailed
    from npugraph_ex.engines._eager import EagerEngine

    def failing(_self, _view):
        raise ReselectFailed("the runtime said no", hint="Restart")

    monkeypatch.setattr(EagerEngine, "reselect", failing)
    client.answer = lambda records: replace(make_outcome(records=len(records)), view=tmp_path)
    (report,) = run()
    assert (report.outcome.state, report.outcome.reason) == (ClientState.DEGRADED, Reason.RESELECT_FAILED)
    assert ("report", (ClientState.DEGRADED, Reason.RESELECT_FAILED, "0")) in client.told


# ---- progress --------------------------------------------------------------------------------------------------------


def sign(elapsed_s, state=RoundState.COMPILING, **facts):
    return Progress("0" * 32, state, records=3, unique=3, done=1, total=3, elapsed_s=elapsed_s, **facts)


def test_a_long_wait_is_told_now_and_then(caplog):
    teller = ProgressTeller("0")
    for state, elapsed in (
        (RoundState.QUEUED, 0.1),
        (RoundState.QUEUED, 1.1),
        (RoundState.COMPILING, 5),
        (RoundState.COMPILING, 12),
    ):
        teller(sign(elapsed, state))
    assert lines(caplog) == [
        "npugraph_ex: graph 0: static kernels QUEUED",
        "npugraph_ex: graph 0: static kernels COMPILING(1/3)",
    ]
    assert len(lines(caplog, logging.DEBUG)) == 6


def test_of_a_round_that_is_over_at_once_only_its_end_is_told(caplog):
    ProgressTeller("0")(sign(0.4))
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("local_rank", "told", "speaks"), [("1", None, False), ("0", None, True), ("0", False, False), ("1", True, True)]
)
def test_one_rank_of_a_job_speaks_as_the_daemon_says_or_else_local_rank_0(caplog, monkeypatch, local_rank, told, speaks):
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    ProgressTeller("0")(sign(2.0, speaks=told))
    assert bool(lines(caplog)) is speaks


def test_the_end_of_a_round_is_told_by_the_rank_that_the_daemon_names(client, caplog, make_outcome):
    client.answer = lambda records: make_outcome(records=len(records), speaks=False)
    run()
    assert lines(caplog) == []


def test_a_stall_is_a_warning_once(caplog):
    teller = ProgressTeller("0")
    for elapsed in (70.0, 71.0, 90.0):
        teller(sign(elapsed, stalled_s=elapsed - 5, current=("MatMulV2",)))
    (warning,) = lines(caplog, logging.WARNING)
    assert "nothing has moved for 65 s, longer than expected, at MatMulV2" in warning


def test_the_soc_that_the_environment_names_counts_where_there_is_no_npu(client, monkeypatch):
    monkeypatch.setenv("NPGXD_SOC", "Ascend310P3")
    (report,) = run()
    assert (report.outcome.state, report.outcome.reason) == (ClientState.DISABLED, Reason.UNSUPPORTED_SOC)
    assert client.rounds == []


def test_ctrl_c_in_the_wait_reaches_the_caller_and_the_next_call_is_recorded(client):
    def interrupted(_records):
        client.answer = None
        raise KeyboardInterrupt

    client.answer = interrupted
    compiled = torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"static_kernel_compile": True}, fullgraph=True)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(3))
    assert ("report", (ClientState.CONNECTED, "", "0")) in client.told
    compiled(torch.ones(3))
    (report,) = npugraph_ex.static_kernel_report()
    assert report.outcome.state is ClientState.INSTALLED
