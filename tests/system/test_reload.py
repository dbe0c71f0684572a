"""SIGHUP: a real daemon reads its configuration again, applies what it can, names the rest, and refuses what is wrong."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from conftest_node import eventually, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest_node import Node


def reload(node: Node) -> None:
    assert node.daemon is not None
    node.daemon.send_signal(signal.SIGHUP)


def told(node: Node) -> dict[str, Any]:
    status = node.status()
    assert status is not None
    return status["daemon"]["reload"]


def test_a_reload_applies_what_it_can_and_names_what_needs_a_restart(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["limits"] = {"rounds": 1}
    node.start()
    before = node.status()
    assert before is not None
    assert before["workers"]["processes"] == 2, "what may be started is known before anything is"
    assert node.rank(matmuls(16)).outcome()["state"] == "INSTALLED"
    node.settings["compile"] |= {"workers": 1, "jobs": 1}
    node.settings["daemon"] |= {"log_level": "warning"}
    node.settings["store"] = {"max_gb": 7.0}
    node.settings["toolchain"] |= {"vector_cores": 3}
    node.write_config()
    reload(node)
    eventually(lambda: told(node)["count"] == 1, "it is reloaded")
    assert set(told(node)["applied"]) == {"compile.workers", "compile.jobs", "daemon.log_level", "store.max_gb"}
    assert told(node)["restart_needed"] == ["toolchain.vector_cores"]
    log = node.log.read_text()
    assert "these need a restart, until which the old values count: toolchain.vector_cores" in log
    after = node.status()
    assert after is not None
    assert (after["workers"]["limit"], after["workers"]["processes"]) == (1, 1)
    assert after["removal"]["max_bytes"] == 7_000_000_000
    assert node.rank(matmuls(16, 32)).outcome()["state"] == "INSTALLED"
    assert node.log.read_text() == log  # INFO is not logged any more
    node.stop()
    node.start()
    assert told(node)["restart_needed"] == []


def test_a_bad_configuration_is_refused_whole_in_one_line_and_the_old_one_stays(node: Node) -> None:
    before = node.log.read_text()
    node.settings["compile"] |= {"workers": 1, "deadline_s": "soon"}
    node.write_config()
    reload(node)
    eventually(lambda: told(node)["problem"], "it is refused")
    assert "deadline_s must be a number" in told(node)["problem"]
    lines = [line for line in node.log.read_text().removeprefix(before).splitlines() if " ERROR " in line]
    assert len(lines) == 1
    assert "the old one stays" in lines[0]
    status = node.status()
    assert status is not None
    assert status["workers"]["limit"] == 2
    node.settings["compile"]["deadline_s"] = 100
    node.write_config()
    reload(node)
    eventually(lambda: not told(node)["problem"], "it is mended")
    assert set(told(node)["applied"]) == {"compile.workers", "compile.deadline_s"}


def test_the_limits_of_users_are_those_of_the_last_reload(node: Node) -> None:
    assert node.rank(matmuls(16, 32)).outcome()["state"] == "INSTALLED"
    node.settings["limits"] = {"keys": 1}
    node.write_config()
    reload(node)
    eventually(lambda: told(node)["count"], "it is reloaded")
    outcome = node.rank(matmuls(48, 64)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "refused")
