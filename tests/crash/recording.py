"""Writing down every act on a directory: a stand-in for the ``os`` module of ``npgxd.store.disk`` while a scenario runs.

It does what it is asked, and notes names given and taken, bytes and modes written, fsyncs, and marks (what was acknowledged just then).
What these notes mean for a power loss says ``tests.crash.model``.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT_ID = 0
CATALOG = ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm")
LOCKS = ("instance.lock", ".npgxd.lock")
UNTRACED = (*CATALOG, *LOCKS)
"""Not written through the disk module: SQLite's, and locks whose content means nothing."""


@dataclass(frozen=True, slots=True)
class Version:
    """Bytes (None for a directory) and mode."""

    data: bytes | None
    mode: int


@dataclass(frozen=True, slots=True)
class Names:
    """An act on names: each (directory, name) is this object from now on, or none. ``home`` is whose fsync makes it last."""

    what: str
    sets: tuple[tuple[int, str, int | None], ...]
    home: int


@dataclass(frozen=True, slots=True)
class Written:
    """A new version of an object; ``fresh``: the file was emptied or begun for it."""

    object: int
    version: Version


@dataclass(frozen=True, slots=True)
class Synced:
    """An object is on the disk."""

    object: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something was acknowledged."""

    name: str


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    """The catalog's files, as they are now."""

    files: Mapping[str, bytes]


Event = Names | Written | Synced | Mark | CatalogChanged


class Killed(BaseException):
    """The process was killed: it does nothing any more, not even clean up."""


