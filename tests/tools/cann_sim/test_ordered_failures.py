from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tools.cann_sim import KINDS, Reader
from tools.cann_sim.records import elementwise, matmul

RECORDS = [matmul(4, 8, 16), elementwise("Add", (4, 8)), elementwise("Exp", (4, 8))]


def gone(pids: list[int]) -> bool:
    """Whether none of them runs, within a bounded time."""

    def running(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    for _ in range(1000):
        if not any(running(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def ops_in(bench, compiled) -> set[str]:
    names = bench.run(compiled.package, "--list").stdout.split()
    return {name.split("/")[2] for name in names if name.endswith(".o")}


def test_a_failing_op_is_left_out_with_its_reason_in_the_log(bench):
    bench.cann.order("Add", "fail")
    compiled = bench.compile(RECORDS)
    assert compiled.status == 0
    assert ops_in(bench, compiled) == {"MatMulV2", "Exp"}
    (log,) = compiled.logs("error")
    assert "op Add: tiling failed" in log.read_text()


def test_an_op_can_be_left_out_although_its_log_says_success(bench):
    bench.cann.order("Add", "leave_out")
    compiled = bench.compile(RECORDS)
    assert (compiled.status, len(compiled.logs("succ")), compiled.logs("error")) == (0, 3, [])
    assert ops_in(bench, compiled) == {"MatMulV2", "Exp"}


def test_a_hang_hangs_with_children_alive_and_ends_with_its_group(bench, end_group, group_of):
    bench.cann.order("Add", "hang")
    process, group = bench.start_hanging(RECORDS, "-f", count=1)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.terminate()
    assert process.wait(timeout=10) == -signal.SIGTERM
    orphans = group_of(process.pid)
    assert len(orphans) >= 2, "the opc process and its own child outlive op_compiler, as the real ones do"
    end_group(process)
    assert gone(group)


def test_a_hard_hang_ends_by_sigkill_only(bench, end_group):
    bench.cann.order("Add", "hang_hard")
    process, group = bench.start_hanging([elementwise("Add", (4, 8))], "-f", count=1)
    children = [pid for pid in group if pid != process.pid]
    assert len(children) == 2
    assert all(int(_status(pid, "SigIgn"), 16) >> (signal.SIGTERM - 1) & 1 for pid in children)
    end_group(process)
    assert gone(group)


def _status(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


@pytest.mark.parametrize(("kind", "number"), [("crash", signal.SIGSEGV), ("oom_kill", signal.SIGKILL)])
def test_the_compiler_itself_dies_by_a_signal(bench, kind: str, number: int):
    bench.cann.order("Add", kind)
    compiled = bench.compile(RECORDS, "-f", "-j", "1")
    assert compiled.status == -number
    assert compiled.packages == []
    assert list(compiled.work.iterdir()), "a killed compiler leaves its scratch behind"
    (run,) = bench.cann.runs()
    assert run.status is None


def test_a_killed_opc_process_costs_its_op_only(bench):
    bench.cann.order("Add", "opc_killed")
    compiled = bench.compile(RECORDS)
    assert compiled.status == 0
    assert ops_in(bench, compiled) == {"MatMulV2", "Exp"}
    assert "killed by signal 9" in compiled.logs("error")[0].read_text()


def test_exit_nonzero_comes_without_a_package(bench):
    bench.cann.order("*", "exit_nonzero")
    compiled = bench.compile(RECORDS)
    assert (compiled.status, compiled.packages) == (1, [])
    assert "internal error" in compiled.stderr


def test_exit_nonzero_can_come_with_a_package(bench):
    bench.cann.order("*", "exit_nonzero_with_package")
    compiled = bench.compile(RECORDS)
    assert compiled.status == 1
    assert ops_in(bench, compiled) == {"MatMulV2", "Add", "Exp"}


def test_no_space_leaves_half_a_package(bench):
    bench.cann.order("*", "no_space")
    compiled = bench.compile(RECORDS)
    assert compiled.status == 1
    assert "No space left on device" in compiled.stderr
    assert "generate run package" not in compiled.stdout
    assert bench.run("sh", compiled.package, "--check").returncode == 2


@pytest.mark.parametrize("kind", ["corrupt_package", "truncated_package"])
def test_a_damaged_package_fails_its_check_and_installs_nothing(bench, kind: str, tmp_path: Path):
    bench.cann.order("*", kind)
    compiled = bench.compile(RECORDS)
    assert compiled.status == 0
    for arguments in (["--check"], ["-q", f"--install-path={tmp_path / 'root'}"]):
        done = bench.run(compiled.package, *arguments)
        assert done.returncode == 2
        assert "Error in SHA256 checksums" in done.stderr
    assert not (tmp_path / "root").exists()


def test_a_failing_installer_leaves_half_of_its_files_and_no_index(bench, tmp_path: Path):
    bench.cann.order("*", "installer_fails")
    done = bench.run(bench.compile(RECORDS).package, f"--install-path={tmp_path / 'root'}")
    assert done.returncode == 1
    assert "[ERROR] install" in done.stderr
    left = list((tmp_path / "root").rglob("*.o"))
    assert 0 < len(left) < 3
    assert not list((tmp_path / "root/static_kernel/ai_core/config").rglob("*.json"))


def test_an_installer_can_do_nothing_and_say_that_it_did(bench, tmp_path: Path):
    bench.cann.order("*", "installer_does_nothing")
    done = bench.run(bench.compile(RECORDS).package, f"--install-path={tmp_path / 'root'}")
    assert done.returncode == 0
    assert "installed" in done.stdout
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(("kind", "reason"), [("torn_object", "sha256 is"), ("missing_object", "No such file")])
def test_a_package_can_hold_a_kernel_that_is_not_whole(bench, kind: str, reason: str, tmp_path: Path):
    bench.cann.order("Add", kind)
    compiled = bench.compile(RECORDS)
    assert bench.run(compiled.package, "--check").returncode == 0
    bench.install(compiled.package, tmp_path / "root")
    reader = Reader("Ascend910B3")
    reader.load(tmp_path / "root")
    (torn,) = reader.verify()
    assert "/Add/" in str(torn.path)
    assert reason in torn.reason


def test_an_order_can_be_limited_in_number_over_several_runs(bench):
    bench.cann.order("Add", "fail", times=2)
    compiled = [bench.compile([*RECORDS, elementwise("Add", (2,))]), bench.compile(RECORDS)]
    assert [len(ops_in(bench, one) & {"Add"}) for one in compiled] == [0, 1]


def test_uses_of_a_limited_order_are_counted_one_at_a_time(bench, waits_for_lock):
    order = bench.cann.order("Add", "fail", times=1)
    taken = bench.cann.home / f"sim-order-{order.id}.taken"
    with taken.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process, out, _ = bench.start(RECORDS, "-f")
        waited = waits_for_lock(taken)
        held.write(b".")
    process.communicate(timeout=60)
    assert waited
    assert list(out.glob("*_compile_log/*_error.log")) == [], "the other use was the last one"


def test_a_limited_order_is_used_up_once_by_concurrent_runs(bench):
    bench.cann.order("*", "exit_nonzero", times=1)
    started = [bench.start(RECORDS, "-f")[0] for _ in range(3)]
    for process in started:
        process.communicate(timeout=60)
    assert sorted(process.returncode for process in started) == [0, 0, 1]


def test_an_order_can_be_for_a_pattern_or_for_some_records_only(bench):
    bench.cann.order("MatMul*", "fail")
    bench.cann.order("Add", "fail", contains='"shape":[2]')
    compiled = bench.compile([*RECORDS, elementwise("Add", (2,))])
    assert [log.name.split("_")[2] for log in compiled.logs("error")] == ["Add", "MatMulV2"]
    assert ops_in(bench, compiled) == {"Add", "Exp"}


def test_orders_can_be_cancelled_and_their_numbers_are_not_used_again(bench):
    first = bench.cann.order("*", "fail", times=1)
    bench.compile(RECORDS[:1])
    bench.cann.cancel_orders()
    assert bench.compile(RECORDS).status == 0
    second = bench.cann.order("*", "fail", times=1)
    assert second.id != first.id
    assert bench.cann.orders() == (second,)
    assert bench.compile(RECORDS[:1]).status == 1


def test_unknown_failures_are_refused_with_what_is_known(bench):
    with pytest.raises(ValueError, match="unknown failure 'explode'; known: fail, leave_out"):
        bench.cann.order("*", "explode")
    assert all(KINDS.values())


def test_children_keep_running_when_the_compiler_is_killed(bench, end_group, group_of):
    bench.cann.order("Exp", "hang")
    process, _ = bench.start_hanging([elementwise("Exp", (4, 8))], "-f", count=1)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(timeout=10) == -signal.SIGKILL
    left = group_of(process.pid)
    end_group(process)
    assert len(left) == 2
    assert gone(left)
