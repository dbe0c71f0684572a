from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def test_two_ranks_are_compiled_for_together(served):
    npu, node = served
    for told in npu.ranks("serving", 2, wishes(), NPGXD_SOCKET=str(node.socket)):
        assert told["off"] < 1e-6
        assert set(told["launches"][1]["static"]) == OPERATORS
        assert all(path.startswith(f"{node.state}/views/") for path in told["kernels"])
    assert len(node.compiled()) == len(set(node.compiled()))
    (gathered,) = npu.directory.glob("static_kernel_compile_outputs/ts*/*_opcompile_gathered")  # one rank's
    selected = {path.read_bytes() for path in npu.directory.glob("static_kernel_compile_outputs/ts*/*_selected/*.json")}
    assert {path.read_bytes() for path in gathered.iterdir()} == selected
    assert {package.parent for package in npu.directory.glob("static_kernel_compile_outputs/ts*/*.run")} == {gathered.parent}
    (mapped,) = npu.directory.glob("static_kernel_compile_outputs/static_kernel_cache/CANN-*.json")
    assert [Path(package).parent for package in json.loads(mapped.read_bytes()).values()] == [gathered.parent]


def test_two_ranks_without_a_daemon_agree_on_the_bundled_flow(npu):
    for told in npu.ranks("serving", 2, wishes(), NPGXD_SOCKET=str(npu.directory / "none.sock")):
        assert set(told["launches"][1]["static"]) == OPERATORS
        assert all("static_kernel_install" in path for path in told["kernels"])
