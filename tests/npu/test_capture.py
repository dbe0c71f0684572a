"""The portable backend on an NPU without a bundled package: captured through torch.npu.NPUGraph, with the daemon's static kernels."""

from __future__ import annotations

import os
import re

import pytest
from conftest_node import Node
from machine import PROGRAMS, REPOSITORY, Npu

from tools.cann_sim import create
from tools.cann_sim.native import build

SHARED = REPOSITORY / "tests" / "npugraph_ex"
CASES = [
    name
    for file in (SHARED / "capture_cases.py", PROGRAMS / "capturing.py")  # read, since this process cannot import torch_npu
    for name in re.findall(r"^@(?:capture_cases\.)?case\ndef (\w+)", file.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def told(wheel, older, tmp_path_factory):
    """What the program told, on a node with a daemon."""
    directory = tmp_path_factory.mktemp("capture")
    cann = create(directory / "cann")
    build(cann, wheel)
    node, npu = Node(directory, cann), Npu(cann, directory / "npu")
    npu.directory.mkdir()
    try:
        node.start()
        yield npu.run("capturing", before=f"{older}{os.pathsep}{SHARED}", NPGXD_SOCKET=str(node.socket))
    finally:
        node.close()


@pytest.mark.parametrize("name", CASES)
def test_a_captured_graph_keeps_its_promise_on_an_npu(told, name):
    assert told["cases"][name] == ""


def test_no_case_is_left_out(told):
    assert sorted(told["cases"]) == sorted(CASES)
    assert len(CASES) > 20


@pytest.mark.parametrize(("decoding", "tolerance"), [("static", 2e-2), ("dynamic", 1e-4)])
def test_a_captured_decoder_gives_the_cpus_numbers_in_all_calls_and_caches(told, decoding, tolerance):
    assert told[decoding]["off"] < tolerance


@pytest.mark.parametrize("decoding", ["static", "dynamic"])
def test_a_replay_is_one_launch_by_the_host_beside_the_copies_of_inputs_and_outputs(told, decoding):
    calls = told[decoding]["calls"]
    for batch in (calls[:4], calls[4:]):
        recorded, captured, *replays = batch
        assert recorded["replays"] == 0
        assert captured["replays"] == 1
        assert captured["host"] >= recorded["host"] > 50
        for call in replays:
            assert call["replays"] == 1
            assert call["host"] <= 3  # tokens and positions into the graph's memory, logits out of it
            assert sum((call["static"] | call["dynamic"]).values()) >= len(call["static"] | call["dynamic"]) > 5


def test_captures_hold_the_static_kernels_that_were_made_of_the_first_run(told):
    assert told["outcomes"] == [["INSTALLED", told["outcomes"][0][1]], ["INSTALLED", told["outcomes"][1][1]]]
    assert told["static"]["calls"][0]["static"] == {}
    for batch in (told["static"]["calls"][:4], told["static"]["calls"][4:]):
        for call in batch[1:]:
            assert {"MatMulV3", "RmsNorm", "SoftmaxV2"} & set(call["static"])
            assert not {"MatMulV3", "BatchMatMulV2", "SoftmaxV2", "Mul"} & set(call["dynamic"])


def test_ranks_that_exchange_data_capture_a_graph_together_or_not_at_all(npu, older):
    before = f"{older}{os.pathsep}{SHARED}"
    told = npu.ranks("capturing", 2, "ranks", before=before, NPGXD_SOCKET=str(npu.directory / "none.sock"))
    assert [rank["graphs"]["all_reduce"] for rank in told] == [[1, 3]] * 2
    assert [rank["graphs"]["all_gather"][1] for rank in told] == [0, 0]
    assert [rank["graphs"]["reduce_scatter"] for rank in told] == [[1, 3]] * 2
