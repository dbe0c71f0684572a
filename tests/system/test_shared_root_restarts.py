"""A shared root over ends and starts of the daemon: who was hurt, who has an older kernel, and rounds that the journal kept."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from conftest_node import Node, eventually, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared_node import SharedNode


@pytest.mark.parametrize("when", ["before the daemon ends", "while it is down"])
def test_fc52_a_process_that_others_hurt_is_told_so_by_the_next_daemon_too(
    make_shared: Callable[..., SharedNode], when: str
) -> None:
    shared = make_shared()
    rounds = [matmuls(16), matmuls(48)]
    hurt, whole = (
        shared.rank([], rounds=rounds if number else rounds[1:], pause=str(shared.node.directory / "go")) for number in (1, 0)
    )
    eventually(
        lambda: (
            {p: rank["state"] for p, rank in shared.sessions().items()}
            == dict.fromkeys((hurt.process.pid, whole.process.pid), "INSTALLED")
        ),
        "both have loaded what their first round brought",
    )
    served = shared.read().select(json.loads(matmuls(16)[0][1]))
    assert served is not None
    victim = served.path
    if when == "while it is down":
        shared.node.kill()
        shutil.rmtree(victim.parents[2])
    else:
        shared.remove(victim.parents[2])
        eventually(lambda: shared.status()["op_library"]["damage"]["count"] == 1, "the damage is noticed")
        shared.node.kill()
    shared.node.start()
    eventually(victim.exists, "it is put back")
    (shared.node.directory / "go").touch()
    assert hurt.outcome()["rounds"][1]["state"] == "INSTALLED"
    told = eventually(lambda: shared.sessions().get(hurt.process.pid), "the session is shown")
    assert (told["state"], told["reason"]) == ("DEGRADED", "op_library_damaged")
    assert shared.sessions().get(whole.process.pid, {}).get("reason") != "op_library_damaged"
    assert shared.compiles() == 2


def test_a_process_that_may_have_loaded_an_older_kernel_is_told_to_restart_by_the_next_daemon_too(
    make_shared: Callable[..., SharedNode],
) -> None:
    shared = make_shared()
    shared.rank(matmuls(16)).outcome()
    options = {"rounds": [matmuls(48), matmuls(16)], "pause": str(shared.node.directory / "go")}
    early = shared.node.rank([], options=options)  # without CANN's environment: its toolchain is not compared
    eventually(lambda: len(shared.ours()) == 2, "it has done its first round")
    source = next(shared.node.cann.opp.glob("**/mat_mul_v2.py"))
    source.write_text(source.read_text() + "# another\n")
    eventually(lambda: not shared.ours(), "stale kernels are offered to nobody")
    shared.rank(matmuls(16)).outcome()
    shared.node.kill()
    shared.node.start()
    (shared.node.directory / "go").touch()
    outcome = early.outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "restart_needed")
    assert shared.rank(matmuls(16)).outcome()["state"] == "INSTALLED", "one that started later is not"


def test_fc55_a_round_of_the_journal_whose_root_may_not_be_written_is_told_before_it_is_compiled(
    make_shared: Callable[..., SharedNode],
) -> None:
    shared = make_shared(startup_s=1.5)
    rank = shared.rank(matmuls(16))
    eventually(shared.node.cann.runs, "it is being compiled")
    shared.node.kill()
    eventually(lambda: not shared.node.compilers(), "no compiler outlives its daemon")
    assert list((shared.node.state / "rounds").iterdir()), "the journal keeps it"
    shared.tree.write_text("in the way")
    shared.node.start()
    outcome = rank.outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "op_library")
    assert "not a directory" in outcome["detail"]
    eventually(lambda: not list((shared.node.state / "rounds").iterdir()), "it is settled")
    assert len(shared.node.cann.runs()) == 1
    shared.tree.unlink()
    assert shared.rank(matmuls(16)).outcome()["state"] == "INSTALLED"
    assert len(shared.node.cann.runs()) == 2


def test_a_kernel_that_is_damaged_in_the_root_and_in_the_store_is_compiled_again(make_shared: Callable[..., SharedNode]) -> None:
    shared = make_shared()
    shared.rank(matmuls(16, 32)).outcome()
    victim = next(shared.ai_core.glob("npgxd_*/*/*/*.o"))
    (source,) = (shared.node.state / "kernels").glob(f"*/*/{victim.name}")
    source.unlink()
    source.write_bytes(b"damaged")
    shared.remove(victim.parents[2])
    outcome = shared.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
    assert shared.compiles() == 2
    eventually(lambda: len(shared.ours()) == 2, "both are there")
    shared.read()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[list[Node]]:
    made: list[Node] = []
    yield made
    for node in made:
        node.close()


def test_a_second_npgxd_on_one_op_library_says_so_before_it_compiles_and_takes_over_when_the_first_ends(
    make_shared: Callable[..., SharedNode], second: list[Node], tmp_path: Path
) -> None:
    shared = make_shared()
    shared.rank(matmuls(16)).outcome()
    (tmp_path / "second").mkdir()
    other = Node(tmp_path / "second", shared.node.cann)
    second.append(other)
    other.program = shared.node.program
    other.start()
    eventually(lambda: "another npgxd" in (other.status() or {})["op_library"]["problem"], "it says that it cannot work there")
    outcome = other.rank(matmuls(32), **shared.environment).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "op_library")
    assert shared.compiles() == len(shared.node.cann.runs()) == 1
    shared.node.stop()
    eventually(lambda: not (other.status() or {})["op_library"]["problem"], "the root is free")
    outcome = other.rank(matmuls(32), **shared.environment).outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
    shared.read()
