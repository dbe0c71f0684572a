"""Memory of a real daemon that no message accounts for, since libzmq keeps a message until its last frame has come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from conftest_node import Node, eventually, matmuls
from test_adversary import Peer, peers

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["peers"]
THRIFTY = (str(Path(__file__).with_name("thrifty_daemon.py")),)
ENDLESS = "import sys; from tools.bench.flooders import endless; endless(sys.argv[1])"


def test_who_sends_a_message_that_never_ends_is_cut_off_alone_and_its_memory_is_given_back(
    make_node: Callable[..., Node], peers: Callable[[Node], Peer]
) -> None:
    node = make_node()
    node.program = THRIFTY
    process = node.start()
    daemon = psutil.Process(process.pid)
    other = peers(node)
    other.hello()
    before = daemon.memory_info().rss
    flood = node.spawn("-c", ENDLESS, str(node.socket), stderr=node.directory / "flood.err")
    eventually(lambda: f"pid {flood.pid} of uid" in node.log.read_text() or process.poll() is not None, "it is found")
    assert process.poll() is None, node.log.read_text()
    eventually(lambda: daemon.memory_info().rss - before < 64 * 1024 * 1024, "what it sent is dropped")
    assert flood.poll() is None, "it would go on"
    flood.kill()
    assert other.ask("report", state="RECORDING")["op"] == "done", "on the connection that it had"
    assert node.rank(matmuls(16)).outcome()["state"] == "INSTALLED"
    told = node.log.read_text()
    assert "sends far more than it is answered: its 1 connection is ended" in told
    assert "of which no whole message came" not in told, "nobody else is taken for it"
