"""The NPU's recorder and engine, on a small stand-in for torch_npu: what they ask of it is all that is tested here."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import npugraph_ex
from npgxd.wire.states import ClientState, Reason, Strategy
from npugraph_ex.capture import CaptureRunner
from npugraph_ex.engines import ReselectFailed, engine_for
from npugraph_ex.engines._eager import EagerRunner
from npugraph_ex.engines._npu import NpuEngine
from npugraph_ex.options import read_options
from npugraph_ex.program import ModuleProgram
from npugraph_ex.recording import DumpSwitchHeld
from npugraph_ex.recording.npu_dump import NpuDump, NpuRecorder
from npugraph_ex.recording.switch import SWITCH, DumpSwitch
from npugraph_ex.static_kernels import StaticKernels

RECORD = json.dumps({"op_type": "Add", "inputs": [], "outputs": []}).encode()


class FakeDump:
    """CANN's dump: one switch, a second start fails silently, everything is written when it stops."""

    def __init__(self):
        self.path = None
        self.calls = []

    def start(self, path):
        self.calls.append("start")
        if self.path is None:
            self.path = Path(path)

    def stop(self):
        self.calls.append("stop")
        if self.path is None:
            return
        for suffix in ("", "_debug", "_opcompile"):
            folder = self.path / f"{os.getpid()}{suffix}"
            folder.mkdir(mode=0o700)
            (folder / "Add_float_ND_1_0.json").write_bytes(RECORD)
        self.path = None


@pytest.fixture
def torch_npu(monkeypatch):
    module = types.ModuleType("torch_npu")
    module.dump = FakeDump()
    module._C = types.SimpleNamespace(_aclop_start_dump=module.dump.start, _aclop_stop_dump=module.dump.stop)
    module.loaded = []
    module.npu = types.SimpleNamespace(
        get_device_name=lambda: "Ascend910B3",
        synchronize=lambda: module.loaded.append("synchronize"),
        _aclnn_reselect_static_kernel_with_path=module.loaded.append,
    )
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    yield module
    SWITCH.give_back()


@pytest.fixture
def recorder(torch_npu):
    return NpuRecorder(NpuDump(torch_npu._C, DumpSwitch()), lambda: torch_npu.dump.calls.append("wait"))


def test_the_dump_runs_around_the_one_run_and_nothing_else(torch_npu, recorder, tmp_path):
    ran = []

    def run(observers):
        torch_npu.dump.calls.append("run")
        ran.append(observers)
        return 42

    outputs, recorded = recorder.record(run, label="graph 0", directory=tmp_path)
    assert (outputs, ran) == (42, [()])
    assert torch_npu.dump.calls == ["wait", "start", "run", "wait", "stop"]  # launches are made by another thread
    assert recorded.compilable == recorded.debug == recorded.target == (("Add_float_ND_1_0.json", RECORD),)
    assert recorded.written
    assert (tmp_path / f"{os.getpid()}_opcompile").is_dir()


def test_without_a_directory_a_temporary_one_serves(recorder):
    _, recorded = recorder.record(lambda _observers: None, label="graph 0", directory=None)
    assert len(recorded.compilable) == 1
    assert not recorded.written


def test_a_failing_run_stops_the_dump(torch_npu, recorder, tmp_path):
    def failing(_observers):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorder.record(failing, label="graph 0", directory=tmp_path)
    assert torch_npu.dump.calls == ["wait", "start", "stop"]


def test_a_dump_that_does_not_start_is_noticed_before_the_run(torch_npu, tmp_path):
    def broken(_path):
        raise RuntimeError("no")

    torch_npu._C._aclop_start_dump = broken
    recorder = NpuRecorder(NpuDump(torch_npu._C, DumpSwitch()), lambda: None)
    with pytest.raises(DumpSwitchHeld, match="did not start: no"):
        recorder.record(lambda _observers: pytest.fail("ran"), label="graph 0", directory=tmp_path)


def test_a_profiler_that_started_before_is_seen_through_the_wrapped_functions(torch_npu, tmp_path):
    switch = DumpSwitch()
    recorder = NpuRecorder(NpuDump(torch_npu._C, switch), lambda: None)
    (tmp_path / "profiler").mkdir()
    torch_npu._C._aclop_start_dump(str(tmp_path / "profiler"))
    with pytest.raises(DumpSwitchHeld, match="record_op_args=True"):
        recorder.record(lambda _observers: pytest.fail("ran"), label="graph 0", directory=tmp_path)
    torch_npu._C._aclop_stop_dump()
    assert torch_npu.dump.calls == ["start", "stop"]
    recorder.record(lambda _observers: None, label="graph 0", directory=tmp_path)


def test_a_profiler_that_starts_meanwhile_is_refused_and_its_stop_ends_nothing(torch_npu, recorder, tmp_path):
    def run(_observers):
        torch_npu._C._aclop_start_dump("/profiler")
        torch_npu._C._aclop_stop_dump()
        assert torch_npu.dump.calls == ["wait", "start"]
        return 42

    outputs, recorded = recorder.record(run, label="graph 0", directory=tmp_path)
    assert outputs == 42
    assert "was refused" in str(recorded.problem)
    assert recorded.compilable == ()


