"""The shipped socket units under a real systemd: a rank starts the daemon, waits for it in a restart, and is told when it cannot start."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from conftest_node import PATIENCE_S, eventually, matmuls
from systemd_machine import UNITS, Machine, facts

from tools.cann_sim import Costs

SIZES = (16, 32, 48)
SLOW = Costs(startup_s=0.3, per_op_s=0.4)
SOCKETS = ("npgxd.socket", "npgxd-admin.socket")


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """With the units of the sockets."""
    machine.install_sockets()
    return machine


def listening(machine: Machine) -> None:
    machine.boot()
    machine.systemctl("start", *SOCKETS)


def compiling(machine: Machine) -> None:
    """Wait until the daemon that a rank has woken is ready (it asks op_compiler for its version first), and compiles."""
    eventually(lambda: machine.show()["ActiveState"] == "active", "the daemon is ready")
    eventually(machine.compilers, "op_compiler is in the unit's cgroup")


def inode(machine: Machine) -> str:
    return machine.run("stat", "-c", "%i", "/run/npgxd/npgxd.sock", "/run/npgxd/admin.sock", "/run/npgxd")


def test_the_shipped_socket_units_pass_systemd_analyze_and_the_service_is_hardened_to_below_two(machine: Machine) -> None:
    machine.boot()
    units = [f"/etc/systemd/system/{name}" for name in (*SOCKETS, "npgxd.service")]
    assert machine.run("systemd-analyze", "verify", *units) == ""
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=19", "--no-pager", str(UNITS / "npgxd.service")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert said.returncode == 0, said.stdout[-200:]


def test_a_rank_that_connects_starts_the_daemon_which_takes_the_sockets_as_they_are(machine: Machine) -> None:
    listening(machine)
    assert machine.show()["ActiveState"] == "inactive"
    expected = ["npgxd npgxd 750", "npgxd npgxd 660", "npgxd npgxd 600"]
    places = ("/run/npgxd", "/run/npgxd/npgxd.sock", "/run/npgxd/admin.sock")
    assert facts(machine, *places) == expected
    made = inode(machine)
    outcome = machine.rank(matmuls(*SIZES)).outcome()
    assert (outcome["state"], outcome["compiled"], outcome["torn"]) == ("INSTALLED", 3, 0), machine.journal()
    assert machine.show()["ActiveState"] == "active"
    assert (facts(machine, *places), inode(machine)) == (expected, made)
    stranger = machine.rank(matmuls(*SIZES), user="stranger")
    assert stranger.outcome()["state"] == "DEGRADED"


def test_restart_under_load_keeps_the_sockets_and_every_rank_gets_its_kernels(machine: Machine) -> None:
    machine.cann.set_costs(SLOW)
    listening(machine)
    made = inode(machine)
    first = machine.rank(matmuls(*SIZES))
    compiling(machine)
    restarting = machine.begin("systemctl", "restart", "npgxd")
    second = machine.rank(matmuls(*SIZES, 64))  # connects while no daemon answers, or an old one that drains
    for rank in (first, second):
        outcome = rank.outcome()
        assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0), (
            f"{outcome}\n{rank.error()}\n{machine.journal()}"
        )
    assert restarting.wait(PATIENCE_S) == 0
    assert inode(machine) == made
    assert machine.show()["Result"] == "success"


def test_the_watchdog_ends_a_daemon_that_is_stuck_and_its_rank_gets_its_kernels(machine: Machine) -> None:
    machine.cann.set_costs(SLOW)
    machine.drop_in("watched", "[Service]\nWatchdogSec=1\nTimeoutAbortSec=1\nLimitCORE=0\n")
    listening(machine)
    rank = machine.rank(matmuls(*SIZES))
    compiling(machine)
    main = next(pid for pid, command in machine.processes().items() if "--config" in command and "worker" not in command)
    os.kill(main, signal.SIGSTOP)
    eventually(lambda: machine.show()["NRestarts"] == "1" and machine.show()["ActiveState"] == "active", "it is started again")
    assert "Watchdog timeout" in machine.journal()
    outcome = rank.outcome()
    assert (outcome["missing"], outcome["torn"]) == (0, 0), machine.journal()
    again = machine.rank(matmuls(*SIZES)).outcome()
    assert (again["state"], again["missing"]) == ("INSTALLED", 0)


def test_a_daemon_that_crashes_at_each_start_is_given_up_and_ranks_run_all_the_same_until_it_is_mended(machine: Machine) -> None:
    machine.drop_in("broken", "[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=100ms\n")
    listening(machine)
    machine.systemctl("start", "npgxd", check=False)
    eventually(lambda: machine.show()["ActiveState"] == "failed", "systemd gives up")
    outcome = machine.rank(matmuls(*SIZES)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "daemon_unavailable")
    (machine.etc / "systemd" / "system" / "npgxd.service.d" / "broken.conf").unlink()
    machine.systemctl("daemon-reload")
    machine.systemctl("reset-failed", "npgxd.service", *SOCKETS)
    machine.systemctl("start", *SOCKETS, "npgxd")
    outcome = machine.rank(matmuls(*SIZES)).outcome()
    assert (outcome["state"], outcome["missing"]) == ("INSTALLED", 0), machine.journal()


def test_stop_and_disable_leave_neither_process_nor_socket_that_would_start_it_again(machine: Machine) -> None:
    listening(machine)
    machine.systemctl("enable", "--now", "npgxd")
    assert [machine.show(unit)["UnitFileState"] for unit in ("npgxd.service", *SOCKETS)] == ["enabled"] * 3
    machine.systemctl("disable", "--now", "npgxd.service", *SOCKETS)
    assert [machine.show(unit)["ActiveState"] for unit in ("npgxd.service", *SOCKETS)] == ["inactive"] * 3
    assert machine.processes() == {}
    outcome = machine.rank(matmuls(*SIZES)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "daemon_unavailable")
    assert machine.show()["ActiveState"] == "inactive"
