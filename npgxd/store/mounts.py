"""Which file system a path lies on, from /proc/self/mountinfo (proc(5))."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "9p", "afs", "gpfs", "beegfs", "orangefs", "panfs"}
)
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: where, what, and with which options."""

    point: str
    type: str
    options: frozenset[str]

    @property
    def is_network(self) -> bool:
        """Whether other machines, or a process that may end, take part in its locks and renames."""
        return self.type in _NETWORK or self.type == "fuse" or self.type.startswith("fuse.")

    @property
    def is_memory(self) -> bool:
        """Whether its content ends with the boot."""
        return self.type in _MEMORY

    @property
    def noexec(self) -> bool:
        """Whether programs on it cannot be run."""
        return "noexec" in self.options


def parse_mountinfo(text: str) -> list[Mount]:
    """Every mount, in mount order (a later one on the same point hides the earlier)."""
    mounts: list[Mount] = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if separator and len(fields) >= 6:  # noqa: PLR2004 -- six fields, then optional ones
            point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
            mounts.append(Mount(point, kind[0], frozenset(fields[5].split(","))))
    return mounts


def mount_of(path: Path, text: str | None = None) -> Mount | None:
    """The mount that ``path`` (or its nearest existing parent) lies on; None where /proc does not tell."""
    if text is None:
        try:
            text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    real = os.path.realpath(path)
    best: Mount | None = None
    for mount in parse_mountinfo(text):
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
