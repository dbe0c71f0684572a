"""A model of what a file system may hold after a power loss, pessimistic where POSIX leaves room.

:class:`Recorder` stands in for the ``os`` module of ``npgxd.store.disk`` while a scenario runs on a real directory, and writes down
every act: names given and taken, bytes and modes written, fsyncs, and marks (``mark`` says what was acknowledged just then).
:func:`crashes` then tells the states that may be found afterwards, and :func:`materialise` makes one of them.

The model:

* Bytes and mode of a file, and the mode of a directory, are on the disk once that file or directory was fsynced.  Until then each
  version written since the last fsync may be found, or the last durable one; of a new file nothing, its first half, or zeros of its
  full length; of one rewritten in place also nothing and half.  Modes are found old or new, independently.
* A name (create, mkdir, link, unlink, rmdir, rename) is on the disk once the directory that it is in was fsynced; fsync of a file
  does not bring its name.  Until then any subset of the acts may be found, in any directory and of any order between directories
  and within one; only acts on one name keep their order.
* A rename is one act: both names change or none does, and it is the fsync of the directory that it goes *to* which makes it last.
* What is reached only through a lost name is lost with it; fsync of a directory says nothing of its parent.
* A kill without power loss loses nothing: that is the state with every act.
* SQLite is trusted to keep what it committed (WAL, synchronous=FULL), and the catalog is an index: each state is looked at with the
  last catalog, with the one from before the scenario, with none, and with one that is no database.

Acts are forced to the disk in groups, so it is enough to look right before each fsync, before each mark and at the end: whatever may
be found between two fsyncs may also be found right before the second.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT_ID = 0
CATALOG = ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm")
UNTRACED = (*CATALOG, "instance.lock")
"""Not written through the disk module: SQLite's, and a lock whose content means nothing."""
CATALOGS = ("last", "first", "none", "garbage")


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


@dataclass(frozen=True, slots=True)
class Crash:
    """One state that may be found: path -> version, what was acknowledged by then, and how it came about, for people."""

    tree: Mapping[str, tuple[int, Version]]
    marks: frozenset[str]
    story: str
    catalog: Mapping[str, bytes]


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


@dataclass(slots=True)
class Enumerated:
    """How the states of a scenario were chosen."""

    moments: int = 0
    exhaustive: int = 0
    states: int = 0
    legal: float = 0
    """Combinations that the model allows, before equal states are taken together."""


def crashes(recorder: Recorder, *, per_moment: int, seed: str, told: Enumerated, since: int | None = None) -> Iterator[Crash]:
    """The states that may be found: all of them at moments with up to ``per_moment`` combinations, else a seeded sample.

    With ``since``, only right after marks from that event on, and at the end.
    """
    seen: set[tuple[str, frozenset[str]]] = set()
    events = recorder.events
    moments = [at for at, event in enumerate(events) if isinstance(event, (Synced, Mark))] + [len(events)]
    if since is not None:
        moments = [at + 1 for at, event in enumerate(events) if isinstance(event, Mark) and at >= since] + [len(events)]
    for at in moments:
        told.moments += 1
        past = events[:at]
        marks = frozenset(event.name for event in past if isinstance(event, Mark))
        catalogs = [recorder.first_catalog, *(event.files for event in past if isinstance(event, CatalogChanged))]
        open_acts, choices = _loose(recorder, past)
        sizes = [2] * len(open_acts) + [len(options) for options in choices.values()]
        legal = float(_product(sizes))
        told.legal += legal
        told.exhaustive += legal <= per_moment
        kept = 0
        for picks in _picks(sizes, per_moment, random.Random(f"{seed} {at}")):
            lost = {act for act, pick in zip(open_acts, picks, strict=False) if pick}
            chosen = dict(zip(choices, picks[len(open_acts) :], strict=True))
            tree = _tree(recorder, past, lost, {number: choices[number][pick] for number, pick in chosen.items()})
            key = (_digest(tree), marks)
            if key in seen:
                continue
            seen.add(key)
            kept += 1
            told.states += 1
            story = f"event {at}: lost {[events[act].what for act in sorted(lost)]}"
            kind = CATALOGS[(told.states - 1) % len(CATALOGS)]
            garbage = dict.fromkeys(catalogs[-1], b"no database")
            catalog = {"last": catalogs[-1], "first": catalogs[0], "none": {}, "garbage": garbage}[kind]
            yield Crash(tree, marks, f"{story}, catalog {kind}", catalog)


