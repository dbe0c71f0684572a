"""Every state that a client can be in, driven on a whole node and told apart by ``npgxctl status --json`` and its exit code alone (FC-62)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from conftest_node import REPOSITORY, Node, eventually, matmuls, named

from npgxd.client import Client, Patience
from npgxd.client.background import Place
from npgxd.client.changing import Calls, Change
from npgxd.wire.states import ClientState, Reason
from tools.cann_sim import Costs
from tools.cann_sim.records import elementwise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENT = Patience(handshake_s=30, silence_s=30, reconnect_s=30)


def records(*sizes: int, adds: int = 0) -> list[tuple[str, bytes]]:
    sums = (elementwise("Add", [16 * number, 8], "float16") for number in range(1, adds + 1))
    return [(name, text.encode()) for name, text in (*matmuls(*sizes), *named(*sums))]


class Shown:
    """What npgxctl says of the node."""

    def __init__(self, node: Node) -> None:
        command = [sys.executable, "-m", "npgxd.cli.main", "status", "--json", "--socket", str(node.socket)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=REPOSITORY)
        self.code = done.returncode
        self.ranks = [rank for job in json.loads(done.stdout)["jobs"] for rank in job["ranks"]]

    @property
    def told(self) -> tuple[int, set[tuple[str, str]]]:
        return self.code, {(rank["state"], rank["reason"]) for rank in self.ranks}


class Process:
    """A client of this process, as one of a job of its own, and what it does in a thread."""

    def __init__(self, node: Node, **environ: str) -> None:
        self.client = Client(node.environment(**environ), patience=PATIENT)
        self.outcomes: list[Any] = []
        self._thread: threading.Thread | None = None

    def submit(self, *sizes: int, adds: int = 0, **how: Any) -> None:
        def run() -> None:
            self.outcomes.append(self.client.static_kernels(records(*sizes, adds=adds), graph="0", **how))

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def end(self) -> None:
        if self._thread is not None:
            self._thread.join(60)
        self.client.close()


@pytest.fixture
def process(node: Node) -> Iterator[Callable[..., Process]]:
    """Makes clients on a node, and ends them."""
    made: list[Process] = []

    def make(on: Node = node, **environ: str) -> Process:
        made.append(Process(on, **environ))
        return made[-1]

    yield make
    for each in made:
        each.end()


def is_shown(node: Node, code: int, *told: tuple[str, str]) -> None:
    eventually(lambda: Shown(node).told == (code, set(told)), f"npgxctl shows {told} and ends with {code}")


def test_fc62_nobody_off_recording_installed_and_cached_are_five_different_answers(node: Node, process: Any) -> None:
    is_shown(node, 0)
    off = process()
    off.client.report(ClientState.DISABLED, Reason.OPTION_OFF)
    is_shown(node, 4, ("DISABLED", "option_off"))
    off.end()
    first = process()
    first.client.recording("0")
    is_shown(node, 6, ("RECORDING", ""))
    first.submit(16)
    is_shown(node, 0, ("INSTALLED", "compiled"))
    first.end()
    second = process()
    second.submit(16)
    is_shown(node, 0, ("INSTALLED", "hit"))
    told = [line for line in node.log.read_text().splitlines() if " INFO " in line and "INSTALLED(" in line]
    assert len(told) == 2, told  # one line a rank and round


def test_fc62_queued_for_its_group_and_compiling_are_told_apart_with_how_far_it_is(make_node: Any, process: Any) -> None:
    node = make_node()
    node.settings["compile"] = {"workers": 1, "jobs": 1}
    node.start()
    node.cann.set_costs(Costs(per_op_type={"MatMulV2": 0.01}))  # longest first: the one that hangs comes last
    node.cann.order("Add", "hang", times=1)
    job = {"TORCHELASTIC_RUN_ID": "one", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
    ready, recording = (process(node, RANK=rank, **job) for rank in "01")
    recording.client.recording("0")
    ready.submit(16, 32, adds=1)
    is_shown(node, 5, ("QUEUED", ""), ("RECORDING", ""))
    recording.client.report(ClientState.CONNECTED)
    shown = eventually(lambda: next((s for s in [Shown(node)] if any(r["done"] for r in s.ranks)), None), "one kernel is done")
    (rank,) = [rank for rank in shown.ranks if rank["rank"] == 0]
    assert (rank["state"], rank["total"], shown.code) == ("COMPILING", 3, 5)
    assert 0 < rank["done"] < 3
    psutil.Process(node.cann.runs()[-1].pid).terminate()
    recording.end()
    is_shown(node, 0, ("INSTALLED", "compiled"))


def test_fc62_a_kernel_that_fails_is_degraded_with_its_reason(node: Node, process: Any) -> None:
    node.cann.order("MatMulV2", "fail")
    rank = process()
    rank.submit(16)
    is_shown(node, 3, ("DEGRADED", "compile_failed"))


def test_fc62_a_rank_that_gave_up_waiting_is_degraded_while_its_kernels_are_still_compiled(node: Node, process: Any) -> None:
    node.cann.order("MatMulV2", "hang")
    process().submit(16, deadline_s=0.2)
    is_shown(node, 3, ("DEGRADED", "deadline"))


def test_fc62_kernels_that_are_ready_and_not_in_use_yet_are_not_shown_as_installed(node: Node, process: Any) -> None:
    rank = process()
    calls = Calls()
    ended: list[Any] = []
    rank.client.static_kernels_in_background(
        records(16),
        graph="0",
        change=Change(calls),
        place=Place(alone=True),
        on_ready=lambda _outcome: None,
        on_end=lambda outcome: ended.append(outcome) or outcome,
    )
    is_shown(node, 5, ("QUEUED", "change_pending"))
    assert calls.begin()
    for change in calls.take():
        change.made()
    is_shown(node, 0, ("INSTALLED", "compiled"))
    assert ended[0].view is not None
