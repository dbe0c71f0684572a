"""The main journey on a whole node: records in, kernels compiled once, a leased view out that selects exactly what was asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest_node import ALL_COME, BRISK, Node, eventually, matmuls, named

from tools.cann_sim import Costs, records

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_round_is_compiled_once_and_then_hits(node: Node) -> None:
    first = node.rank(matmuls(16, 32, 48)).outcome()
    assert (first["state"], first["reason"]) == ("INSTALLED", "compiled")
    assert (first["unique"], first["hits"], first["compiled"]) == (3, 0, 3)
    second = node.rank(matmuls(16, 32, 48)).outcome()
    assert (second["state"], second["reason"]) == ("INSTALLED", "hit")
    assert (second["hits"], second["compiled"]) == (3, 0)
    for outcome in (first, second):
        assert (outcome["missing"], outcome["extra"], outcome["torn"]) == (0, 0, 0)
    assert len(node.compiled()) == 3
    assert second["view"] == first["view"]
    assert second["packages"] == first["packages"]


def test_fc16_of_125_records_with_120_known_exactly_5_are_compiled_and_order_does_not_matter(node: Node) -> None:
    sizes = list(range(16, 16 + 125))
    node.rank(matmuls(*sizes[:120])).outcome()
    assert len(node.compiled()) == 120
    outcome = node.rank(matmuls(*sizes)).outcome()
    assert (outcome["hits"], outcome["compiled"]) == (120, 5)
    assert len(node.compiled()) == 125
    again = node.rank(matmuls(*reversed(sizes)), PORT="1", HOSTNAME="elsewhere").outcome()
    assert (again["hits"], again["compiled"], again["extra"], again["missing"]) == (125, 0, 0, 0)
    assert len(node.compiled()) == 125


def test_a_later_round_of_a_process_brings_only_what_it_does_not_have_yet(node: Node) -> None:
    outcome = node.rank([], options={"rounds": [matmuls(16, 32), matmuls(32, 48), matmuls(16)]}).outcome()
    first, second, third = outcome["rounds"]
    assert [r["state"] for r in outcome["rounds"]] == ["INSTALLED"] * 3
    index = Path(second["view"], "static_kernel/ai_core/config/ascend910b/binary_info_config.json")
    assert [len(ops["staticList"]) for ops in json.loads(index.read_text()).values()] == [1]
    assert second["view"] != first["view"]
    assert third["view"] is None
    assert (outcome["missing"], outcome["extra"], outcome["torn"]) == (0, 0, 0)


def test_ranks_of_one_job_are_compiled_together_and_each_learns_of_all_records(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["group"] = ALL_COME
    node.start()
    lists = [named(records.matmul(16, 32, 64), records.matmul(16 * (rank + 2), 32, 64)) for rank in range(4)]
    ranks = node.group(lists, LOCAL_WORLD_SIZE="4")
    outcomes = [rank.outcome() for rank in ranks]
    assert {(o["state"], o["reason"]) for o in outcomes} == {("INSTALLED", "compiled")}
    assert len(node.cann.runs()) == 1
    assert len(node.compiled()) == len(set(node.compiled())) == 5
    for outcome in outcomes:
        assert len(outcome["gathered"]) == 5
        assert len(outcome["packages"]) == 1
        assert (outcome["missing"], outcome["extra"], outcome["torn"]) == (0, 0, 0)


@pytest.mark.parametrize("sizes", [[None] * 4, ["4", None, "4", "4"], ["4", "8", "4", "2"], ["x", "-1", "", "4"]])
def test_fc31_without_a_usable_local_world_size_every_key_is_still_compiled_once(node: Node, sizes: list[str | None]) -> None:
    ranks = []
    for rank, size in enumerate(sizes):
        more = {} if size is None else {"LOCAL_WORLD_SIZE": size}
        ranks.append(node.rank(matmuls(16, 32, 48), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="4", **more))
    outcomes = [rank.outcome() for rank in ranks]
    assert {o["state"] for o in outcomes} == {"INSTALLED"}
    assert len(node.compiled()) == len(set(node.compiled())) == 3
    document = node.status()
    assert document is not None
    assert [rank["state"] for job in document["jobs"] for rank in job["ranks"]] == ["INSTALLED"] * 4
    if None in sizes or len(set(sizes)) > 1:
        assert any("LOCAL_WORLD_SIZE" in job["note"] for job in document["jobs"])


def test_fc33_independent_processes_that_start_together_share_every_compile(make_node: Callable[..., Node]) -> None:
    node = make_node(startup_s=0.5)
    node.start()
    ranks = [node.rank(matmuls(*range(16, 26)), RANK="0", WORLD_SIZE="1", MASTER_PORT=str(port)) for port in range(8)]
    outcomes = [rank.outcome() for rank in ranks]
    assert {o["state"] for o in outcomes} == {"INSTALLED"}
    assert {(o["missing"], o["extra"], o["torn"]) for o in outcomes} == {(0, 0, 0)}
    assert len(node.compiled()) == len(set(node.compiled())) == 10


def test_a_bad_record_is_named_and_the_rest_goes_on(node: Node) -> None:
    items = [*matmuls(16, 32), ("broken.json", '{"op_type": '), ("evil.json", '{"op_type": "../../etc"}')]
    outcome = node.rank(items).outcome()
    assert outcome["state"] == "DEGRADED"
    assert outcome["reason"] == "bad_records"
    assert [name for name, _reason in outcome["rejected"]] == ["broken.json", "evil.json"]
    assert outcome["compiled"] == 2
    assert len(node.compiled()) == 2


def test_an_op_that_fails_is_named_the_others_are_installed_and_the_failure_is_remembered(node: Node) -> None:
    node.cann.order("Add", "fail")
    items = [*matmuls(16, 32), *named(records.elementwise("Add", [16, 8], "float16"))]
    outcome = node.rank(items).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "compile_failed")
    assert [(op, how) for op, how, _why in outcome["failures"]] == [("Add", "failed")]
    assert outcome["failures"][0][2]
    assert outcome["compiled"] == 2
    assert outcome["extra"] == 0
    tries = len(node.compiled())
    again = node.rank(items).outcome()
    assert (again["state"], again["hits"]) == ("DEGRADED", 2)
    assert again["failures"][0][2] == outcome["failures"][0][2]
    assert len(node.compiled()) == tries, "a remembered failure is not tried again"
    document = node.status()
    assert document is not None
    assert [failure["op_type"] for failure in document["failures"]] == ["Add"]


def test_an_op_that_the_compiler_leaves_out_is_told_as_left_out(node: Node) -> None:
    node.cann.order("Add", "leave_out")
    outcome = node.rank([*matmuls(16), *named(records.elementwise("Add", [16, 8], "float16"))]).outcome()
    assert outcome["state"] == "DEGRADED"
    assert [(op, how) for op, how, _why in outcome["failures"]] == [("Add", "left_out")]
    assert outcome["missing"] == 1


@pytest.mark.parametrize("kind", ["crash", "oom_kill", "exit_nonzero", "no_space", "corrupt_package", "installer_does_nothing"])
def test_a_failure_that_passes_is_tried_again_within_the_round(node: Node, kind: str) -> None:
    node.cann.order("MatMulV2", kind, times=1)
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("INSTALLED", "compiled"), outcome["failures"]
    assert (outcome["missing"], outcome["torn"]) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "runs", "how"), [("exit_nonzero", 2, "failed"), ("crash", 2, "crashed"), ("oom_kill", 4, "out_of_memory")]
)
def test_fc12_a_failure_that_never_passes_ends_in_a_bounded_number_of_tries(
    make_node: Callable[..., Node], kind: str, runs: int, how: str
) -> None:
    node = make_node()
    node.settings["compile"] |= {"remember_s": 0}
    node.start()
    node.cann.order("MatMulV2", kind)
    outcome = node.rank(matmuls(16, 32)).outcome() if kind == "oom_kill" else node.rank(matmuls(16)).outcome()
    assert outcome["state"] == "DEGRADED"
    assert {told for _op, told, _why in outcome["failures"]} == {how}
    assert len(node.cann.runs()) >= runs
    tries = len(node.cann.runs())
    node.cann.cancel_orders()
    again = node.rank(matmuls(16)).outcome()
    passed = kind == "oom_kill"
    assert (again["state"], len(node.cann.runs()) - tries) == (("INSTALLED", 1) if passed else ("DEGRADED", 0))


def test_a_crash_is_narrowed_down_to_its_kernel_and_all_others_are_installed(make_node: Callable[..., Node]) -> None:
    node = make_node(per_op_s=0.02)
    node.start()
    sizes = [16 * (at + 1) for at in range(16)]
    node.cann.order("MatMulV2", "crash", contains='"shape":[112,32]')
    outcome = node.rank(matmuls(*sizes)).outcome()
    assert (outcome["state"], outcome["compiled"]) == ("DEGRADED", 15)
    assert [(op, how) for op, how, _why in outcome["failures"]] == [("MatMulV2", "crashed")]
    assert len(node.cann.runs()) <= 8, "halves of those that were at work, and the rest, not each by itself"


def test_a_compile_that_hangs_ends_at_its_deadline_and_nothing_of_it_is_left(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["compile"] |= {"deadline_s": 1, "attempts": 1}
    node.start()
    node.cann.order("MatMulV2", "hang")
    outcome = node.rank(matmuls(16)).outcome()
    assert outcome["state"] == "DEGRADED"
    eventually(lambda: not node.children(), "no compiler is left")
    assert not node.compilers()


def test_recompile_compiles_what_is_there_once_for_the_group(node: Node) -> None:
    node.rank(matmuls(16, 32)).outcome()
    ranks = [
        node.rank(
            matmuls(16, 32), options={"recompile": True}, RANK=str(r), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_PORT="9"
        )
        for r in range(2)
    ]
    outcomes = [rank.outcome() for rank in ranks]
    assert {(o["state"], o["reason"]) for o in outcomes} == {("INSTALLED", "compiled")}
    assert len(node.compiled()) == 4


def test_two_records_that_the_runtime_cannot_tell_apart_are_told_as_shadowed(node: Node) -> None:
    tiles = [records.matmul(16, 32, 64), records.matmul(16, 32, 64)]
    for item, value in zip(tiles, (1, 2), strict=True):
        item["inputs"][0] |= {"value_depend": True, "const_data": [value]}
    outcome = node.rank(named(*tiles)).outcome()
    assert outcome["unique"] == outcome["compiled"] == 2
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "shadowed")
    assert outcome["shadowed"] == [["MatMulV2", "shadowed"]]


def test_a_record_that_the_process_has_loaded_another_kernel_for_is_shadowed_and_no_restart_is_promised(node: Node) -> None:
    tiles = [records.matmul(16, 32, 64), records.matmul(16, 32, 64)]
    for item, value in zip(tiles, (1, 2), strict=True):
        item["inputs"][0] |= {"value_depend": True, "const_data": [value]}
    outcome = node.rank([], options={"rounds": [named(tiles[0]), named(tiles[1])]}).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "shadowed")
    assert outcome["view"] is None


def test_fc01_one_changed_byte_in_an_implementation_compiles_exactly_its_kernels_anew(node: Node) -> None:
    items = [*matmuls(16), *named(records.elementwise("Add", [16, 8], "float16"))]
    node.rank(items).outcome()
    unrelated = node.cann.opp / "built-in/op_impl/ai_core/tbe/README"
    unrelated.write_text("nothing that an operator uses\n")
    assert node.rank(items).outcome()["compiled"] == 0
    source = next((node.cann.opp / "built-in/op_impl/ai_core/tbe/impl").rglob("add.cpp"))
    source.write_bytes(source.read_bytes() + b"\n")
    changed = node.rank(items).outcome()
    assert (changed["state"], changed["hits"], changed["compiled"]) == ("INSTALLED", 1, 1)
    assert (changed["missing"], changed["extra"]) == (0, 0)


def test_fc14_fc15_scratch_and_place_do_not_matter_the_state_can_move(node: Node) -> None:
    node.rank(matmuls(16, 32)).outcome()
    assert node.stop() == 0
    shutil.rmtree(node.state / "jobs")
    shutil.rmtree(node.state / "staging")
    moved = node.directory / "elsewhere"
    node.state.rename(moved)
    (node.directory / "link").symlink_to(moved)
    node.settings["daemon"]["state_dir"] = str(node.directory / "link")
    (moved / "catalog.sqlite").unlink()
    node.start()
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["reason"], outcome["missing"]) == ("INSTALLED", "hit", 0)
    assert len(node.compiled()) == 2


def test_a_damaged_kernel_is_set_aside_with_its_reason_and_compiled_again(node: Node) -> None:
    view = Path(node.rank(matmuls(16, 32)).outcome()["view"])
    assert node.stop() == 0
    victim = min((node.state / "kernels").rglob("*.o"))
    damaged = bytearray(victim.read_bytes())
    damaged[10] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(damaged)
    shutil.rmtree(view, ignore_errors=True)
    node.start()
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["hits"], outcome["compiled"], outcome["torn"]) == ("INSTALLED", 1, 1, 0)
    reasons = list((node.state / "quarantine").glob("*.reason"))
    assert len(reasons) == 1
    assert "other bytes" in reasons[0].read_text()


def test_what_is_served_can_be_read_by_every_user_and_the_rest_by_none(make_node: Callable[..., Node]) -> None:
    node = make_node()
    before = os.umask(0o077)
    try:
        node.start()
    finally:
        os.umask(before)
    view = Path(node.rank(matmuls(16)).outcome()["view"])
    leases = node.state / "leases"
    for path in [node.state, view.parent, view, *view.rglob("*"), *leases.iterdir()]:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
    assert leases.stat().st_mode & 0o777 == 0o711, "who was told a lease's name can open it, and nobody else"
    for private in ("rounds", "jobs", "staging", "quarantine"):
        assert (node.state / private).stat().st_mode & 0o077 == 0
    assert (node.state / "catalog.sqlite").stat().st_mode & 0o077 == 0
    assert node.socket.stat().st_mode & 0o777 == 0o660


def test_fc41_the_view_of_ended_processes_goes_and_the_kernels_stay(node: Node) -> None:
    node.settings["daemon"]["drain_s"] = 5
    first, second = node.rank(matmuls(16)), node.rank(matmuls(32))
    views = [Path(rank.outcome()["view"]) for rank in (first, second)]
    first.process.kill()
    first.process.wait()
    eventually(lambda: (node.status() or {})["kernels"]["leases"] == 1, "the lease of a killed process ends")
    assert views[1].is_dir()
    assert second.process.poll() is None
    assert node.rank(matmuls(16)).outcome()["reason"] == "hit"


def test_the_daemon_and_its_worker_never_import_torch() -> None:
    program = (
        "import sys, npgxd.daemon.main, npgxd.daemon.service, npgxd.compile.worker, npgxd.cli.main;"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'torch_npu', 'npugraph_ex', 'numpy')])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


def test_a_toolchain_that_changes_while_it_compiles_gives_kernels_of_the_new_one(make_node: Callable[..., Node]) -> None:
    node = make_node(startup_s=1.0)
    node.start()
    rank = node.rank([*matmuls(16, 32), *named(records.elementwise("Add", [16, 8], "float16"))])
    eventually(node.cann.runs, "op_compiler runs")
    source = next((node.cann.opp / "built-in/op_impl/ai_core/tbe/impl").rglob("mat_mul_v2.cpp"))
    source.write_bytes(source.read_bytes() + b"\n")
    outcome = rank.outcome()
    assert (outcome["state"], outcome["compiled"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 3, 0, 0)
    assert [len(run.ops) for run in node.cann.runs()] == [3, 2], "only what moved is compiled anew"
    assert node.rank(matmuls(16, 32)).outcome()["reason"] == "hit"


def test_a_kernel_that_vanishes_under_a_running_daemon_is_compiled_again(node: Node) -> None:
    first = node.rank(matmuls(16, 32))
    first.outcome()
    first.end()
    eventually(lambda: (node.status() or {})["kernels"]["leases"] == 0, "the lease ends")
    min((node.state / "kernels").rglob("*.o")).unlink()
    for view in (node.state / "views").iterdir():
        shutil.rmtree(view)
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0)
    assert (outcome["hits"], outcome["compiled"]) == (1, 1)


def test_without_a_toolchain_ranks_are_told_and_accepted_rounds_wait_for_one(make_node: Callable[..., Node]) -> None:
    node = make_node(startup_s=3.0)
    node.program = BRISK
    node.start()
    node.rank(matmuls(16))
    eventually(node.cann.runs, "op_compiler runs")
    node.kill()
    node.cann.set_costs(Costs())
    hidden = node.cann.home.rename(node.cann.home.with_name("hidden"))
    node.start()
    outcome = node.rank(matmuls(32)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "no_toolchain")
    assert list((node.state / "rounds").iterdir())
    hidden.rename(node.cann.home)
    eventually(lambda: (node.status() or {})["kernels"]["count"] == 1, "the accepted round is taken up")
