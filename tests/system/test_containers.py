"""One daemon for a node and clients in containers, and a daemon beside its job in one: as docs/containers.md says, with ``unshare``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from conftest_node import PATIENCE_S, Node, eventually, matmuls
from container import CAN_BE_MADE, MOUNTED_STORE, RUNTIME, Container
from test_admin import npgxctl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = CAN_BE_MADE

GROUP = 47110
"""The group of the sockets here; in production it is npgxd's."""


@pytest.fixture
def contain() -> Iterator[Callable[[Node], Container]]:
    made: list[Container] = []

    def make(node: Node) -> Container:
        made.append(Container(node, f"container{len(made)}"))
        return made[-1]

    yield make
    for container in made:
        container.close()


def is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has ended, and was waited for
        return False


def opened_to_the_group(node: Node) -> None:
    """As the unit has it: the directory 0750, the socket 0660, of one group."""
    for path, mode in ((node.runtime, 0o750), (node.socket, 0o660)):
        os.chown(path, 0, GROUP)
        path.chmod(mode)


def test_root_mapped_root_and_arbitrary_users_of_containers_share_one_compile_and_hold_views_of_their_own(
    node: Node, contain: Callable[[Node], Container]
) -> None:
    opened_to_the_group(node)
    plain, same, closed, rootless, arbitrary = (contain(node) for _ in range(5))
    same.mapped = "0"  # a user namespace in which root is the machine's
    closed.mapped = rootless.mapped = "100000"  # root in there is nobody out here
    rootless.gids = f"0,{GROUP}"
    arbitrary.uid, arbitrary.gids = 54321, f"0,{GROUP}"  # without a passwd entry or HOME,
    arbitrary.options = "read-only"  # and without a place to write to
    arbitrary.mount(node.state, "/data/kernels")
    arbitrary.environment = {"NPGXD_STORE": "/data/kernels"}
    del arbitrary.mounts[MOUNTED_STORE]
    ranks = [container.rank(matmuls(16, 32)) for container in (plain, same, rootless, arbitrary, closed)]
    *served, refused = [rank.outcome() for rank in ranks]
    assert [(told["state"], told["missing"], told["extra"], told["torn"]) for told in served] == [("INSTALLED", 0, 0, 0)] * 4
    assert len(node.compiled()) == len(set(node.compiled())) == 2, "each kernel once, for all of them"
    assert served[0]["view"].startswith(f"{MOUNTED_STORE}/views/")
    assert served[3]["view"].startswith("/data/kernels/views/")
    assert (refused["state"], refused["reason"]) == ("DEGRADED", "daemon_unavailable"), (
        "its directory is closed to who is not in the group"
    )
    assert "permission denied; its users are in the group npgxd" in refused["detail"]
    shown = {rank["pid"]: job["uid"] for job in (node.status() or {})["jobs"] for rank in job["ranks"]}
    expected = {plain: 0, same: 0, rootless: 100000, arbitrary: 54321}
    assert shown == {container.first().pid: uid for container, uid in expected.items()}, "by their numbers out here"
    arbitrary.close()
    eventually(lambda: (node.status() or {})["kernels"]["leases"] == 3, "a container's end is its lease's")


def test_a_store_that_is_not_mounted_and_a_daemon_that_is_not_are_told_apart_with_what_to_mount(
    node: Node, contain: Callable[[Node], Container]
) -> None:
    without_store, other_store, without_daemon = (contain(node) for _ in range(3))
    del without_store.mounts[MOUNTED_STORE]
    without_store.environment = {}
    (node.directory / "other").mkdir()
    other_store.mount(node.directory / "other", MOUNTED_STORE)
    del without_daemon.mounts[RUNTIME]
    ranks = [container.rank(matmuls(16)) for container in (without_store, other_store, without_daemon)]
    store, other, daemon = (rank.outcome() for rank in ranks)
    for told in (store, other):
        assert (told["state"], told["reason"]) == ("DEGRADED", "store_not_visible")
        assert str(node.state) in told["hint"]
        assert "NPGXD_STORE" in told["hint"]
    assert daemon["state"] == "DEGRADED"
    assert daemon["reason"] == "daemon_unavailable"
    assert "/run/npgxd/npgxd.sock (not there)" in daemon["detail"]
    assert [rank.process.poll() for rank in ranks] == [None] * 3, "and all of them run"