def test_a_holder_that_cannot_be_seen_shows_as_an_empty_dump(torch_npu, recorder, tmp_path):
    torch_npu.dump.stop = lambda: None
    recorder._dump.stop = torch_npu.dump.stop
    _, recorded = recorder.record(lambda _observers: None, label="graph 0", directory=tmp_path)
    assert "wrote nothing" in str(recorded.problem)


def test_wrapping_twice_changes_nothing(torch_npu):
    first = NpuDump(torch_npu._C, SWITCH)
    wrapped = torch_npu._C._aclop_start_dump
    second = NpuDump(torch_npu._C, SWITCH)
    assert torch_npu._C._aclop_start_dump is wrapped
    assert first.start == second.start == torch_npu.dump.start


def test_a_graph_with_npu_tensors_gets_the_npu_engine(torch_npu):
    module = make_fx(lambda x: x + 1)(torch.ones(1))
    assert engine_for(module).device == "cpu"

    class OnNpu(torch.Tensor):
        device = types.SimpleNamespace(type="npu")

    next(iter(module.graph.nodes)).meta["val"] = torch.ones(1).as_subclass(OnNpu)
    assert isinstance(engine_for(module), NpuEngine)


def test_graphs_are_captured_for_inference_where_torch_npu_can(torch_npu):
    program = ModuleProgram(make_fx(lambda x: x + 1)(torch.ones(1)))

    def runner(*, training=False, **options):
        return type(NpuEngine().runner(program, read_options(options), name="0", training=training))

    assert runner() is EagerRunner
    torch_npu.npu.NPUGraph = object
    assert runner() is CaptureRunner
    assert runner(training=True) is EagerRunner
    assert runner(force_eager=True) is EagerRunner


# ---- the whole journey -----------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(torch_npu, client):
    return StaticKernels("0", NpuEngine(), read_options({"static_kernel_compile": True}))


def test_records_of_the_dump_are_submitted_and_the_view_is_reselected(torch_npu, client, kernels, make_outcome, tmp_path):
    client.answer = lambda records: make_outcome(records=len(records), view=tmp_path)
    assert kernels.claim(())
    assert kernels.first_run((), lambda _observers: 42) == 42
    (report,) = npugraph_ex.static_kernel_report()
    assert report.outcome.state is ClientState.INSTALLED
    assert report.submitted == (("Add_float_ND_1_0.json", RECORD),)
    assert torch_npu.loaded == ["synchronize"] * 3 + [str(tmp_path)]  # around the run that is recorded, and before loading
    assert client.told[0] == ("identify", "Ascend910B3")
    assert (report.outputs / f"{os.getpid()}_debug" / "Add_float_ND_1_0.json").read_bytes() == RECORD
    assert (report.outputs / f"{os.getpid()}_opcompile_selected").is_dir()


def test_the_devices_own_soc_decides(torch_npu, client, kernels):
    torch_npu.npu.get_device_name = lambda: "Ascend310P3"
    assert kernels.first_run((), lambda _observers: 42) == 42
    (report,) = npugraph_ex.static_kernel_report()
    assert report.outcome.reason is Reason.UNSUPPORTED_SOC
    assert torch_npu.dump.calls == []


def test_an_older_cann_cannot_load_from_a_path(torch_npu, tmp_path):
    del torch_npu.npu._aclnn_reselect_static_kernel_with_path
    with pytest.raises(ReselectFailed, match=r"CANN 9\.1\.0 and later"):
        NpuEngine().reselect(tmp_path)


def test_with_a_shared_root_the_default_root_is_reselected_without_a_path(torch_npu, client, kernels, make_outcome, tmp_path):
    torch_npu.npu._aclnn_reselect_static_kernel = lambda: torch_npu.loaded.append("default root")
    client.answer = lambda records: make_outcome(records=len(records), view=None, root=tmp_path, strategy=Strategy.SHARED_ROOT)
    assert kernels.first_run((), lambda _observers: 42) == 42
    assert torch_npu.loaded == ["synchronize"] * 3 + ["default root"]
    assert npugraph_ex.static_kernel_report()[0].outcome.state is ClientState.INSTALLED


def test_a_torch_npu_that_cannot_reselect_is_named(torch_npu):
    with pytest.raises(ReselectFailed, match="cannot load static kernels again"):
        NpuEngine().reselect(None)


def test_a_runtime_that_refuses_a_view_is_degraded(torch_npu, client, kernels, make_outcome, tmp_path):
    def refuse(_path):
        raise RuntimeError("561103")

    torch_npu.npu._aclnn_reselect_static_kernel_with_path = refuse
    client.answer = lambda records: make_outcome(records=len(records), view=tmp_path)
    assert kernels.first_run((), lambda _observers: 42) == 42
    (report,) = npugraph_ex.static_kernel_report()
    assert report.outcome.reason is Reason.RESELECT_FAILED
    assert "561103" in report.outcome.detail
