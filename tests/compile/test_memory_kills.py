"""Whether the kernel killed for want of memory, read from counters that are made up here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npgxd.compile.memory_kills import MemoryKills, oom_kills
from tests.compile.test_machine import Tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_where_nothing_counts_nothing_can_be_told(tree: Tree) -> None:
    assert oom_kills(tree.root) is None
    assert MemoryKills(tree.root).seen() is None


def test_the_nodes_counter_tells_kills_of_before_from_those_since(tree: Tree) -> None:
    tree.write("proc/vmstat", "nr_free_pages 12\noom_kill 3\n")
    kills = MemoryKills(tree.root)
    assert kills.seen() is False
    tree.write("proc/vmstat", "nr_free_pages 12\noom_kill 4\n")
    assert kills.seen() is True
    assert MemoryKills(tree.root).seen() is False


def test_a_container_that_sees_only_its_own_group_is_told_by_that(tree: Tree) -> None:
    tree.v2("/", memory__events="low 0\noom 0\noom_kill 0")
    kills = MemoryKills(tree.root)
    assert kills.seen() is False
    tree.v2("/", memory__events="low 0\noom 1\noom_kill 1")
    assert kills.seen() is True


def test_a_group_of_version_1_counts_too(tree: Tree) -> None:
    tree.write("proc/self/cgroup", "4:memory:/job\n")
    tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    tree.files("sys/fs/cgroup/memory/job", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2")
    kills = MemoryKills(tree.root)
    tree.files("sys/fs/cgroup/memory/job", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3")
    assert kills.seen() is True
