"""A real daemon is killed, or its disk fails, at named acts of publishing a compile-cache entry: it is there whole, or not at all."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from npgxd.client import Client, Patience
from npgxd.wire.states import ArtifactState
from tests.crash.test_failpoints import ALL, start_failing, wait_for_the_kill, wrong_with
from tests.system.conftest_node import Node, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENT = Patience(handshake_s=30, silence_s=30, reconnect_s=30)
KEY = hashlib.sha256(b"key").hexdigest()
DATA = b"artifact" * 5000
KILLS = {
    "a part": ("write:staging/artifact-*:1", False),
    "the seal": ("write:staging/artifact-*:2", False),
    "durable": ("fsync:staging/artifact-*:1", False),
    "named": ("rename:artifacts/??/*:1", False),
    "its name durable": ("fsync:artifacts/??:1", True),
}
"""name -> the act that the daemon is killed before, and whether the next daemon finds the entry (nobody was told that it is there)."""
FAULTS = {
    "no space": "write:staging/artifact-*:1:ENOSPC",
    "not durable": "fsync:staging/artifact-*:1:EIO",
    "its name is not durable": "fsync:artifacts/??:1:EIO",
}
OFTEN = frozenset({"named", "its name durable", "its name is not durable"})


def client(node: Node) -> Client:
    return Client({"NPGXD_SOCKET": str(node.socket)}, patience=PATIENT)


@pytest.mark.parametrize("name", [name for name in KILLS if ALL or name in OFTEN])
def test_fc07_a_daemon_killed_while_an_entry_is_published_has_it_whole_or_not_at_all(
    make_node: Callable[..., Node], name: str
) -> None:
    node = make_node()
    failpoint, there = KILLS[name]
    start_failing(node, f"{failpoint}:kill")
    eventually(node._answers, "the daemon answers")
    asks = Client({"NPGXD_SOCKET": str(node.socket)}, patience=PATIENT._replace(reconnect_s=0.1))
    assert asks.lookup(KEY).builder
    assert not asks.publish(KEY, DATA)
    asks.close()
    wait_for_the_kill(node)
    node.start()
    asks = client(node)
    found = asks.lookup(KEY)
    assert (found.state, found.data) == ((ArtifactState.HIT, DATA) if there else (ArtifactState.MISS, None))
    assert asks.publish(KEY, DATA)
    assert asks.lookup(KEY).data == DATA
    asks.close()
    assert node.stop() == 0
    assert wrong_with(node.state) == []


@pytest.mark.parametrize("name", [name for name in FAULTS if ALL or name in OFTEN])
def test_a_disk_that_fails_is_told_and_the_entry_is_not_acknowledged(make_node: Callable[..., Node], name: str) -> None:
    node = make_node()
    start_failing(node, FAULTS[name])
    eventually(node._answers, "the daemon answers")
    asks = client(node)
    assert asks.lookup(KEY).builder
    told = asks.publish(KEY, DATA)
    assert (told.ok, "artifact" in told.reason) == (False, True)
    assert node.status() is not None
    node.kill()
    node.start()  # with a disk that works
    assert asks.publish(KEY, DATA)
    assert asks.lookup(KEY).data == DATA
    asks.close()
    assert node.stop() == 0
    assert wrong_with(node.state) == []
