"""The shipped unit under a real systemd: started, restarted, stopped and killed, with a rank of another user as the witness."""

from __future__ import annotations

import os
import subprocess
import sys

from conftest_node import PATIENCE_S, eventually, matmuls
from systemd_machine import UNITS, Machine, facts, status_of

from tools.cann_sim import Costs

SIZES = (16, 32, 48, 64)
SLOW = Costs(startup_s=0.3, per_op_s=0.4)
"""About two seconds for SIZES."""


def started(machine: Machine) -> dict[str, str]:
    machine.boot()
    machine.systemctl("start", "npgxd")
    return machine.show()


def compiling(machine: Machine) -> int:
    """Wait until op_compiler runs; its pid on this side."""
    eventually(machine.cann.runs, "op_compiler runs")
    return eventually(machine.compilers, "op_compiler is in the unit's cgroup")[0]


def test_the_shipped_unit_passes_systemd_analyze(machine: Machine) -> None:
    machine.boot()
    said = machine.run("systemd-analyze", "verify", "/etc/systemd/system/npgxd.service")
    assert said == ""
    shipped = subprocess.run(
        ["systemd-analyze", "verify", str(UNITS / "npgxd.service")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (shipped.returncode, shipped.stdout + shipped.stderr) == (0, "")


def test_start_ends_when_the_daemon_is_ready_and_not_before(machine: Machine) -> None:
    machine.boot()
    machine.config.unlink()
    os.mkfifo(machine.config, 0o644)  # the daemon waits for its configuration, as long as the test likes
    starting = machine.begin("systemctl", "start", "npgxd")
    writer: list[int] = []

    def is_read() -> bool:
        try:
            writer.append(os.open(machine.config, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            assert starting.poll() is None, machine.journal()
        return bool(writer)

    eventually(is_read, "the daemon reads its configuration")
    assert machine.show()["ActiveState"] == "activating"
    assert starting.poll() is None, "systemctl start waits"
    assert not machine.run("ls", "/run/npgxd")
    os.write(writer[0], machine.config_text().encode())
    os.close(writer[0])
    assert starting.wait(PATIENCE_S) == 0, machine.journal()
    assert (machine.show()["ActiveState"], machine.show()["SubState"]) == ("active", "running")
    assert facts(machine, "/run/npgxd", "/run/npgxd/npgxd.sock", "/var/lib/npgxd") == [
        "npgxd npgxd 750",
        "npgxd npgxd 660",
        "npgxd npgxd 755",
    ]
    assert 'Status: "0 kernels; simulated CANN 9.1.0 for Ascend910B3"' in machine.systemctl("status", "npgxd")


def test_a_rank_in_the_group_npgxd_gets_its_kernels_and_a_stranger_is_told_why_not(machine: Machine) -> None:
    unit = started(machine)
    outcome = machine.rank(matmuls(*SIZES)).outcome()
    assert (outcome["state"], outcome["compiled"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 4, 0, 0), (
        machine.journal()
    )
    assert outcome["view"].startswith("/var/lib/npgxd/views/")
    eventually(lambda: machine.show()["StatusText"].startswith("4 kernels; "), "the status line is up to date")
    stranger = machine.rank(matmuls(*SIZES), user="stranger")
    assert (stranger.outcome()["state"], stranger.outcome()["reason"]) == ("DEGRADED", "daemon_unavailable")
    assert "permission denied; its users are in the group npgxd" in stranger.error()
    process = status_of(next(iter(machine.processes())))
    assert (process["CapEff"], process["CapBnd"], process["NoNewPrivs"], process["Seccomp"]) == ("0" * 16, "0" * 16, "1", "2")
    assert unit["NRestarts"] == machine.show()["NRestarts"] == "0"


def test_restart_in_the_middle_of_a_compile_and_the_rank_gets_its_kernels(machine: Machine) -> None:
    machine.cann.set_costs(SLOW)
    before = started(machine)
    place = machine.run("stat", "-c", "%i", "/run/npgxd")
    rank = machine.rank(matmuls(*SIZES))
    compiling(machine)
    machine.systemctl("restart", "npgxd")
    outcome = rank.outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0), machine.journal()
    after = machine.show()
    assert (after["ActiveState"], after["Result"]) == ("active", "success")
    assert after["MainPID"] != before["MainPID"]
    assert machine.run("stat", "-c", "%i", "/run/npgxd") == place, "a container that has it mounted still sees the socket"
    assert len(machine.cann.runs()) == 1, "what was compiling was let finish"


def test_stop_lets_a_compile_finish_also_beyond_the_units_timeout_and_leaves_no_process(machine: Machine) -> None:
    machine.cann.set_costs(SLOW)
    machine.drop_in("hasty", "[Service]\nTimeoutStopSec=1\n")
    started(machine)
    machine.rank(matmuls(*SIZES))
    compiling(machine)
    machine.systemctl("stop", "npgxd")
    unit = machine.show()
    assert (unit["ActiveState"], unit["Result"], unit["ExecMainStatus"]) == ("inactive", "success", "0"), machine.journal()
    assert machine.processes() == {}
    machine.systemctl("start", "npgxd")
    assert machine.show()["StatusText"].startswith("4 kernels; ")


def test_stop_ends_a_compiler_that_hangs(machine: Machine) -> None:
    machine.settings["daemon"]["drain_s"] = 0.5
    machine.write_config()
    machine.cann.order("MatMulV2", "hang")
    started(machine)
    machine.rank(matmuls(*SIZES))
    compiling(machine)
    machine.systemctl("stop", "npgxd")
    unit = machine.show()
    assert (unit["ActiveState"], unit["Result"], unit["ExecMainStatus"]) == ("inactive", "success", "0"), machine.journal()
    assert machine.processes() == {}


def test_kill_9_of_the_daemon_it_is_started_again_and_its_compilers_are_gone(machine: Machine) -> None:
    machine.cann.set_costs(SLOW)
    before = started(machine)
    rank = machine.rank(matmuls(*SIZES))
    compiling(machine)
    old = set(machine.processes())
    machine.systemctl("kill", "--signal=KILL", "--kill-whom=main", "npgxd")
    eventually(lambda: machine.show()["NRestarts"] == "1" and machine.show()["ActiveState"] == "active", "it is started again")
    assert machine.show()["MainPID"] != before["MainPID"]
    assert not old & set(machine.processes()), "nothing of its earlier life runs"
    outcome = rank.outcome()
    assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0), machine.journal()


def test_a_wrong_configuration_fails_once_with_78(machine: Machine) -> None:
    machine.settings["nonsense"] = {}
    machine.write_config()
    machine.boot()
    machine.systemctl("start", "npgxd", check=False)
    unit = machine.show()
    assert (unit["ActiveState"], unit["SubState"], unit["NRestarts"]) == ("failed", "failed", "0")
    assert unit["ExecMainStatus"] == "78", machine.journal()
    assert "unknown section [nonsense]" in machine.journal()


def test_wrong_usage_fails_once_with_64(machine: Machine) -> None:
    machine.drop_in("wrong", "[Service]\nExecStart=\nExecStart=/usr/bin/env npgxd --nonsense\n")
    machine.boot()
    machine.systemctl("start", "npgxd", check=False)
    unit = machine.show()
    assert (unit["ActiveState"], unit["SubState"], unit["NRestarts"]) == ("failed", "failed", "0")
    assert unit["ExecMainStatus"] == "64", machine.journal()


def test_a_second_daemon_on_the_same_state_fails_once_with_75(machine: Machine) -> None:
    started(machine)
    machine.systemctl("stop", "npgxd")
    machine.run("install", "-d", "-o", "npgxd", "/srv/other")
    machine.settings["daemon"] |= {"state_dir": "/var/lib/npgxd", "runtime_dir": "/srv/other"}
    (machine.srv / "other.toml").write_text(machine.config_text())
    owner = machine.begin(sys.executable, "-m", "npgxd.daemon.main", "--config", "/srv/other.toml", user="npgxd")

    def serves() -> bool:
        assert owner.poll() is None, (machine.directory / "begun").read_text()
        return (machine.srv / "other" / "npgxd.sock").exists()

    eventually(serves, "a daemon that systemd did not start owns the state")
    machine.systemctl("start", "npgxd", check=False)
    unit = machine.show()
    assert (unit["ActiveState"], unit["SubState"], unit["NRestarts"]) == ("failed", "failed", "0")
    assert unit["ExecMainStatus"] == "75", machine.journal()
