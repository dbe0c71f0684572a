from __future__ import annotations

import json
import signal
import sys
import time

import pytest
from conftest_node import Node
from machine import Npu

from tools.cann_sim import create
from tools.cann_sim.native import build, left_counters

OPERATORS = {"Add", "Adds", "Index", "IndexPutV2", "MatMulV2", "Mul", "SoftmaxV2", "Swish"}
"""What the served graph launches."""


def wishes(**given):
    return json.dumps(given)


@pytest.fixture
def served(make_node, make_npu):
    """A machine whose daemon runs, and the node with that daemon."""
    node = make_node()
    node.start()
    npu = make_npu(cann=node.cann)
    return npu, node


def test_the_hook_is_installed_with_the_package(wheel):
    assert any(getattr(finder, "npgxd_bridge", False) for finder in sys.meta_path)


@pytest.fixture(scope="module")
def two_starts(wheel, tmp_path_factory):
    """An unchanged program started twice on a node with a daemon: what both told, the machine and the node."""
    directory = tmp_path_factory.mktemp("served")
    cann = create(directory / "cann")
    build(cann, wheel)
    node, npu = Node(directory, cann), Npu(cann, directory / "npu")
    npu.directory.mkdir()
    try:
        node.start()
        first = npu.run("serving", wishes(calls=3), NPGXD_SOCKET=str(node.socket))
        left = directory / "counters"
        left.mkdir()
        yield first, npu.run("serving", wishes(calls=3), NPGXD_SOCKET=str(node.socket), CANN_SIM_COUNTERS=str(left)), npu, node
    finally:
        node.close()


def test_an_unchanged_program_runs_the_daemons_kernels(two_starts):
    first, _, npu, node = two_starts
    assert first["off"] < 1e-6
    assert set(first["launches"][1]["static"]) == OPERATORS
    assert all(path.startswith(f"{node.state}/views/") for path in first["kernels"])
    assert not list(npu.directory.glob("static_kernel_install"))


def test_a_later_process_finds_every_kernel_and_compiles_none(two_starts):
    _, later, _, node = two_starts
    assert set(later["launches"][1]["static"]) == OPERATORS
    assert len(node.cann.runs()) == 1


def test_a_process_that_exits_leaves_its_counters(two_starts):
    _, later, npu, _ = two_starts
    (left,) = (counted for counted in left_counters(npu.directory.parent / "counters") if counted.pid == later["pid"])
    assert left.static == later["launches"][-1]["static"]


def test_the_recording_run_leaves_no_trace(two_starts):
    first, _, npu, _ = two_starts
    assert first["calls"] == [3.0, 3.0]
    assert first["seen"] < 1e-6
    assert first["random"] == [True, True]
    (dumped,) = npu.directory.glob(f"static_kernel_compile_outputs/ts*/{first['pid']}_debug")
    assert not list(dumped.glob("TensorMove_*"))  # putting it back launched nothing that would be compiled


def test_with_the_bridge_off_the_bundled_flow_runs_as_it_is(served):
    npu, node = served
    told = npu.run("serving", wishes(), NPGXD_SOCKET=str(node.socket), NPGXD_BRIDGE="off")
    assert told["modules"] == ["npgxd.bridge", "npgxd.bridge.hook"]
    assert set(told["launches"][1]["static"]) == OPERATORS
    assert all("static_kernel_install" in path for path in told["kernels"])
    assert told["calls"] == [3.0, 2.0]  # its recording run counts
    assert told["handler_kept"] is False


def test_without_a_daemon_a_single_process_has_the_bundled_flow(npu):
    told = npu.run("serving", wishes(), NPGXD_SOCKET=str(npu.directory / "none.sock"))
    assert set(told["launches"][1]["static"]) == OPERATORS
    assert all("static_kernel_install" in path for path in told["kernels"])
    assert not list(npu.directory.glob("static_kernel_install/*"))  # which it removes when it exits


@pytest.mark.parametrize("package", ["npugraph_ex", "torch_npu.dynamo.npugraph_ex"])
def test_sigterm_ends_a_served_process(served, package):
    npu, node = served
    report = npu.directory / "waiting.json"
    process = npu.start("serving", wishes(then="wait", package=package), report=report, NPGXD_SOCKET=str(node.socket))
    end = time.monotonic() + 120
    while not report.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, said
    assert json.loads(report.read_text())["handler_kept"]


def test_the_documented_options_and_the_black_list_are_honoured(served):
    npu, node = served
    eager = {"force_eager": True, "disable_static_kernel_compile_cache": True}
    for number in (1, 2):
        told = npu.run("serving", wishes(options=eager, blacklist=["MatMul"]), NPGXD_SOCKET=str(node.socket))
        assert set(told["launches"][1]["static"]) == OPERATORS - {"MatMulV2"}
        assert told["calls"] == [2.0, 2.0]
        assert len(node.cann.runs()) == number  # the cache is disabled: compiled each time
    (selected, *_), (opcompile, *_) = (sorted(npu.directory.glob(f"*/ts*/*_opcompile{end}")) for end in ("_selected", ""))
    assert {path.name for path in opcompile.iterdir()} - {path.name for path in selected.iterdir()} == {
        "MatMulV2_float_ND_4_8_0.json"
    }
    assert list(npu.directory.glob("static_kernel_compile_outputs/ts*/*.run"))


def test_below_cann_9_1_the_shared_root_is_reselected(make_node, make_npu):
    node = make_node(version="9.0.0")
    node.start()
    npu = make_npu("9.0.0", cann=node.cann)
    told = npu.run("serving", wishes(), NPGXD_SOCKET=str(node.socket))
    assert set(told["launches"][1]["static"]) == OPERATORS
    assert all(path.startswith(f"{node.cann.home}/opp") for path in told["kernels"])
    assert len(node.cann.runs()) == 1
