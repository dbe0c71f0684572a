"""Reload under a real systemd: ``systemctl reload`` applies what can be applied, and the journal has the priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest_node import eventually, matmuls

if TYPE_CHECKING:
    from systemd_machine import Machine


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """With the units of the sockets."""
    machine.install_sockets()
    return machine


def test_systemctl_reload_applies_a_configuration_and_refuses_a_bad_one_and_ranks_go_on(machine: Machine) -> None:
    machine.boot()
    machine.systemctl("start", "npgxd.socket", "npgxd-admin.socket", "npgxd")
    rank = machine.rank(matmuls(16))
    assert rank.outcome()["state"] == "INSTALLED"
    before = machine.show()["MainPID"]
    good = machine.config.read_text()
    machine.config.write_text(good + "\n[store]\nmax_gb = 7.0\n")
    machine.systemctl("reload", "npgxd")
    eventually(lambda: "store.max_gb" in machine.journal(), "it is applied")
    machine.config.write_text(good + "\n[store]\nmax_gb = -1\n")
    machine.systemctl("reload", "npgxd")
    eventually(lambda: "the old one stays" in machine.journal(), "it is refused")
    eventually(lambda: machine.show()["ActiveState"] == "active", "it serves on")
    assert machine.show()["MainPID"] == before
    warnings = machine.run("journalctl", "--no-pager", "-o", "cat", "-p", "warning", "-u", "npgxd")
    assert "the old one stays" in warnings
    assert "READY" not in warnings
    assert machine.rank(matmuls(16)).outcome()["state"] == "INSTALLED"
