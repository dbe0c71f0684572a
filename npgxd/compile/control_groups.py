"""The control groups of this process (v1 and v2), where they are mounted, and the small files that they and /proc consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where a hierarchy of control groups is seen: its ``root`` within the hierarchy lies at ``place``."""

    place: Path
    root: str
    controllers: frozenset[str]


def groups(root: Path) -> Iterator[Path]:
    """The directories of this process's control groups and of everything above them. ``root`` is where ``/proc`` and ``/sys`` lie."""
    mounts = list(_mounts(root))
    for line in lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        wanted = frozenset(names.split(",")) - {""}
        for mount in mounts:
            # The hierarchy of version 2 has the number 0 and names no controllers.
            if (number == "0" and not mount.controllers) or (wanted & mount.controllers):
                yield from _upwards(mount, path)


def number(path: Path) -> int | None:
    """The number in a file; None if there is none, or "max"."""
    found = words(path)
    try:
        return int(found[0]) if found else None
    except ValueError:
        return None


def named(path: Path, name: str) -> int | None:
    """The number beside ``name`` in a file of names and numbers; None if there is none."""
    pairs = (line.split() for line in lines(path))
    return next((int(pair[1]) for pair in pairs if pair[:1] == [name] and len(pair) > 1 and pair[1].isdigit()), None)


def words(path: Path) -> list[str]:
    """The words of a file; none if it cannot be read."""
    return " ".join(lines(path)).split()


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _mounts(root: Path) -> Iterator[_Mount]:
    """From mountinfo: ``id parent major:minor root place options ... - type source super-options`` (proc_pid_mountinfo(5))."""
    for line in lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 4 and kind[:1] in (["cgroup"], ["cgroup2"]):  # noqa: PLR2004 -- the fields named above
            controllers = frozenset(kind[-1].split(",")) if kind[0] == "cgroup" else frozenset()
            yield _Mount(root / fields[4].lstrip("/"), fields[3], controllers)


def _upwards(mount: _Mount, path: str) -> Iterator[Path]:
    """A group and those above it, as far as the mount shows them; where it does not show the group, its top is the group."""
    inner = path.removeprefix(mount.root.rstrip("/")).lstrip("/") if path.startswith(mount.root.rstrip("/") + "/") else ""
    group = mount.place / inner
    if not group.is_dir():
        group = mount.place
    yield group
    while group != mount.place:
        group = group.parent
        yield group
