"""A real daemon whose disk does not answer while a kernel is published: ranks are answered, and it can be stopped."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.crash.test_failpoints import DAEMON, wrong_with
from tests.system.conftest_node import PATIENCE_S, Node, eventually, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_ranks_are_answered_while_a_kernel_waits_for_the_disk_and_a_stop_waits_for_the_kernel(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    node, answers = make_node(), tmp_path / "answers"
    node.program = (str(DAEMON), f"fsync:kernels/??:2:hold={answers}")
    daemon = node.start()
    assert node.rank(matmuls(16)).outcome()["state"] == "INSTALLED"
    late = node.rank(matmuls(32))
    eventually(lambda: len(list(node.state.glob("kernels/??/*"))) == 2, "the second kernel has its name")
    known = node.rank(matmuls(16)).outcome()
    assert (known["state"], known["hits"]) == ("INSTALLED", 1)
    assert node.status() is not None
    assert not late.report.exists(), "its kernel's name is not on the disk"
    daemon.send_signal(signal.SIGTERM)
    eventually(lambda: "draining" in node.log.read_text(), "the daemon is asked to stop")
    answers.touch()
    assert late.outcome()["state"] == "INSTALLED"
    assert daemon.wait(PATIENCE_S) == 0
    assert wrong_with(node.state) == []
    assert len(node.compiled()) == 2
