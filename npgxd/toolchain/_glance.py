"""One look at the file system: every path is looked at once, and who used what is remembered.

An op's fingerprint follows from what was seen on the way to it: files that were there, files that were looked for in vain, and
directories. If all of that is seen the same again, the fingerprint still holds; that is the whole of a refresh.
"""

# Paths are plain strings here: thousands are handled, and a Path for each would cost more than the work itself.
# ruff: noqa: PTH112, PTH123, PTH208

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

from npgxd.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npgxd.wire.stat_memo import StatMemo

_MAX_DEPTH: Final = 32
_MAX_SOURCE_BYTES: Final = 64 * 1024 * 1024


class MovedError(Exception):
    """A file was changed between two looks at it."""


class Glance:
    """What is there now. ToolchainError for what cannot be read: then no fingerprint can be told."""

    def __init__(self, memo: StatMemo) -> None:
        self._memo = memo
        self._contents: dict[str, str | None] = {}
        self._names: dict[str, tuple[str, ...] | None] = {}
        self._sets: dict[str, frozenset[str]] = {}
        self._trees: dict[str, str] = {}

    def content(self, path: str) -> str | None:
        """The digest of a plain file; None if there is none."""
        if path not in self._contents:
            try:
                self._contents[path] = self._memo.digest(path) if self.has(path) else None
            except FileNotFoundError:
                self._contents[path] = None
            except OSError as error:
                raise _unreadable(path, error) from error
        return self._contents[path]

    def names(self, path: str) -> tuple[str, ...] | None:
        """What a directory holds, sorted; None if there is no such directory."""
        if path not in self._names:
            try:
                self._names[path] = tuple(sorted(os.listdir(path)))
            except (FileNotFoundError, NotADirectoryError):
                self._names[path] = None
            except OSError as error:
                raise _unreadable(path, error) from error
        return self._names[path]

    def has(self, path: str) -> bool:
        """Whether a directory has such a name. Most paths that are tried are not there, and one listing says so for all of them."""
        directory, _, name = path.rpartition("/")
        if directory not in self._sets:
            self._sets[directory] = frozenset(self.names(directory or "/") or ())
        return name in self._sets[directory]

    def tree(self, path: str) -> str:
        """One digest over everything below ``path``; empty for nothing."""
        if path not in self._trees:
            try:
                self._trees[path] = self._memo.tree(path)
            except OSError as error:
                raise _unreadable(path, error) from error
        return self._trees[path]


class Look:
    """A glance, and a note of everything that one resolution saw through it."""

    def __init__(self, glance: Glance) -> None:
        self._glance = glance
        self._contents: dict[str, str | None] = {}
        self._names: dict[str, tuple[str, ...] | None] = {}
        self._has: dict[str, bool] = {}
        self._trees: dict[str, str] = {}

    def content(self, path: str) -> str | None:
        """As ``Glance.content``."""
        self._contents[path] = seen = self._glance.content(path)
        return seen

    def names(self, path: str) -> tuple[str, ...]:
        """As ``Glance.names``; empty for no directory."""
        self._names[path] = seen = self._glance.names(path)
        return seen or ()

    def tree(self, path: str) -> str:
        """As ``Glance.tree``."""
        self._trees[path] = seen = self._glance.tree(path)
        return seen

    def has(self, path: str) -> bool:
        """As ``Glance.has``."""
        self._has[path] = seen = self._glance.has(path)
        return seen

    def holds(self, glance: Glance) -> bool:
        """Whether everything is seen the same through ``glance``."""
        return (
            all(glance.has(path) == seen for path, seen in self._has.items())
            and all(glance.content(path) == seen for path, seen in self._contents.items())
            and all(glance.names(path) == seen for path, seen in self._names.items())
            and all(glance.tree(path) == seen for path, seen in self._trees.items())
        )

    def files(self, directory: str, above: tuple[str, ...] = ()) -> Iterator[str]:
        """Every plain file under ``directory``, without what running an implementation leaves there."""
        if not self.has(directory) or len(above) > _MAX_DEPTH:
            return
        real = os.path.realpath(directory)
        if real in above:  # a link may lead back up
            return
        for name in self.names(directory):
            if name == "__pycache__" or name.endswith(".pyc"):
                continue
            path = f"{directory}/{name}"
            if os.path.isdir(path):
                yield from self.files(path, (*above, real))
            elif self.content(path) is not None:
                yield path

    def read(self, path: str) -> bytes:
        """The bytes whose digest ``content`` gave; MovedError if they are others by now."""
        return read_as(path, self.content(path))


def read_as(path: str, digest: str | None) -> bytes:
    """The bytes of ``path`` if their sha256 is ``digest``; MovedError if not."""
    try:
        with open(path, "rb") as opened:
            content = opened.read(_MAX_SOURCE_BYTES)
    except OSError as error:
        raise MovedError(path) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise MovedError(path)
    return content


def _unreadable(path: str, error: OSError) -> ToolchainError:
    return ToolchainError(
        f"cannot read {path}: {error.strerror}",
        hint="the daemon must be able to read the whole CANN installation; check owner and mode",
        path=path,
    )
