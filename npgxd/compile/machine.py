"""What this machine grants right now: processors and memory, by affinity, cpusets, cgroup quotas and limits (v1 and v2).

Limits change while a daemon runs (a container is resized, a neighbour takes memory), so whoever starts something asks again.  Each read
is a few small files; what cannot be read does not limit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from npgxd.compile.control_groups import groups, named, number, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNLIMITED: Final = 1 << 60
"""Control groups of version 1 tell "no limit" as a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Grant:
    """``processors`` may be a fraction (a quota); ``memory`` is what can still be taken, in bytes. ``why`` names what bounds each."""

    processors: float
    memory: int
    why: tuple[str, str] = ("", "")


class Machine:
    """Reads grants. ``root`` is where ``/proc`` and ``/sys`` lie, for tests."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0)),
        available: Callable[[], int] = lambda: int(psutil.virtual_memory().available),
    ) -> None:
        self._root = root
        self._affinity = affinity
        self._available = available

    def grant(self) -> Grant:
        """What a process of this daemon may use now."""
        processors: list[tuple[float, str]] = [(float(self._affinity()), "the processors of its affinity")]
        memory: list[tuple[int, str]] = [(self._available(), "the node's available memory")]
        for group in groups(self._root):
            processors += _processors(group)
            memory += _memory(group)
        granted, left = min(processors), min(memory)
        return Grant(max(granted[0], 0.01), max(left[0], 0), (granted[1], left[1]))


def _processors(group: Path) -> Iterator[tuple[float, str]]:
    quota = words(group / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:  # noqa: PLR2004 -- quota and period
        yield int(quota[0]) / int(quota[1]), f"cpu.max of {group}"
    taken, period = number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")
    if taken is not None and taken > 0 and period:
        yield taken / period, f"cpu.cfs_quota_us of {group}"
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
        if count := _count("".join(words(group / name))):
            yield float(count), f"{name} of {group}"


def _memory(group: Path) -> Iterator[tuple[int, str]]:
    """What is left below each limit; pages of files that were not used lately are given back before anything is refused."""
    for limits, usage, reclaimable in (
        (("memory.max", "memory.high"), "memory.current", "inactive_file"),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    ):
        used = number(group / usage)
        if used is None:
            continue
        spare = named(group / "memory.stat", reclaimable) or 0
        for name in limits:
            limit = number(group / name)
            if limit is not None and limit < _UNLIMITED:
                yield limit - max(0, used - spare), f"{name} of {group}"


def _count(ranges: str) -> int:
    """How many processors a list such as ``0-3,8`` names."""
    total = 0
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return 0
        total += int(last or first) - int(first) + 1
    return total
