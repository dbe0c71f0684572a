"""Whether the kernel has killed for want of memory: by its own counters, which a signal that somebody sends does not move.

``oom_kill`` of /proc/vmstat counts on the whole node (Linux 4.13 and later), that of ``memory.events`` (cgroup v2) and of
``memory.oom_control`` (v1) in one group and those below it (cgroup-v2.rst and memory.rst of the kernel's documentation).  A killer that is
a program, as systemd-oomd, moves none of them.
"""

from __future__ import annotations

from pathlib import Path

from npgxd.compile.control_groups import groups, named

_ROOT = Path("/")


def oom_kills(root: Path = _ROOT) -> int | None:
    """All that the counters count, some of it more than once; None if none can be read. ``root`` is where ``/proc`` and ``/sys`` lie."""
    places = [root / "proc/vmstat"]
    for group in groups(root):
        places += [group / "memory.events", group / "memory.oom_control"]
    counts = [count for place in places if (count := named(place, "oom_kill")) is not None]
    return sum(counts) if counts else None


class MemoryKills:
    """Watches the counters from its making on."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._before = oom_kills(root)

    def seen(self) -> bool | None:
        """Whether the kernel has killed since; None: that cannot be told here."""
        after = oom_kills(self._root)
        return None if after is None or self._before is None else after > self._before
