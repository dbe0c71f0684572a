"""What a machine grants, read from control group trees that are made up here, as the kernel's documentation and containers lay them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npgxd.compile.machine import Grant, Machine

if TYPE_CHECKING:
    from pathlib import Path

GB = 1_000_000_000


class Tree:
    """A fake root: /proc/self and control groups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/self/cgroup", "")
        self.write("proc/self/mountinfo", "")

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def v2(self, group: str, *, at: str = "sys/fs/cgroup", root: str = "/", **files: str) -> None:
        self.write("proc/self/cgroup", f"0::{group}\n")
        self.write("proc/self/mountinfo", f"30 23 0:26 {root} /{at} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n")
        self.files(f"{at}{group if root == '/' else ''}", **files)

    def files(self, group: str, **files: str) -> None:
        for name, text in files.items():
            self.write(f"{group}/{name.replace('__', '.')}", f"{text}\n")

    def grant(self, *, processors: int = 16, memory: int = 64 * GB) -> Grant:
        return Machine(self.root, affinity=lambda: processors, available=lambda: memory).grant()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_without_control_groups_the_affinity_and_the_nodes_memory_count(tree: Tree) -> None:
    grant = tree.grant()
    assert (grant.processors, grant.memory) == (16, 64 * GB)
    assert "affinity" in grant.why[0]


def test_a_quota_of_version_2_counts_and_so_does_that_of_a_group_above(tree: Tree) -> None:
    tree.v2("/system.slice/npgxd.service", cpu__max="max 100000", memory__current="0", memory__max="max")
    assert tree.grant().processors == 16
    tree.files("sys/fs/cgroup/system.slice", cpu__max="250000 100000")
    grant = tree.grant()
    assert grant.processors == 2.5
    assert "system.slice" in grant.why[0]
    tree.files("sys/fs/cgroup/system.slice/npgxd.service", cpu__max="50000 100000")
    assert tree.grant().processors == 0.5, "a limit that changes at run time is seen at the next look"


def test_memory_that_is_left_below_the_lowest_limit_counts_and_the_page_cache_is_not_held_against_it(tree: Tree) -> None:
    tree.v2("/a/b", memory__max=str(10 * GB), memory__high="max", memory__current=str(6 * GB))
    assert tree.grant().memory == 4 * GB
    tree.files("sys/fs/cgroup/a/b", memory__stat=f"anon 1\ninactive_file {3 * GB}")
    assert tree.grant().memory == 7 * GB
    tree.files("sys/fs/cgroup/a/b", memory__high=str(5 * GB))
    assert tree.grant().memory == 2 * GB
    tree.files("sys/fs/cgroup/a", memory__max=str(GB), memory__current=str(8 * GB))
    assert tree.grant().memory == 0, "over a limit there is nothing left, not less"


def test_a_cpuset_counts(tree: Tree) -> None:
    tree.v2("/a", cpuset__cpus__effective="0-2,8")
    assert tree.grant().processors == 4


def test_a_container_that_sees_its_group_as_the_top_is_read(tree: Tree) -> None:
    tree.v2("/", cpu__max="300000 100000")
    assert tree.grant().processors == 3


def test_a_container_that_is_told_a_path_of_the_host_finds_its_group_at_the_mount(tree: Tree) -> None:
    tree.v2("/docker/abc", root="/docker/abc", cpu__max="200000 100000")
    assert tree.grant().processors == 2
    tree.write("proc/self/cgroup", "0::/../../elsewhere\n")
    assert tree.grant().processors == 2


def test_version_1_is_read_controller_by_controller(tree: Tree) -> None:
    tree.write("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n0::/\n")
    tree.write(
        "proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    )
    tree.files("sys/fs/cgroup/cpu,cpuacct/job", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    tree.files(
        "sys/fs/cgroup/memory/job",
        memory__limit_in_bytes=str(3 * GB),
        memory__usage_in_bytes=str(2 * GB),
        memory__stat=f"cache 5\ntotal_inactive_file {GB}",
    )
    assert tree.grant() == Grant(
        4.0,
        2 * GB,
        (
            f"cpu.cfs_quota_us of {tree.root}/sys/fs/cgroup/cpu,cpuacct/job",
            f"memory.limit_in_bytes of {tree.root}/sys/fs/cgroup/memory/job",
        ),
    )
    tree.files("sys/fs/cgroup/cpu,cpuacct/job", cpu__cfs_quota_us="-1")
    tree.files("sys/fs/cgroup/memory/job", memory__limit_in_bytes="9223372036854771712")
    assert tree.grant() == Grant(16.0, 64 * GB, tree.grant().why)


@pytest.mark.parametrize("text", ["", "x", "max", "-5 100000", "100000 0", "one two", "1 2 3"])
def test_a_file_that_says_nothing_usable_limits_nothing(tree: Tree, text: str) -> None:
    tree.v2("/a", cpu__max=text, cpuset__cpus__effective="a-b,3-", memory__max="lots", memory__current="0")
    grant = tree.grant()
    assert (grant.processors, grant.memory) == (16, 64 * GB)


def test_this_machine_grants_something() -> None:
    grant = Machine().grant()
    assert grant.processors > 0
    assert grant.memory > 0
    assert all(grant.why)
