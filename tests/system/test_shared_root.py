"""CANN before 9.1.0 on a whole node: kernels in the default root, beside other installers, over kills, damage and ends of processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import eventually, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared_node import SharedNode

VERSIONS = ("8.5.0", "9.0.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_cold_then_hit_then_restart_and_always_exactly_what_was_asked_for(
    make_shared: Callable[..., SharedNode], version: str
) -> None:
    shared = make_shared(version)
    first = shared.rank(matmuls(16, 32, 48)).outcome()
    assert (first["state"], first["reason"], first["strategy"]) == ("INSTALLED", "compiled", "shared_root"), first
    assert first["view"] is None
    assert (first["missing"], first["torn"]) == (0, 0)
    second = shared.rank(matmuls(16, 32, 48)).outcome()
    assert (second["state"], second["reason"], second["hits"], second["missing"]) == ("INSTALLED", "hit", 3, 0)
    more = shared.rank([], rounds=[matmuls(16), matmuls(64)]).outcome()
    assert [r["reason"] for r in more["rounds"]] == ["hit", "compiled"]
    assert (more["missing"], more["torn"]) == (0, 0)
    assert len(shared.directories()) == 4
    shared.node.kill()
    shared.node.start()
    after = shared.rank(matmuls(16, 32, 48, 64)).outcome()
    assert (after["state"], after["reason"], after["missing"]) == ("INSTALLED", "hit", 0)
    assert shared.compiles() == 2
    kernel = next(shared.ai_core.glob("npgxd_*/*/*/*.o"))
    assert all(path.stat().st_mode & 0o005 == 0o005 for path in kernel.relative_to(shared.ai_core).parents and [kernel.parent])
    assert kernel.stat().st_mode & 0o444 == 0o444


def test_fc33_independent_processes_that_start_together_share_the_root_and_every_compile(
    make_shared: Callable[..., SharedNode],
) -> None:
    shared = make_shared()
    ranks = [
        shared.node.rank(
            matmuls(*range(16, 22), 30 + port), RANK="0", WORLD_SIZE="1", MASTER_PORT=str(port), **shared.environment
        )
        for port in range(6)
    ]
    outcomes = [rank.outcome() for rank in ranks]
    assert {o["state"] for o in outcomes} == {"INSTALLED"}
    assert {(o["missing"], o["torn"]) for o in outcomes} == {(0, 0)}
    assert len(shared.node.compiled()) == len(set(shared.node.compiled())) == 12
    assert len(shared.read().selected) == 12


def test_what_others_installed_before_stays_serves_us_where_it_is_equal_and_shadows_us_where_it_is_not(
    make_shared: Callable[..., SharedNode],
) -> None:
    shared = make_shared()
    equal = shared.install(shared.package(16))
    other = shared.install(shared.package(32))
    changed = next(other.glob("ascend910b/*/*.json"))
    changed.write_text(json.dumps({**json.loads(changed.read_bytes()), "note": "another build"}))
    before = json.loads(shared.index.read_bytes())
    outcome = shared.rank(matmuls(16, 32, 48)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "shadowed")
    assert [why for _op, why in outcome["shadowed"]] == ["shadowed"]
    assert len(shared.ours()) == 1
    after = json.loads(shared.index.read_bytes())
    assert [e for e in after["MatMulV2"]["staticList"] if e in before["MatMulV2"]["staticList"]] == before["MatMulV2"][
        "staticList"
    ]
    shared.read()
    subprocess.run([equal / "uninstall.sh"], check=True, capture_output=True)
    eventually(lambda: len(shared.ours()) == 2, "what another installer's kernel did for us, ours does now")
    assert shared.rank(matmuls(16)).outcome()["state"] == "INSTALLED"


def test_another_installer_at_the_same_time_loses_nothing_and_neither_do_we(make_shared: Callable[..., SharedNode]) -> None:
    shared = make_shared()
    packages = [shared.package(size) for size in (160, 176, 192)]
    running = [
        subprocess.Popen([package], env={**os.environ, **shared.environment}, stdout=subprocess.DEVNULL)
        for package in packages[:2]
    ]
    rank = shared.rank(matmuls(*range(16, 26)))
    running.append(subprocess.Popen([packages[2]], env={**os.environ, **shared.environment}, stdout=subprocess.DEVNULL))
    assert rank.outcome()["state"] == "INSTALLED"
    assert [process.wait() for process in running] == [0, 0, 0]
    eventually(lambda: len(shared.ours()) == 10, "ours are back, whatever an installer made of the index")
    subprocess.run([shared.ai_core / packages[1].stem / "uninstall.sh"], check=True, capture_output=True)
    eventually(lambda: len(shared.ours()) == 10, "an uninstall makes the index again from packages alone")
    assert not (shared.ai_core / packages[1].stem).exists()
    fresh = shared.rank(matmuls(*range(16, 26))).outcome()
    assert (fresh["state"], fresh["reason"], fresh["missing"]) == ("INSTALLED", "hit", 0)
    assert shared.compiles() == 1


@pytest.mark.parametrize("how", ["total uninstall", "rm -rf", "index alone", "one object", "own directory"])
def test_fc52_damage_by_others_is_mended_without_compiling_and_told_to_the_processes_that_it_hurt(
    make_shared: Callable[..., SharedNode], how: str
) -> None:
    shared = make_shared()
    neighbour = shared.install(shared.package(160))
    hurt = shared.rank(matmuls(16, 32))
    assert hurt.outcome()["state"] == "INSTALLED"
    if how == "total uninstall":
        subprocess.run([shared.ai_core / "uninstall.sh"], check=True, capture_output=True)
    elif how == "rm -rf":
        shared.remove(shared.tree)
    elif how == "index alone":
        shared.index.unlink()
    elif how == "one object":
        next(shared.ai_core.glob("npgxd_*/*/*/*.o")).write_bytes(b"overwritten")
    else:
        shared.remove(shared.ai_core / shared.ours()[0])
    eventually(lambda: shared.status()["op_library"]["damage"]["count"] == 1, "the damage is noticed")
    eventually(lambda: len(shared.ours()) == 2 and len(shared.directories()) == 2, "all is back")
    shared.read()
    told = eventually(lambda: shared.sessions()[hurt.process.pid], "the session is shown")
    if how != "index alone":  # it had loaded both by then, and their files are there
        assert (told["state"], told["reason"]) == ("DEGRADED", "op_library_damaged")
        assert "restart" in told["detail"]
    fresh = shared.rank(matmuls(16, 32)).outcome()
    assert (fresh["state"], fresh["reason"], fresh["missing"]) == ("INSTALLED", "hit", 0)
    assert shared.compiles() == 1
    assert neighbour.exists() == (how not in {"total uninstall", "rm -rf"})


def test_fc52_a_warm_store_and_an_empty_root_install_all_and_compile_nothing_and_a_replaced_cann_gets_nothing_old(
    make_shared: Callable[..., SharedNode],
) -> None:
    shared = make_shared()
    shared.rank(matmuls(16, 32)).outcome()
    shared.node.kill()
    shutil.rmtree(shared.tree)
    shared.node.start()
    eventually(lambda: len(shared.ours()) == 2, "what living processes need is installed by itself")
    assert shared.rank(matmuls(16, 32)).outcome()["reason"] == "hit"
    assert shared.compiles() == 1
    source = next(shared.node.cann.opp.glob("built-in/op_impl/ai_core/tbe/impl/mat_mul_v2.py"), None) or next(
        shared.node.cann.opp.glob("**/mat_mul_v2.py")
    )
    source.write_text(source.read_text() + "# another\n")
    eventually(lambda: not shared.ours(), "stale kernels are offered to nobody")
    # A start is known to 10 ms: a process that started in the very moment of their leaving is told to restart, the next one never.
    first, second = (shared.rank(matmuls(32)).outcome() for _ in range(2))
    assert (first["state"], first["reason"]) in {("INSTALLED", "compiled"), ("DEGRADED", "restart_needed")}, first
    assert (second["state"], second["reason"]) == ("INSTALLED", "hit"), second
    assert shared.compiles() == 2
    assert len(shared.ours()) == 1
    assert len(shared.directories()) == 3, "old ones stay for those that loaded them"


def test_a_process_that_may_have_loaded_an_older_kernel_is_told_to_restart(make_shared: Callable[..., SharedNode]) -> None:
    shared = make_shared()
    shared.rank(matmuls(16)).outcome()
    options = {"rounds": [matmuls(48), matmuls(16), matmuls(16)], "pause": str(shared.node.directory / "go")}
    early = shared.node.rank([], options=options)  # without CANN's environment: its toolchain is not compared
    eventually(lambda: len(shared.ours()) == 2, "it has done its first round")
    source = next(shared.node.cann.opp.glob("**/mat_mul_v2.py"))
    source.write_text(source.read_text() + "# another\n")
    eventually(lambda: not shared.ours(), "stale kernels are offered to nobody")
    shared.rank(matmuls(16)).outcome()  # it may have started in the very moment of their leaving; the next one has not
    assert shared.rank(matmuls(16)).outcome()["state"] == "INSTALLED"
    (shared.node.directory / "go").touch()
    told = [(one["state"], one["reason"]) for one in early.outcome()["rounds"][1:]]
    assert told == [("DEGRADED", "restart_needed")] * 2, "each time"


def test_fc41_fc42_what_only_the_dead_used_leaves_and_a_neighbours_kernels_stay_readable_throughout(
    make_shared: Callable[..., SharedNode],
) -> None:
    shared = make_shared(leave_after_s=0.5)
    foreign = shared.install(shared.package(160))
    ended = [shared.rank(matmuls(16, 32)), shared.rank(matmuls(16, 48))]
    stays = shared.rank(matmuls(16, 64))
    for rank in (*ended, stays):
        assert rank.outcome()["state"] == "INSTALLED"
    ended[0].process.kill()
    ended[1].process.send_signal(signal.SIGTERM)
    for rank in ended:
        rank.process.wait()
    eventually(lambda: shared.read() and len(shared.ours()) == 2, "their entries leave")
    assert len(shared.directories()) == 4, "the survivor may have loaded them"
    stays.process.kill()
    eventually(lambda: shared.read() and not shared.ours() and not shared.directories(), "all leave")
    assert foreign.exists()
    assert len(shared.read().selected) == 1
    again = shared.rank(matmuls(16, 32, 48, 64)).outcome()
    assert (again["state"], again["reason"], again["missing"]) == ("INSTALLED", "hit", 0)
    assert len(shared.node.compiled()) == len(set(shared.node.compiled()))


def test_fc55_a_root_that_may_not_be_written_is_told_before_anything_is_compiled(make_shared: Callable[..., SharedNode]) -> None:
    shared = make_shared(start=False)
    shared.tree.write_text("in the way")
    shared.node.start()
    outcome = shared.rank(matmuls(16)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "op_library")
    assert "not a directory" in outcome["detail"]
    assert not shared.node.cann.runs()
    shared.tree.unlink()
    assert shared.rank(matmuls(16)).outcome()["state"] == "INSTALLED"


def test_a_rank_whose_root_is_another_one_is_told_so(make_shared: Callable[..., SharedNode], tmp_path: Path) -> None:
    shared = make_shared()
    copy = tmp_path / "another"
    shutil.copytree(shared.node.cann.home, copy, symlinks=True)
    elsewhere = {**shared.environment, "ASCEND_HOME_PATH": str(copy), "ASCEND_OPP_PATH": str(copy / "opp")}
    outcome = shared.node.rank(matmuls(16), **elsewhere).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "store_not_visible"), outcome
    assert "op library" in outcome["detail"]


def test_an_index_that_cannot_be_read_is_left_alone_and_told(make_shared: Callable[..., SharedNode]) -> None:
    shared = make_shared()
    shared.install(shared.package(160))
    whole = shared.index.read_bytes()
    shared.index.write_bytes(whole[: len(whole) // 2])
    outcome = shared.rank(matmuls(16)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "op_library")
    assert shared.index.read_bytes() == whole[: len(whole) // 2]
    shared.index.write_bytes(whole)
    outcome = shared.rank(matmuls(16)).outcome()
    assert (outcome["state"], outcome["missing"]) == ("INSTALLED", 0)
    assert shared.compiles() == 1


@pytest.mark.parametrize("kind", ["installer_fails", "installer_does_nothing"])
def test_a_package_that_does_not_install_is_compiled_again_and_nothing_of_it_is_in_the_root(
    make_shared: Callable[..., SharedNode], kind: str
) -> None:
    shared = make_shared()
    shared.node.cann.order("MatMulV2", kind, times=1)
    outcome = shared.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
    assert sorted(path.name for path in shared.ai_core.iterdir() if path.is_dir()) == [*["config"], *shared.ours()]


def test_kill_9_of_the_daemon_while_it_installs_tears_nothing_and_the_next_one_completes(
    make_shared: Callable[..., SharedNode],
) -> None:
    shared = make_shared()
    foreign = shared.install(shared.package(160))
    sizes = range(16, 16 + 60)
    for _ in range(4):
        rank = shared.rank(matmuls(*sizes))
        eventually(lambda: list(shared.ai_core.glob(".npgxd-*")) or len(shared.ours()) == len(sizes), "it installs")
        shared.node.kill()
        shared.read()
        shared.node.start()
        outcome = rank.outcome()
        assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
        shared.read()
        assert not list(shared.tree.rglob(".npgxd-*"))
        assert len(shared.node.compiled()) == len(sizes) + 1
        rank.end()
        shared.node.kill()
        shutil.rmtree(shared.ai_core / shared.ours()[0])
        for name in shared.directories():
            shutil.rmtree(shared.ai_core / name)
        shared.index.write_bytes((foreign / "config/ascend910b/binary_info_config.json").read_bytes())
        shared.node.start()


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def test_fc55_not_writable_is_told_with_a_remedy_before_anything_is_compiled(
    make_shared: Callable[..., SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = make_shared(start=False)
    shared.install(shared.package(160))
    tried = subprocess.run(["unshare", "-m", "sh", "-c", READ_ONLY, shared.tree, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mounts of one's own here: {tried.stderr.decode()}")
    start = subprocess.Popen

    def confined(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return start(["unshare", "-m", "sh", "-c", READ_ONLY, str(shared.tree), *command], **options)

    monkeypatch.setattr(subprocess, "Popen", confined)
    shared.node.start()
    monkeypatch.undo()
    before = shared.index.read_bytes()
    outcome = shared.rank(matmuls(16)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "not_writable"), outcome
    assert "read-only" in outcome["detail"]
    assert "ReadWritePaths" in outcome["hint"]
    assert shared.compiles() == 0
    assert "read-only" in shared.status()["op_library"]["problem"]
    assert shared.index.read_bytes() == before
