"""Engines beside each other on one node, one compiled by torch.compile and one as vLLM-Ascend does, with models that overlap.

``NPGXD_NPU_ROUNDS=30`` makes the number of stops larger than what a quick run has.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from conftest_node import eventually
from engines import Engine
from shared_node import SharedNode

ROUNDS = int(os.environ.get("NPGXD_NPU_ROUNDS", "1"))
pytestmark = pytest.mark.timeout(300 + 120 * ROUNDS)
WISHES = {
    "A": {"way": "torch.compile", "widths": [8, 16]},
    "B": {"way": "vLLM-Ascend", "widths": [8, 24], "batches": [2, 4]},
}
WAYS = ("SIGTERM", "SIGKILL", "exit")


@pytest.fixture
def start():
    """Start engines; all are ended with the test."""
    started = []

    def make(npu, node, name, **more):
        started.append(Engine(npu, node.socket, f"{name}{len(started)}", **WISHES[name], **more))
        return started[-1]

    yield make
    for engine in started:
        engine.close()


def test_fc42_no_engine_loses_a_kernel_by_another_ones_stop_and_nothing_is_left_over(make_node, make_npu, start):
    node = make_node()
    node.start()
    npu = make_npu(cann=node.cann)
    order = random.Random(ROUNDS)
    engines = {name: start(npu, node, name) for name in WISHES}
    for engine in engines.values():
        engine.serve()
    for stops in range(ROUNDS):
        stopped = order.choice(sorted(engines)) if stops else "B"
        neighbour = engines["B" if stopped == "A" else "A"]
        engines[stopped].stop(WAYS[stops % 3] if stops < 3 else order.choice(WAYS))
        neighbour.serve()
        engines[stopped] = start(npu, node, stopped)
        engines[stopped].serve()
        neighbour.serve()
    engines["B"].serve(2)  # another batch size of the range
    for told in engines["B"].step(6):  # one that is not in it
        assert (set(told["static"]) - {"TensorMove"}, told["codes"]) == (set(), 1)
        assert told["off"] < 1e-5
    for engine, way in zip(engines.values(), ("exit", "SIGTERM"), strict=True):
        engine.stop(way)
    assert max(Counter(node.compiled()).values()) == 1
    assert not list(npu.directory.glob("static_kernel_install"))
    eventually(lambda: node.status()["kernels"]["leases"] == 0, "every lease has ended")


def test_fc42_below_cann_9_1_a_total_uninstall_takes_nothing_from_a_neighbour(make_node, make_npu, start):
    node = make_node(version="9.0.0")
    node.start()
    shared = SharedNode(node)
    theirs = shared.install(shared.package(160))  # with whose installer the vendor's script came
    npu = make_npu("9.0.0", cann=node.cann)
    stopped, neighbour = (start(npu, node, name, ranks=1) for name in ("B", "A"))
    stopped.serve()
    neighbour.serve()
    before = shared.ours()
    stopped.stop("SIGTERM")
    neighbour.serve()
    neighbour.serve(8)  # with kernels that it opens only now, a composite operator's among them
    assert set(before) < set(shared.ours())
    assert node.status()["op_library"]["damage"]["count"] == 0
    assert theirs.exists()


def test_the_daemon_stops_between_two_ranks_first_rounds_and_no_rank_hangs_or_enters_the_bundled_flow(make_node, make_npu, start):
    node = make_node()
    node.start()
    npu = make_npu(cann=node.cann)
    engine = start(npu, node, "A")
    (first,) = engine.step(ranks=[0])
    node.stop()
    (second,) = engine.step(ranks=[1])
    (again,) = engine.step(8, ranks=[0])
    assert first["static"]["MatMulV2"] == 4
    assert [told["static"] for told in (second, again)] == [{}, {}]
    assert max(told["off"] for told in (first, second, again)) < 1e-5
    assert not list(npu.directory.glob("static_kernel_install"))
