"""Content digests that are not computed twice: a memo from what ``stat`` says of a file to the sha256 of its bytes.

Promise: a digest that the memo gives is the digest of the bytes that are there now. An entry is trusted only where the file
had been quiet for two seconds before it was read; a younger file can be changed again within the clock's granularity without
any sign in its times ("racily clean", as git calls it), so it is read again until it is old enough. The memo on disk is a
convenience: it is read only if it belongs to this user and no one else can write it, and nothing fails when it cannot be read
or written.
"""

# Paths are plain strings here: thousands are handled, and a Path for each would cost more than the work itself.
# ruff: noqa: PTH103, PTH105, PTH108, PTH116

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Signature = tuple[int, int, int, int, int]
"""device, inode, size, mtime_ns, ctime_ns."""

Found = tuple[str, str, os.stat_result]
"""A file in a tree: its name within it, its path, its facts."""

QUIET_NS: Final = 2_000_000_000
"""How long a file must have been left alone before its times can be trusted: the coarsest file system clocks tick so slowly."""

_SCHEMA: Final = 1
_MAX_ENTRIES: Final = 300_000
_MAX_BYTES: Final = 128 * 1024 * 1024
_MAX_DEPTH: Final = 64
_ATTEMPTS: Final = 3
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_READ_MEMO: Final = _OPEN | os.O_NOFOLLOW
_MADE_BY_RUNNING: Final = ("__pycache__",)
"""Directories that appear when an implementation is merely used."""


def signature(facts: os.stat_result) -> Signature:
    """What changes when a file is replaced or written to."""
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


class StatMemo:
    """Digests of files and of trees. ``path`` is where they are kept between processes; None keeps them in this process alone.

    Digests of whole trees lie in the file ``path``, which is small and read by every rank; those of single files beside it, in
    ``<path>.files``, which is read only when a tree has changed.  ``now`` is the wall clock in nanoseconds, as files carry it.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], int] = time.time_ns) -> None:
        self._trees = _Kept(path)
        self._files = _Kept(path.with_name(path.name + ".files") if path is not None else None)
        self._now = now
        self.hashed = 0
        """How many files were read so far; for whoever wants to know what the memo spared."""

    def digest(self, path: str) -> str | None:
        """sha256 of the plain file ``path`` (links are followed); None if there is none. OSError if it cannot be read."""
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._digest(path, facts) if stat.S_ISREG(facts.st_mode) else None

    def tree(self, root: str) -> str:
        """One digest over names and bytes of all plain files under ``root``, or of the file ``root``; empty if there are none.

        Links are followed; what running an implementation leaves beside it (``__pycache__``) does not count.  Where ``root`` lies
        does not count either.  OSError if anything in it cannot be read, or if it does not hold still.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._tree(root)
            except FileNotFoundError:  # something went between the look at its directory and the look at itself
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError  # pragma: no cover -- the loop returns or raises

    def save(self) -> None:
        """Keep what was learned for the next process, if that is possible."""
        self._trees.save()
        self._files.save()

    def _tree(self, root: str) -> str:
        began = self._now()
        found = sorted(walk(root), key=_name)
        if not found:
            return ""
        seen = "\n".join([f"{name}\0{signature(facts)}" for name, _, facts in found])
        sign = hashlib.sha256(seen.encode(errors="surrogateescape")).hexdigest()
        known = self._trees.get(root)
        if known is not None and known[0] == sign:
            return str(known[1])
        whole = hashlib.sha256()
        for name, path, facts in found:
            whole.update(f"{name}\0{self._digest(path, facts)}\n".encode(errors="surrogateescape"))
        made = whole.hexdigest()
        if all(_quiet(signature(facts), began) for _, _, facts in found):
            self._trees.put(root, [sign, made])
        return made

    def _digest(self, path: str, facts: os.stat_result) -> str:
        sign = signature(facts)
        known = self._files.get(path)
        if known is not None and tuple(known[:-1]) == sign:
            return str(known[-1])
        for _ in range(_ATTEMPTS):
            began = self._now()
            made, sign, steady = _read_digest(path)
            self.hashed += 1
            if steady:
                break
        if steady and _quiet(sign, began):
            self._files.put(path, [*sign, made])
        return made


