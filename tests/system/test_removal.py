"""Leaving the op library, making room, and bounds, with a real daemon and real ranks."""

from __future__ import annotations

import hashlib
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import Node, eventually, matmuls, named
from test_admin import kernels, npgxctl

from tools.cann_sim import records

if TYPE_CHECKING:
    from collections.abc import Callable


class Watcher:
    """Reads every file of a view again and again, and notes the first that is missing or has other bytes."""

    def __init__(self, view: Path) -> None:
        self._expected = {path: self._digest(path) for path in view.rglob("*") if path.is_file()}
        self._stop = threading.Event()
        self.torn: list[str] = []
        self.rounds = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @staticmethod
    def _digest(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def _run(self) -> None:
        while not self._stop.is_set():
            for path, digest in self._expected.items():
                try:
                    if self._digest(path) != digest:
                        self.torn.append(f"{path} changed")
                except OSError as error:
                    self.torn.append(str(error))
            self.rounds += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.torn
        assert self.rounds


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_fc42_a_neighbours_kernels_stay_readable_when_a_process_ends_and_its_own_stay_stored(
    make_node: Callable[..., Node], how: signal.Signals
) -> None:
    node = make_node()
    node.settings["store"] = {"gc_interval_s": 1, "recent_s": 0}
    node.start()
    a, b = node.rank(matmuls(16, 32)), node.rank(matmuls(32, 48))
    view_a, view_b = Path(a.outcome()["view"]), Path(b.outcome()["view"])
    assert view_a != view_b
    watcher = Watcher(view_b)
    a.process.send_signal(how)
    a.process.wait()
    again = node.rank(matmuls(16, 32)).outcome()  # while A leaves
    assert (again["state"], again["reason"], again["torn"], again["missing"]) == ("INSTALLED", "hit", 0, 0)
    eventually(lambda: (node.status() or {})["kernels"]["leases"] == 2, "A's lease ends")
    npgxctl(node, "gc")
    watcher.end()
    assert len(kernels(node)) == 3, "within the limits nothing is removed from the store"


def test_fc41_what_only_killed_processes_used_leaves_the_op_library_once_and_the_bytes_stay(node: Node) -> None:
    ranks = [node.rank(matmuls(16, 32)), node.rank(matmuls(48))]
    views = [Path(rank.outcome()["view"]) for rank in ranks]
    for rank in ranks:
        rank.process.kill()
        rank.process.wait()
    eventually(lambda: (node.status() or {})["kernels"]["leases"] == 0, "the leases end")
    node.kill()
    node.start()  # what was told a moment ago is kept a minute; a new daemon has told nothing
    npgxctl(node, "gc")
    assert not any(view.exists() for view in views)
    outcome = node.rank(matmuls(16, 32, 48)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("INSTALLED", "hit")


def test_with_a_tiny_limit_leases_hold_everything_else_goes_and_is_compiled_again(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["store"] = {"max_gb": 1e-6, "gc_interval_s": 1, "recent_s": 0}
    node.start()
    reader = node.rank(matmuls(16, 32))
    watcher = Watcher(Path(reader.outcome()["view"]))
    other = node.rank(matmuls(48))
    other.outcome()
    other.end()
    node.stop()
    node.start()
    eventually(lambda: len(kernels(node)) == 2, "what nobody holds goes at the next pass")
    outcome = node.rank(matmuls(16, 32, 48)).outcome()
    assert (outcome["state"], outcome["hits"], outcome["compiled"], outcome["torn"]) == ("INSTALLED", 2, 1, 0)
    watcher.end()


def test_without_space_the_round_says_so_nothing_is_lost_and_space_helps(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.start()
    holder = node.rank(matmuls(16))
    holder.outcome()
    node.stop()
    node.settings["store"] = {"min_free_gb": 1e6, "recent_s": 0}
    node.start()
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["reason"], outcome["hits"]) == ("DEGRADED", "no_space", 1)
    assert "min_free_gb" in outcome["failures"][0][2]
    assert outcome["view"] is not None, "what is there is served"
    assert len(kernels(node)) == 1, "what is leased stays"
    assert len(node.cann.runs()) == 1
    status: Any = node.status()
    assert status["removal"]["last"]["short"]
    assert not list((node.state / "rounds").iterdir())
    node.stop()
    node.settings["store"] = {}
    node.start()
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["hits"], outcome["compiled"]) == ("INSTALLED", 1, 1)


def test_kernels_of_a_replaced_operator_are_retired_told_and_first_to_go(node: Node) -> None:
    add = named(records.elementwise("Add", [64, 8], "float16"))
    outcome = node.rank([*matmuls(16), *add]).outcome()
    assert (outcome["state"], outcome["compiled"]) == ("INSTALLED", 2), outcome
    source = next((node.cann.opp / "built-in/op_impl/ai_core/tbe/impl").rglob("add.cpp"))
    source.write_text(source.read_text() + "// changed\n")
    outcome = node.rank(add).outcome()
    assert (outcome["state"], outcome["compiled"]) == ("INSTALLED", 1), outcome
    report = npgxctl(node, "gc")
    assert report["retired"] == 1
    assert (node.status() or {})["removal"]["retired"] == 1


def test_after_the_catalog_was_made_anew_nothing_goes_until_the_next_start(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["store"] = {"max_gb": 1e-6, "recent_s": 0}
    node.start()
    node.rank(matmuls(16, 32)).end()
    eventually(lambda: len(kernels(node)) == 2, "they are compiled")
    node.stop()
    for path in node.state.glob("catalog.sqlite*"):
        path.unlink()
    node.start()
    held = npgxctl(node, "gc", code=1)
    assert (held["removed"], held["kept"]) == (0, {"on hold": 2})
    assert "catalog" in held["hold"]
    node.stop()
    node.start()
    assert npgxctl(node, "gc")["removed"] == 2


@pytest.mark.slow
def test_fc25_scratch_logs_and_size_stay_within_their_limits(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["store"] = {"max_gb": 0.0002, "gc_interval_s": 1, "recent_s": 0, "quarantine_mb": 1}
    node.settings["compile"]["keep_jobs"] = 3
    node.settings["compile"]["attempts"] = 1
    node.start()
    node.cann.order("Add", "fail")
    mixed = [[*matmuls(16 * n), *named(records.elementwise("Add", [16 * n, 8], "float16"))] for n in range(1, 13)]
    node.rank([], options={"rounds": mixed}).end()
    eventually(lambda: (node.status() or {})["queue"]["rounds"] == [], "all rounds are settled")
    assert len(list((node.state / "jobs").iterdir())) <= 3
    assert not list((node.state / "staging").iterdir())
    node.stop()
    node.start()
    assert npgxctl(node, "gc")["bytes"] <= 200_000
    on_disk = sum(
        path.stat().st_size for name in ("kernels", "packages") for path in (node.state / name).rglob("*") if path.is_file()
    )
    assert on_disk <= 200_000
    assert npgxctl(node, "verify")["found"] == 0
