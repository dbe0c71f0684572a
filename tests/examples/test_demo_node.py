"""The demo's private node, with the real daemon."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import NpgxError
from tools.cann_sim import FREE
from tools.demo.children import Children
from tools.demo.failure import DemoError
from tools.demo.node import SOC, Counters, Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def children() -> Iterator[Children]:
    with Children(uuid.uuid4().hex) as opened:
        yield opened


def test_a_node_starts_answers_stops_and_leaves_nothing(tmp_path: Path, children: Children) -> None:
    with Node(tmp_path / "node", children, costs=FREE) as node:
        assert node.status() is None
        node.start_daemon()
        status = node.status()
        assert status is not None
        assert status["daemon"]["state"] == "READY"
        assert status["toolchain"]["soc"] == SOC
        assert status["toolchain"]["simulated"]
        assert node.counters() == Counters(0, 0, 0, 0)
        assert "SIMULATED" in node.npgxctl("status").stdout
        assert node.stop_daemon() == 0
        with pytest.raises(DemoError, match="does not answer"):
            node.counters()
    assert children.settle() == []
    assert not node.runtime.exists()


def test_a_killed_daemon_can_be_started_again(tmp_path: Path, children: Children) -> None:
    with Node(tmp_path / "node", children, costs=FREE) as node:
        node.start_daemon()
        first = node.status()
        node.kill_daemon()
        assert node.status() is None
        node.start_daemon()
        second = node.status()
        assert first is not None
        assert second is not None
        assert first["daemon"]["instance"] != second["daemon"]["instance"]
        assert first["daemon"]["store_id"] == second["daemon"]["store_id"]


def test_a_daemon_that_cannot_start_is_told_with_its_log(tmp_path: Path, children: Children) -> None:
    with Node(tmp_path / "node", children, costs=FREE) as node:
        node.config.write_text("[daemon]\nno_such_key = 1\n", encoding="utf-8")
        with pytest.raises(DemoError, match="no_such_key"):
            node.start_daemon()
        with pytest.raises(NpgxError, match="not running"):
            node.stop_daemon()
