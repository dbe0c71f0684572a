"""Two engines of two ranks on one node, with models that overlap, started and stopped in many orders and ways.

``NPGXD_NPU_ROUNDS=30`` makes the number of stops larger than what a quick run has.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest
from conftest_node import eventually
from machine import PROGRAMS

ROUNDS = int(os.environ.get("NPGXD_NPU_ROUNDS", "1"))
WIDTHS = {"A": [8, 16], "B": [8, 24]}
WAYS = ("SIGTERM", "SIGKILL", "exit")


class Engine:
    """Two rank processes that run a step when told to."""

    def __init__(self, npu, socket, name, number):
        self.name = name
        rendezvous = npu.directory / f"rendezvous.{name}.{number}"
        self.log = npu.directory / f"engine.{name}.{number}.log"
        with self.log.open("w") as log:
            self.ranks = [
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", str(PROGRAMS / "engine.py"), "-", json.dumps(WIDTHS[name])],
                    cwd=npu.directory,
                    env=npu.environment(
                        RANK=str(rank),
                        LOCAL_RANK=str(rank),
                        WORLD_SIZE="2",
                        LOCAL_WORLD_SIZE="2",
                        TORCHELASTIC_RUN_ID=f"{name}{number}",
                        RENDEZVOUS=str(rendezvous),
                        NPGXD_SOCKET=str(socket),
                    ),
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
                for rank in range(2)
            ]

    def step(self):
        """Have both ranks run a step, and see that it was static kernels throughout, with right numbers."""
        for process in self.ranks:
            process.stdin.write("step\n")
            process.stdin.flush()
        for process in self.ranks:
            line = process.stdout.readline()
            assert line, f"a rank of {self.name} ended: {self.log.read_text()[-3000:]}"
            told = json.loads(line)
            assert (told["static"], told["gone"]) == ({"MatMulV2": 2, "SoftmaxV2": 2, "Swish": 2}, {})
            assert len(told["kernels"]) == 6
            assert told["off"] < 1e-5

    def stop(self, way):
        for process in self.ranks:
            if way != "exit":
                process.send_signal(signal.Signals[way])
            process.stdin.close()
        ended = [process.wait(60) for process in self.ranks]
        for process in self.ranks:
            process.stdout.close()
        assert ended == ([0, 0] if way == "exit" else [-signal.Signals[way]] * 2), self.log.read_text()[-3000:]


@pytest.mark.timeout(180 + 60 * ROUNDS)
def test_no_engine_loses_a_kernel_by_another_ones_stop_and_nothing_is_left_over(make_node, make_npu):
    node = make_node()
    node.start()
    npu = make_npu(cann=node.cann)
    order = random.Random(ROUNDS)
    number = 0

    def start(name):
        nonlocal number
        number += 1
        return Engine(npu, node.socket, name, number)

    engines = {name: start(name) for name in WIDTHS}
    try:
        for engine in engines.values():
            engine.step()
        for stops in range(ROUNDS):
            stopped = order.choice(sorted(engines))
            neighbour = engines["B" if stopped == "A" else "A"]
            engines[stopped].stop(WAYS[stops % 3] if stops < 3 else order.choice(WAYS))
            neighbour.step()
            engines[stopped] = start(stopped)
            engines[stopped].step()
            neighbour.step()
        for engine, way in zip(engines.values(), ("exit", "SIGTERM"), strict=True):
            engine.stop(way)
    finally:
        for engine in engines.values():
            for process in engine.ranks:
                process.kill()
                process.wait()
    assert max(Counter(node.compiled()).values()) == 1
    assert len(node.compiled()) == 9  # three widths of three operators
    assert not list(npu.directory.glob("static_kernel_install"))
    eventually(lambda: node.status()["kernels"]["leases"] == 0, "every lease has ended")