@dataclass(slots=True)
class Recorder:
    """The ``os`` module as ``npgxd.store.disk`` sees it, which writes down what happens below ``root``."""

    root: Path
    catalog_at: str = "state"
    events: list[Event] = field(default_factory=list)
    live: dict[int, dict[str, int]] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    first: dict[int, Version] = field(default_factory=dict)
    first_live: dict[int, dict[str, int]] = field(default_factory=dict)
    first_catalog: dict[str, bytes] = field(default_factory=dict)
    lives: float = float("inf")
    """How many more acts the process lives for."""
    _catalog_stamp: object = None

    def __post_init__(self) -> None:
        self.root = Path(os.path.realpath(self.root))
        links: dict[tuple[int, int], int] = {}
        self._take(self.root, ROOT_ID, links)
        self.first = dict(self.versions)
        self.first_live = {directory: dict(names) for directory, names in self.live.items()}
        self.first_catalog = self._catalog()
        self._catalog_stamp = self._stamp()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def mark(self, name: str) -> None:
        """Say that something is acknowledged now."""
        self._look_at_catalog()
        self.events.append(Mark(name))

    def strangers(self) -> list[str]:
        """What is on the real disk and not in the account of it, or the reverse: acts that passed by the disk module."""
        seen = {f"{name}: {stat.S_IFMT(version.mode):o}" for name, (_, version) in walk(self.live, self.versions).items()}
        real = set()
        for path in self.root.rglob("*"):
            if path.name not in UNTRACED:
                real.add(f"{path.relative_to(self.root)}: {stat.S_IFMT(path.lstat().st_mode):o}")
        return sorted(seen ^ real)

    # ---- the acts ----------------------------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        self._live_on()
        found = self._find(path, dir_fd)
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        if found is not None and flags & (os.O_CREAT | os.O_TRUNC):
            place, name, known = found
            if known is None:
                known = self._new()
                self._written(known, os.fstat(fd), b"")
                self._names("create", (place, name, known), home=place)
            elif flags & os.O_TRUNC:
                self._written(known, os.fstat(fd), b"")
        return fd

    def write(self, fd: int, data: Any) -> int:
        self._live_on()
        done = os.write(fd, data)
        path = path_of(fd)
        found = self._find(path, None)
        if found is not None and found[2] is not None:
            self._written(found[2], os.fstat(fd), Path(path).read_bytes())
        return done

    def fsync(self, fd: int) -> None:
        self._live_on()
        os.fsync(fd)
        path = path_of(fd)
        if path == str(self.root):
            self._synced(ROOT_ID)
        elif (found := self._find(path, None)) is not None and found[2] is not None:
            self._synced(found[2])

    fdatasync = fsync

    def fchmod(self, fd: int, mode: int) -> None:
        self._live_on()
        os.fchmod(fd, mode)
        self._mode(path_of(fd), None)

    def chmod(self, path: Any, mode: int, *, dir_fd: int | None = None) -> None:
        self._live_on()
        os.chmod(path, mode, dir_fd=dir_fd)
        self._mode(path, dir_fd)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._live_on()
        os.mkdir(path, mode, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is not None:
            new = self._new()
            self.live[new] = {}
            self._written(new, os.lstat(path), None)
            self._names("mkdir", (found[0], found[1], new), home=found[0])

    def rename(self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self._live_on()
        before, after = self._find(source, src_dir_fd), self._find(target, dst_dir_fd)
        os.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if before is not None and after is not None:
            self._names("rename", (before[0], before[1], None), (after[0], after[1], before[2]), home=after[0])
        elif before is not None or after is not None:
            raise AssertionError(f"a rename across the model's edge: {source} {target}")

    replace = rename

    def link(self, source: Any, target: Any, *, follow_symlinks: bool = True) -> None:
        self._live_on()
        before, after = self._find(source, None), self._find(target, None)
        os.link(source, target, follow_symlinks=follow_symlinks)
        if before is not None and after is not None:
            self._names("link", (after[0], after[1], before[2]), home=after[0])

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._live_on()
        found = self._find(path, dir_fd)
        os.unlink(path, dir_fd=dir_fd)
        if found is not None:
            self._names("unlink", (found[0], found[1], None), home=found[0])

    remove = unlink

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._live_on()
        found = self._find(path, dir_fd)
        os.rmdir(path, dir_fd=dir_fd)
        if found is not None:
            self._names("rmdir", (found[0], found[1], None), home=found[0])

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _live_on(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Killed

    def _take(self, path: Path, number: int, links: dict[tuple[int, int], int]) -> None:
        self.versions[number] = Version(None, path.lstat().st_mode)
        self.live[number] = {}
        for entry in sorted(path.iterdir()):
            facts = entry.lstat()
            if entry.name in UNTRACED:
                continue
            known = links.get((facts.st_dev, facts.st_ino))
            if known is None:
                known = links[facts.st_dev, facts.st_ino] = self._new()
                if stat.S_ISDIR(facts.st_mode):
                    self._take(entry, known, links)
                else:
                    content = os.fsencode(entry.readlink()) if entry.is_symlink() else entry.read_bytes()
                    self.versions[known] = Version(content, facts.st_mode)
            self.live[number][entry.name] = known

    def _new(self) -> int:
        number = max(self.versions, default=ROOT_ID) + 1
        self.versions[number] = Version(None, 0)
        return number

    def _find(self, path: Any, dir_fd: int | None) -> tuple[int, str, int | None] | None:
        """(directory, name, object or None) of a path; None if it lies elsewhere, or is the catalog's or the lock."""
        text = os.fspath(path)
        if dir_fd is not None:
            text = os.path.join(path_of(dir_fd), text)  # noqa: PTH118
        head, name = os.path.split(os.path.abspath(text))  # noqa: PTH100
        head = os.path.realpath(head)
        if name in UNTRACED or not (head == str(self.root) or head.startswith(f"{self.root}/")):
            return None
        place = ROOT_ID
        for part in Path(head).relative_to(self.root).parts:
            if part not in self.live.get(place, {}):
                return None  # made by something that is not the disk module: ``strangers`` tells
            place = self.live[place][part]
        return place, name, self.live[place].get(name)

    def _written(self, number: int, facts: os.stat_result, data: bytes | None) -> None:
        self._look_at_catalog()
        self.versions[number] = Version(data, facts.st_mode)
        self.events.append(Written(number, self.versions[number]))

    def _mode(self, path: Any, dir_fd: int | None) -> None:
        found = self._find(path, dir_fd)
        if found is not None and found[2] is not None:
            facts = os.stat(path, dir_fd=dir_fd)
            if self.versions[found[2]].mode != facts.st_mode:
                self._written(found[2], facts, self.versions[found[2]].data)

    def _synced(self, number: int) -> None:
        self._look_at_catalog()
        self.events.append(Synced(number))

    def _names(self, what: str, *sets: tuple[int, str, int | None], home: int) -> None:
        self._look_at_catalog()
        for place, name, number in sets:
            if number is None:
                self.live[place].pop(name, None)
            else:
                self.live[place][name] = number
        self.events.append(Names(f"{what} {sets[-1][1]}", sets, home))

    def _stamp(self) -> object:
        found = []
        for name in CATALOG[:2]:
            try:
                facts = (self.root / self.catalog_at / name).stat()
            except OSError:
                found.append(None)
            else:
                found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return found

    def _catalog(self) -> dict[str, bytes]:
        place = self.root / self.catalog_at
        return {name: (place / name).read_bytes() for name in CATALOG[:2] if (place / name).exists()}

    def _look_at_catalog(self) -> None:
        stamp = self._stamp()
        if stamp != self._catalog_stamp:
            self._catalog_stamp = stamp
            self.events.append(CatalogChanged(self._catalog()))


def path_of(fd: int) -> str:
    """Where an open file or directory lies now."""
    return os.fspath(Path(f"/proc/self/fd/{fd}").readlink())


def walk(live: Mapping[int, Mapping[str, int]], versions: Mapping[int, Version]) -> dict[str, tuple[int, Version]]:
    """Relative path -> (object, version) of everything that can be reached from the root."""
    found: dict[str, tuple[int, Version]] = {}

    def enter(place: int, prefix: str, above: tuple[int, ...]) -> None:
        for name, number in live.get(place, {}).items():
            version = versions[number]
            found[prefix + name] = (number, version)
            if version.data is None and number not in above:
                enter(number, f"{prefix}{name}/", (*above, number))

    enter(ROOT_ID, "", (ROOT_ID,))
    return found