def materialise(crash: Crash, root: Path, catalog_at: str = "state") -> None:
    """Make one state in the empty directory ``root``."""
    made: dict[int, Path] = {}
    modes: list[tuple[Path, int]] = []
    for name, (number, version) in crash.tree.items():
        path = root / name
        if version.data is None:
            path.mkdir()
            modes.append((path, version.mode))
        elif stat.S_ISLNK(version.mode):
            path.symlink_to(os.fsdecode(version.data))
        elif number in made:
            os.link(made[number], path)
        else:
            path.write_bytes(version.data)
            path.chmod(stat.S_IMODE(version.mode))
            made[number] = path
    for path, mode in reversed(modes):
        path.chmod(stat.S_IMODE(mode))
    if (root / catalog_at).is_dir():
        for name, content in crash.catalog.items():
            (root / catalog_at / name).write_bytes(content)


def _loose(recorder: Recorder, past: Sequence[Event]) -> tuple[list[int], dict[int, list[Version]]]:
    """The acts on names that no fsync has made last, and the versions of each object that may be found."""
    last_sync: dict[int, int] = {event.object: at for at, event in enumerate(past) if isinstance(event, Synced)}
    acts = [at for at, event in enumerate(past) if isinstance(event, Names) and last_sync.get(event.home, -1) < at]
    histories: dict[int, list[Version]] = {number: [version] for number, version in recorder.first.items()}
    for at, event in enumerate(past):
        if isinstance(event, Written):
            # What was written before the last fsync is over; the last of it is what is durable.
            known = histories.get(event.object, [])
            histories[event.object] = [event.version] if at < last_sync.get(event.object, -1) else [*known, event.version]
    return acts, {
        number: found for number, history in histories.items() if len(found := _findable(number, history, recorder)) > 1
    }


def _findable(number: int, history: list[Version], recorder: Recorder) -> list[Version]:
    """The versions of one object that may be found; the first is the newest."""
    newest = history[-1]
    durable = len(history) == 1
    if durable:
        return history
    modes = list(dict.fromkeys(version.mode for version in reversed(history)))
    contents: list[bytes | None] = list(dict.fromkeys(version.data for version in reversed(history)))
    if newest.data is not None and len(contents) > 1:
        half = newest.data[: len(newest.data) // 2]
        contents = list(dict.fromkeys([*contents, b"", half, bytes(len(newest.data))]))
    return [Version(data, mode) for data, mode in itertools.product(contents, modes)]


def _picks(sizes: Sequence[int], limit: int, chance: random.Random) -> Iterator[tuple[int, ...]]:
    """Every combination where there are few; else the plain ones, each single deviation, and random ones."""
    if _product(sizes) <= limit:
        yield from itertools.product(*(range(size) for size in sizes))
        return
    none = tuple(0 for _ in sizes)
    every = tuple(size - 1 for size in sizes)
    plain = [none, every]
    for at, size in enumerate(sizes):
        plain += [(*none[:at], pick, *none[at + 1 :]) for pick in range(1, size)]
        plain.append((*every[:at], 0, *every[at + 1 :]))
    plain += [(*none[:at], *every[at:]) for at in range(1, len(sizes))]  # a prefix of the acts
    yield from plain[:2]
    yield from chance.sample(plain[2:], min(len(plain) - 2, limit // 2))
    for _ in range(limit // 2):
        yield tuple(chance.randrange(size) for size in sizes)


def _tree(
    recorder: Recorder, past: Sequence[Event], lost: set[int], chosen: Mapping[int, Version]
) -> dict[str, tuple[int, Version]]:
    live = {place: dict(names) for place, names in recorder.first_live.items()}
    versions = dict(recorder.first)
    for at, event in enumerate(past):
        if isinstance(event, Written):
            versions[event.object] = event.version
            if event.version.data is None:
                live.setdefault(event.object, {})
        elif isinstance(event, Names) and at not in lost:
            for place, name, number in event.sets:
                if number is None:
                    live.setdefault(place, {}).pop(name, None)
                else:
                    live.setdefault(place, {})[name] = number
    return walk(live, {**versions, **chosen})


def _digest(tree: Mapping[str, tuple[int, Version]]) -> str:
    total = hashlib.sha256()
    for name, (_, version) in sorted(tree.items()):
        total.update(
            f"{name}\0{version.mode}\0{'' if version.data is None else hashlib.sha256(version.data).hexdigest()}\0".encode()
        )
    return total.hexdigest()


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
