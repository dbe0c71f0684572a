"""A real daemon is killed at each named act of a cold round, and started again; and its disk fails at some of them, and it lives on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npgxd.daemon.keeping.stores import BOOT_ID
from npgxd.oplib.leases import Leases
from npgxd.oplib.views import Views
from tests.crash.ground import listing, verified
from tests.store.made import House
from tests.system.conftest_node import PATIENCE_S, Node, eventually, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = bool(os.environ.get("NPGXD_CRASH_LONG"))
"""Every named act; else those in ``OFTEN``: the store's own tests end a process before every single act, these a whole daemon."""
OFTEN = frozenset(
    {
        "create: the format",
        "accept: named",
        "accept: durable",
        "package: named",
        "publish: numbered",
        "publish: the second named",
        "publish: shelf durable",
        "catalog: written",
        "view: named",
        "settle: the journal",
        "lease: named",
        "half unlinked",
        "accepted, but not durable",
        "a kernel cannot be published",
        "no space for a view",
        "a round cannot be settled",
    }
)
DAEMON = Path(__file__).with_name("failing_daemon.py")
NONE, ONE, BOTH = 0, 1, 2
FAILPOINTS = {
    "create: a directory": ("mkdir:rounds:1", NONE),
    "create: the store id": ("rename:STORE_ID:1", NONE),
    "create: the format": ("rename:FORMAT:1", NONE),
    "accept: written": ("fsync:rounds/*:1", NONE),
    "accept: named": ("rename:rounds/*:1", NONE),
    "accept: durable": ("fsync:rounds:2", NONE),
    "package: mode": ("chmod:staging/*/package.run:1", BOTH),
    "package: named": ("rename:packages/*:1", BOTH),
    "package: durable": ("fsync:packages:2", BOTH),
    "publish: numbered": ("write:staging/*/manifest.json:2", BOTH),
    "publish: manifest durable": ("fsync:staging/*/manifest.json:1", BOTH),
    "publish: shelf": ("mkdir:kernels/??:1", BOTH),
    "publish: the first named": ("rename:kernels/??/*:1", BOTH),
    "publish: the second named": ("rename:kernels/??/*:2", ONE),
    "publish: shelf durable": ("fsync:kernels/??:1", NONE),
    "catalog: written": ("rmdir:staging/*:1", NONE),
    "view: begun": ("mkdir:staging/view-*:1", NONE),
    "view: linked": ("link:staging/view-*:3", NONE),
    "view: index": ("rename:*/binary_info_config.json:1", NONE),
    "view: named": ("rename:views/*:1", NONE),
    "settle: the journal": ("unlink:rounds/*:1", NONE),
    "lease: written": ("write:staging/.npgxd-*:4", NONE),
    "lease: named": ("rename:leases/*:1", NONE),
    "lease: ended": ("unlink:leases/*:1", NONE),
}
"""name -> the act that the daemon is killed before, and how many of two kernels have to be compiled a second time for it."""


def start_failing(node: Node, failpoint: str) -> None:
    node.write_config()
    node.daemon = node.spawn(str(DAEMON), failpoint, "--config", str(node.config), stderr=node.log)


def wait_for_the_kill(node: Node) -> None:
    assert node.daemon is not None
    assert node.daemon.wait(PATIENCE_S) == -signal.SIGKILL, node.log.read_text()


def wrong_with(state: Path) -> list[str]:
    """What is wrong with the state of a daemon that was stopped; looked at without recovering anything."""
    house = House(state, state.parent / "scratch")
    problems = [f"pending: {entry.round}" for entry in house.rounds.pending()]
    problems += [f"set aside: {path.name}" for path in house.state.quarantine.iterdir()]
    problems += [f"left: {name}" for name, _, _ in listing(state) if ".npgxd-" in name or name.startswith("staging/")]
    boot = BOOT_ID.read_text(encoding="ascii").strip()
    problems += verified(house, Views(house.state, house.kernels, boot), Leases(house.state, boot))
    house.close()
    return problems