def walk(root: str) -> list[Found]:
    """Every plain file under ``root``: its name within it, its path and its facts; in no order. OSError as it comes."""
    try:
        facts = os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[Found] = []
    if stat.S_ISREG(facts.st_mode):
        found.append(("", root, facts))
    elif stat.S_ISDIR(facts.st_mode):
        _walk(root, "", ((facts.st_dev, facts.st_ino),), found)
    return found


def _walk(directory: str, prefix: str, above: tuple[tuple[int, int], ...], found: list[Found]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name in _MADE_BY_RUNNING or name.endswith(".pyc"):
                continue
            try:
                facts = entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    continue  # it leads nowhere
                raise
            if stat.S_ISREG(facts.st_mode):
                found.append((prefix + name, entry.path, facts))
            elif stat.S_ISDIR(facts.st_mode):
                identity = (facts.st_dev, facts.st_ino)
                if identity not in above and len(above) < _MAX_DEPTH:  # a link may lead back up
                    _walk(entry.path, f"{prefix}{name}/", (*above, identity), found)


def _name(file: Found) -> str:
    return file[0]


def _quiet(sign: Signature, at: int) -> bool:
    """Whether a file with this signature had been left alone long enough at the time ``at``."""
    return max(sign[3], sign[4]) + QUIET_NS < at


def _read_digest(path: str) -> tuple[str, Signature, bool]:
    """Digest, signature, and whether the file stayed as it was meanwhile."""
    fd = os.open(path, _OPEN)
    with os.fdopen(fd, "rb", buffering=0) as opened:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise FileNotFoundError(f"{path} is no longer a plain file")
        made = hashlib.file_digest(opened, "sha256").hexdigest()
        sign = signature(os.fstat(fd))
    return made, sign, sign == signature(before)


class _Kept:
    """One file of entries, read when first asked for."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, list[object]] | None = None
        self._new: dict[str, list[object]] = {}

    def get(self, name: str) -> list[object] | None:
        if name in self._new:
            return self._new[name]
        if self._entries is None:
            self._entries = _load(self._path)
        return self._entries.get(name)

    def put(self, name: str, entry: list[object]) -> None:
        self._new[name] = entry

    def save(self) -> None:
        """Merge with what others saved meanwhile, and replace the file in one step."""
        if not self._new:
            return
        merged = {**_load(self._path), **self._new}
        if len(merged) > _MAX_ENTRIES:
            merged = {**(self._entries or {}), **self._new} if len(self._entries or {}) < _MAX_ENTRIES // 2 else dict(self._new)
        self._entries, self._new = merged, {}
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):  # without it, the next process computes again
                _store(self._path, merged)


def _load(path: Path | None) -> dict[str, list[object]]:
    """The entries of a memo file; none if it is absent, foreign, writable by others, too large or of another form."""
    if path is None:
        return {}
    try:
        fd = os.open(path, _READ_MEMO)
        with os.fdopen(fd, "rb") as opened:
            facts = os.fstat(fd)
            if (
                not stat.S_ISREG(facts.st_mode)
                or facts.st_uid != os.geteuid()
                or facts.st_mode & 0o077
                or facts.st_size > _MAX_BYTES
            ):
                return {}
            document = json.loads(opened.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA or not isinstance(document.get("entries"), dict):
        return {}
    return {name: entry for name, entry in document["entries"].items() if isinstance(entry, list) and entry}


def _store(path: Path, entries: dict[str, list[object]]) -> None:
    os.makedirs(path.parent, mode=0o700, exist_ok=True)
    text = json.dumps({"schema": _SCHEMA, "entries": entries}, separators=(",", ":"))
    temporary = str(path.with_name(f".{path.name}.{os.urandom(8).hex()}"))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as opened:
            opened.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
