from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest_node import Node
from machine import Npu

from tools.cann_sim import create
from tools.cann_sim.native import build, left_counters

pytestmark = pytest.mark.timeout(900)  # the first test waits for all starts
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


@dataclass
class Starts:
    """An unchanged program's starts on one node, each in a process of its own: what they told, and what was compiled in each."""

    npu: Npu
    node: Node
    counters: Path
    told: dict[str, dict] = field(default_factory=dict)
    compiled: dict[str, list[str]] = field(default_factory=dict)

    def start(self, name, **environment):
        before = len(self.node.cann.runs())
        self.told[name] = self.npu.run("serving", wishes(calls=3), NPGXD_SOCKET=str(self.node.socket), **environment)
        self.compiled[name] = [op.op_type for run in self.node.cann.runs()[before:] for op in run.ops]


@pytest.fixture(scope="module")
def starts(wheel, tmp_path_factory):
    """A first start, a second one, one without the bridge, and one after a vendor kernel was replaced."""
    directory = tmp_path_factory.mktemp("served")
    cann = create(directory / "cann")
    build(cann, wheel)
    made = Starts(Npu(cann, directory / "npu"), Node(directory, cann), directory / "counters")
    for new in (made.npu.directory, made.counters):
        new.mkdir()
    try:
        made.node.start()
        made.start("first")
        made.start("second", CANN_SIM_COUNTERS=str(made.counters))
        made.start("off", NPGXD_BRIDGE="off")
        source = next((cann.opp / "built-in/op_impl/ai_core/tbe/impl").rglob("swish.cpp"))
        source.write_bytes(source.read_bytes() + b"// another one\n")
        made.start("replaced")
        yield made
    finally:
        made.node.close()


def test_an_unchanged_program_runs_the_daemons_kernels(starts):
    first = starts.told["first"]
    assert first["off"] < 1e-6
    assert set(first["launches"][1]["static"]) == OPERATORS
    assert all(path.startswith(f"{starts.node.state}/views/") for path in first["kernels"])
    assert not list(starts.npu.directory.glob("static_kernel_install"))


def test_a_later_process_finds_every_kernel_and_compiles_none(starts):
    assert set(starts.told["second"]["launches"][1]["static"]) == OPERATORS
    assert (set(starts.compiled["first"]), starts.compiled["second"]) == (OPERATORS, [])
    assert starts.told["second"]["objects"] == starts.told["first"]["objects"]


def test_fc01_a_vendor_kernel_that_was_replaced_under_a_running_daemon_is_not_served_as_it_was(starts):
    before, after = starts.told["second"], starts.told["replaced"]
    assert starts.compiled["replaced"] == ["Swish"]
    assert set(after["launches"][1]["static"]) == OPERATORS
    assert {op for op in OPERATORS if before["objects"][op] != after["objects"][op]} == {"Swish"}


def test_a_process_that_exits_leaves_its_counters(starts):
    second = starts.told["second"]
    (left,) = (counted for counted in left_counters(starts.counters) if counted.pid == second["pid"])
    assert left.static == second["launches"][-1]["static"]


def test_the_recording_run_leaves_no_trace(starts):
    first = starts.told["first"]
    assert first["calls"] == [3.0, 3.0]
    assert first["seen"] < 1e-6
    assert first["random"] == [True, True]
    (dumped,) = starts.npu.directory.glob(f"static_kernel_compile_outputs/ts*/{first['pid']}_debug")
    assert not list(dumped.glob("TensorMove_*"))  # putting it back launched nothing that would be compiled


def test_the_documented_tree_is_that_of_the_bundled_flow(starts):
    def tree(name):
        (found,) = starts.npu.directory.glob(f"static_kernel_compile_outputs/ts*_pid{starts.told[name]['pid']}_outputs")
        return found, sorted(path.name.replace(str(starts.told[name]["pid"]), "PID") for path in found.iterdir() if path.is_dir())

    assert tree("first")[1] == tree("off")[1] == ["PID", "PID_debug", "PID_opcompile", "PID_opcompile_selected"]
    assert [path.name for path in tree("first")[0].glob("*.run")]


def test_the_map_of_packages_is_one_that_the_bundled_flow_reads(starts):
    cache = starts.npu.directory / "static_kernel_compile_outputs" / "static_kernel_cache"
    assert sorted(path.name for path in cache.iterdir()) == ["CANN-9.1.0_Ascend910B3.json", "CANN-9.1.0_Ascend910B3.lock"]
    ((key, package),) = json.loads((cache / "CANN-9.1.0_Ascend910B3.json").read_bytes()).items()
    assert (len(key), Path(package).is_file()) == (64, True)
    assert starts.compiled["off"] == []  # without the bridge, nothing had to be compiled
    assert set(starts.told["off"]["launches"][1]["static"]) == OPERATORS


def test_with_the_bridge_off_the_bundled_flow_runs_as_it_is(starts):
    off = starts.told["off"]
    assert off["modules"] == ["npgxd.bridge", "npgxd.bridge.hook"]
    assert all("static_kernel_install" in path for path in off["kernels"])
    assert off["calls"] == [4.0, 3.0]  # its recording run counts
    assert off["handler_kept"] is False


def test_torchairs_own_copy_of_the_module_goes_through_the_daemon_too(starts):
    told = starts.npu.run("torchair_copy", NPGXD_SOCKET=str(starts.node.socket))
    assert told["where"].endswith("torch_npu/dynamo/torchair/_acl_concrete_graph/static_kernel.py")
    assert (told["right"], told["static"]) == (True, {"Adds": 1, "Muls": 1})
    assert all(path.startswith(f"{starts.node.state}/views/") for path in told["kernels"])


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
    dumped, chosen = ({path.read_bytes() for path in folder.iterdir()} for folder in (opcompile, selected))
    assert [json.loads(record)["op_type"] for record in dumped - chosen] == ["MatMulV2"]
    assert len(list(selected.iterdir())) == len(chosen) > 0  # each record once, as the bundled flow selects them
    assert list(npu.directory.glob("static_kernel_compile_outputs/ts*/*.run"))


def test_below_cann_9_1_the_shared_root_is_reselected(make_node, make_npu):
    node = make_node(version="9.0.0")
    node.start()
    npu = make_npu("9.0.0", cann=node.cann)
    told = npu.run("serving", wishes(), NPGXD_SOCKET=str(node.socket))
    assert set(told["launches"][1]["static"]) == OPERATORS
    assert all(path.startswith(f"{node.cann.home}/opp") for path in told["kernels"])
    assert len(node.cann.runs()) == 1
