"""Taking things off the disk bit by bit, and the bound on what was found damaged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from npgxd.store.plain import CHUNK, chunks, open_plain, tree_bytes

if TYPE_CHECKING:
    from npgxd.store.state import StateDirectory

_FILES: Final = 16
"""Files that are unlinked between two yields."""


class Step(NamedTuple):
    """How far a long act is: what it is at, and how many of how many (0: not known).

    ``waits``: for something that others do; asked again at once it is no further.
    """

    what: str
    done: int
    total: int
    waits: bool = False


T = TypeVar("T")
Steps = Generator[Step, None, T]
"""A long act, bit by bit, and what it comes to."""


def remove_slowly(state: StateDirectory, path: Path, what: str) -> Steps[None]:
    """Remove a published tree: out of sight by one rename at once, then file by file."""
    yield from sweep_slowly(state, state.hide(path), what)


def sweep_slowly(state: StateDirectory, away: Path, what: str) -> Steps[None]:
    """Remove a tree, or a file, that is out of sight already."""
    removed = 0
    for directory, _, files in os.walk(away, topdown=False) if not away.is_symlink() else ():  # it would walk where that leads
        for name in files:
            state.disk.unlink(Path(directory, name))
            removed += 1
            if not removed % _FILES:
                yield Step(what, removed, 0)
    state.disk.remove_tree(away)


def bound_quarantine(state: StateDirectory, limit: int, *, dry_run: bool) -> Steps[int]:
    """Remove the oldest of what was found damaged until at most ``limit`` bytes are left; the bytes that are left."""
    found: list[tuple[int, str, int]] = []
    for entry in os.scandir(state.quarantine):
        found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name, tree_bytes(Path(entry.path))))
        yield Step("quarantine", len(found), 0)
    total = sum(size for _, _, size in found)
    for _, name, size in sorted(found):
        if total <= limit:
            break
        total -= size
        if not dry_run:
            state.disk.remove_tree(state.quarantine / name)
        yield Step("quarantine", 0, len(found))
    return total


def digest_slowly(path: Path, what: str) -> Steps[tuple[str, int]]:
    """sha256 and size of a plain file, a piece at a time; StoreError if it is none."""
    digest = hashlib.sha256()
    size = 0
    with open_plain(path) as fd:
        for piece in chunks(fd, path):
            digest.update(piece)
            size += len(piece)
            if len(piece) == CHUNK:
                yield Step(what, 0, 0)
    return digest.hexdigest(), size