def test_a_cann_in_the_image_is_served_where_it_is_equal_and_told_in_what_it_differs_where_not(
    node: Node, contain: Callable[[Node], Container]
) -> None:
    home = node.cann.home.resolve()
    equal, newer, changed = (contain(node) for _ in range(3))
    for container in (equal, newer, changed):
        image = container.place / "image"
        shutil.copytree(home, image, symlinks=True)
        container.mount(image, "/opt/vendor/cann")
        container.environment |= {"ASCEND_HOME_PATH": "/opt/vendor/cann", "ASCEND_OPP_PATH": "/opt/vendor/cann/opp"}
    for info in (newer.place / "image").rglob("version.info"):
        info.write_text(info.read_text().replace("9.1.0", "9.1.7"))
    source = next(path for path in (changed.place / "image").rglob("*.py") if "op_impl/ai_core" in str(path))
    source.write_text(source.read_text() + "# patched in the image\n")
    told = [rank.outcome() for rank in [container.rank(matmuls(16)) for container in (equal, newer, changed)]]
    assert (told[0]["state"], told[0]["missing"], told[0]["torn"]) == ("INSTALLED", 0, 0)
    for outcome in told[1:]:
        assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "toolchain_mismatch")
    assert "9.1.7" in told[1]["detail"]
    assert "9.1.0" in told[1]["detail"]
    assert "operator implementations" in told[2]["detail"]
    assert len(node.compiled()) == 1


def test_a_container_outlives_daemons_and_its_lease_holds_while_it_is_paused(
    make_node: Callable[..., Node], contain: Callable[[Node], Container]
) -> None:
    node = make_node()
    node.settings["store"] = {"max_gb": 1e-9, "recent_s": 0, "gc_interval_s": 1}
    node.start()
    directory = node.runtime.stat().st_ino
    container = contain(node)
    rank = container.rank([], rounds=[matmuls(16), matmuls(32)], pause="/out/go")
    (view,) = eventually(
        lambda: (node.status() or {})["kernels"]["leases"] and list((node.state / "views").iterdir()), "it is served"
    )
    first = container.first()
    files = {path: path.read_bytes() for path in view.rglob("*") if path.is_file()}
    first.suspend()
    for end in (node.kill, node.stop):
        end()
        node.start()
        assert npgxctl(node, "gc", code=1)["kept"]["leased"] >= 1, "over the limit, and still it is kept"
        assert {path: path.read_bytes() for path in view.rglob("*") if path.is_file()} == files
    assert node.runtime.stat().st_ino == directory, "what is mounted is still the directory of the sockets"
    first.resume()
    (container.out / "go").touch()
    second = rank.outcome()
    assert [(r["state"], r["reason"]) for r in second["rounds"]] == [("INSTALLED", "compiled")] * 2, "the third daemon served it"
    assert (second["missing"], second["torn"]) == (0, 0)
    container.close()
    eventually(lambda: not view.exists(), "after its end nothing holds the view")


def test_a_daemon_beside_its_job_in_one_container_as_its_first_process(
    make_node: Callable[..., Node], contain: Callable[[Node], Container]
) -> None:
    """No systemd, no init, no users, uid 0, a /dev/shm of 64 KiB: what the daemon's compilers leave is its own to wait for."""
    node = make_node()
    container = contain(node)
    for target in (RUNTIME, MOUNTED_STORE):
        del container.mounts[target]
    home = node.cann.home.resolve()
    container.mount(home, "/opt/cann", "rw")  # the simulated compiler counts its runs there
    state = container.place / "volume"
    state.mkdir()
    container.mount(state, "/cache", "rw")
    container.options = "shm=64k"
    container.environment = {
        "ASCEND_HOME_PATH": "/opt/cann",
        "ASCEND_OPP_PATH": "/opt/cann/opp",
        "NPGXD_SOC": node.cann.soc.name,
        "XDG_STATE_HOME": "/cache",
    }
    log = container.out / "npgxd.log"
    daemon = container.begin(sys.executable, "-B", "-m", "npgxd.daemon.main", "--user", error=log)
    eventually(lambda: log.exists() and "READY" in log.read_text(), f"it is ready: {container.place}")
    first = container.first()
    told = container.rank_beside(matmuls(16, 32)).outcome()
    assert (told["state"], told["reason"], told["compiled"], told["torn"]) == ("INSTALLED", "compiled", 2, 0)
    assert told["view"].startswith("/cache/npgxd/views/")
    assert [child for child in first.children() if is_zombie(child)] == []
    first.send_signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE_S) == 0, log.read_text()
