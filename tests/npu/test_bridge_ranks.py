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


def test_two_ranks_without_a_daemon_agree_on_the_bundled_flow(npu):
    for told in npu.ranks("serving", 2, wishes(), NPGXD_SOCKET=str(npu.directory / "none.sock")):
        assert set(told["launches"][1]["static"]) == OPERATORS
        assert all("static_kernel_install" in path for path in told["kernels"])


def test_no_rank_enters_the_bundled_flow_when_another_one_is_served(served):
    npu, node = served
    by_rank = npu.directory / "socket-of-rank-"
    Path(f"{by_rank}0").symlink_to(node.socket)
    told = npu.ranks("serving", 2, wishes(socket=str(by_rank)))
    assert [rank["off"] < 1e-6 for rank in told] == [True, True]
    assert [set(rank["launches"][1]["static"]) for rank in told] == [OPERATORS, set()]
    assert not list(npu.directory.glob("static_kernel_install"))