@pytest.mark.parametrize("name", [name for name in FAILPOINTS if ALL or name in OFTEN])
def test_fc07_a_daemon_killed_at_a_named_act_is_started_again_and_nothing_is_lost_or_done_twice(
    make_node: Callable[..., Node], name: str
) -> None:
    node = make_node()
    failpoint, again = FAILPOINTS[name]
    start_failing(node, f"{failpoint}:kill")
    if not name.startswith("create"):
        eventually(node._answers, "the daemon answers")
        rank = node.rank(matmuls(16, 32))
        if name == "lease: ended":
            assert rank.outcome()["state"] == "INSTALLED"
            rank.process.kill()
    wait_for_the_kill(node)
    node.start()
    if name.startswith("create") or name == "lease: ended":
        rank = node.rank(matmuls(16, 32))
    outcome = rank.outcome()
    assert (outcome["state"], outcome["missing"], outcome["extra"], outcome["torn"]) == ("INSTALLED", 0, 0, 0), outcome
    assert len(node.compiled()) == 2 + again
    assert node.stop() == 0
    assert wrong_with(node.state) == []


REMOVAL = {
    "out of sight": "rename:staging/dropped-*/*:1",
    "all out of sight": "fsync:staging/dropped-*:1",
    "half unlinked": "unlink:staging/dropped-*:2",
    "a package": "unlink:packages/*:1",
}


@pytest.mark.parametrize("name", [name for name in REMOVAL if ALL or name in OFTEN])
def test_a_daemon_killed_while_it_removes_leaves_whole_kernels_or_none(make_node: Callable[..., Node], name: str) -> None:
    node = make_node()
    node.start()
    node.rank(matmuls(16, 32)).end()
    eventually(lambda: len(node.compiled()) == 2 and not list((node.state / "rounds").iterdir()), "the round is settled")
    assert node.stop() == 0
    node.settings["store"] = {"max_gb": 1e-9, "gc_interval_s": 1, "recent_s": 0}
    start_failing(node, f"{REMOVAL[name]}:kill")
    wait_for_the_kill(node)
    node.settings["store"] = {}
    node.start()
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["missing"], outcome["extra"], outcome["torn"]) == ("INSTALLED", 0, 0, 0), outcome
    assert len(node.compiled()) == 2 + outcome["compiled"]
    assert node.stop() == 0
    assert wrong_with(node.state) == []


DISK_FAULTS = {
    "no space to accept": "write:staging/.npgxd-*:3:ENOSPC",
    "accepted, but not durable": "fsync:rounds:2:EIO",
    "a package cannot be kept": "rename:packages/*:1:ENOSPC",
    "a kernel cannot be published": "rename:kernels/??/*:2:ENOSPC",
    "a kernel is not durable": "fsync:kernels/??:1:EIO",
    "no space for a view": "write:staging/view-*:1:ENOSPC",
    "a view cannot be named": "rename:views/*:1:EIO",
    "a round cannot be settled": "unlink:rounds/*:1:EIO",
    "no space for a lease": "rename:leases/*:1:ENOSPC",
}


@pytest.mark.parametrize("name", [name for name in DISK_FAULTS if ALL or name in OFTEN])
def test_a_disk_that_fails_is_told_nothing_is_acknowledged_that_is_not_there_and_the_daemon_lives_on(
    make_node: Callable[..., Node], name: str
) -> None:
    node = make_node()
    start_failing(node, DISK_FAULTS[name])
    eventually(node._answers, "the daemon answers")
    rank = node.rank(matmuls(16, 32))
    outcome = rank.outcome()
    assert outcome["torn"] == 0
    assert outcome["state"] == "DEGRADED" or (outcome["missing"], name) == (0, "a round cannot be settled"), outcome
    assert outcome["state"] == "INSTALLED" or outcome["detail"] or outcome["failures"], outcome
    assert node.daemon is not None
    assert node.daemon.poll() is None, node.log.read_text()
    assert node.status() is not None
    rank.process.kill()
    assert node.stop() == 0
    node.start()  # with a disk that works
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["missing"], outcome["extra"], outcome["torn"]) == ("INSTALLED", 0, 0, 0), outcome
    assert node.stop() == 0
    assert wrong_with(node.state) == []
