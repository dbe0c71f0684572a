"""A model of what a file system may hold after a power loss, pessimistic where POSIX leaves room.

:class:`tests.crash.recording.Recorder` writes down every act of a scenario on a real directory.  :func:`crashes` then tells the states
that may be found afterwards, and :func:`materialise` makes one of them.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.crash.recording import CatalogChanged, Event, Mark, Names, Recorder, Synced, Version, Written, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

CATALOGS = ("last", "first", "none", "garbage")


@dataclass(frozen=True, slots=True)
class Crash:
    """One state that may be found: path -> version, what was acknowledged by then, and how it came about, for people."""

    tree: Mapping[str, tuple[int, Version]]
    marks: frozenset[str]
    story: str
    catalog: Mapping[str, bytes]


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
