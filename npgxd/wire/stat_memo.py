"""Content digests that are not computed twice: a memo from what ``stat`` says of a file to the sha256 of its bytes.

Promise: a digest that the memo gives is the digest of the bytes that are there now. An entry is trusted only where the file
had been quiet for two seconds before it was read; a younger file can be changed again within the clock's granularity without
any sign in its times ("racily clean", as git calls it), so it is read again until it is old enough. The memo on disk is a
convenience: it is read only if it belongs to this user and no one else can write it, and nothing fails when it cannot be read
or written.
"""

# Paths are plain strings here: thousands are handled, and a Path for each would cost more than the work itself.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import stat
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.wire.file_facts import SIGNATURE_BYTES, Seen, is_quiet, look, signature
from npgxd.wire.memo_files import MemoFiles, Told
from npgxd.wire.memo_turn import Turn, turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ATTEMPTS: Final = 3
_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK: Final = 1024 * 1024


class _Read(NamedTuple):
    """What was read of a file: its digest, the signature it had then, and whether that may be remembered."""

    digest: bytes
    signature: bytes
    lasting: bool


class StatMemo:
    """Digests of files and of trees. ``path`` is a directory where they are kept between processes; None keeps them in this one.

    Each tree has a file there, of which a rank reads one line unless the tree has changed (``memo_files``).  Where several
    processes meet a changed tree at once, one reads it and the others wait for what it finds, within bounds (``memo_turn``).
    ``now`` is the wall clock in nanoseconds, as files carry it.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], int] = time.time_ns) -> None:
        self._kept = MemoFiles(str(path)) if path is not None else None
        self._now = now
        self._files: dict[str, bytes] = {}
        """The entries by path, of all files that this process knows."""
        self._single: dict[str, bytes] | None = None
        """Of these, the ones that are kept as single files."""
        self._learned: dict[str, bytes] = {}
        self._trees: dict[str, Told] = {}
        self._loaded: set[str] = set()
        self._remembered = 0
        self._wrote = False
        self.hashed = 0
        """How many files were read so far; for whoever wants to know what the memo spared."""

    def digest(self, path: str) -> str | None:
        """sha256 of the plain file ``path`` (links are followed); None if there is none. OSError if it cannot be read."""
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(facts.st_mode):
            return None
        if self._single is None:
            self._single = self._kept.single_files() if self._kept is not None else {}
            self._files = {**self._single, **self._files}
        found = self._digest(path, signature(facts))
        entry = found.signature + found.digest
        if found.lasting and self._single.get(path) != entry:
            self._single[path] = self._learned[path] = entry
        return found.digest.hex()

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
        """Keep what was learned of single files for the next process, and forget what has gone, if that is possible."""
        if self._kept is None:
            return
        if self._learned:
            self._kept.keep_single_files(self._learned)
            self._learned = {}
            self._wrote = True
        if self._wrote:
            self._kept.forget(self._now())
            self._wrote = False

    def _tree(self, root: str) -> str:
        began = self._now()
        seen = look(root)
        if not seen.names:
            return ""
        sign = seen.sign()
        if self._knows(root, sign):
            return self._trees[root].digest
        quiet = seen.is_quiet(began)
        if self._kept is None or not quiet:  # of a young tree nobody can tell the others
            return self._read_tree(root, seen, sign if quiet else "", Turn(None))
        with turn(self._kept.lock_path(root), lambda: self._knows(root, sign)) as mine:
            if self._knows(root, sign):
                return self._trees[root].digest
            return self._read_tree(root, seen, sign, mine)

    def _knows(self, root: str, sign: str) -> bool:
        """Whether the digest of the tree with this signature is known here, or has been written meanwhile."""
        known = self._trees.get(root)
        if (known is None or known.sign != sign) and self._kept is not None:
            told = self._kept.told(root, self._now())
            if told is not None:
                self._trees[root] = known = told
        return known is not None and known.sign == sign

    def _read_tree(self, root: str, seen: Seen, sign: str, mine: Turn) -> str:
        """Digest the tree, reading what is not known; what was learned is written at once, for those who wait."""
        self._load(root)
        known = self._remembered
        whole, entries = sha256(), {}
        for name, signed in zip(seen.names, seen.signatures, strict=True):
            found = self._digest(f"{root}/{name}" if name else root, signed)
            whole.update(f"{name}\0{found.digest.hex()}\n".encode(errors="surrogateescape"))
            if found.lasting:
                entries[name] = found.signature + found.digest
            if found.signature != signed:
                sign = ""  # it is another tree by now than the one that was looked at
            mine.show()
        told = Told(root, seen.device, sign, whole.hexdigest())
        if sign:
            self._trees[root] = told
        if self._kept is not None and entries and (sign or self._remembered != known):
            self._kept.keep_tree(told, entries)
            self._wrote = True
        return told.digest

    def _load(self, root: str) -> None:
        """What other processes know of the files in ``root``."""
        if self._kept is not None and root not in self._loaded:
            self._loaded.add(root)
            for name, entry in self._kept.files_of(root).items():
                self._files.setdefault(f"{root}/{name}" if name else root, entry)

    def _digest(self, path: str, signed: bytes) -> _Read:
        known = self._files.get(path)
        if known is not None and known.startswith(signed):
            return _Read(known[SIGNATURE_BYTES:], signed, lasting=True)
        for _ in range(_ATTEMPTS):
            began = self._now()
            digest, signed, steady = _read_digest(path)
            self.hashed += 1
            if steady:
                break
        lasting = steady and is_quiet(signed, began)
        if lasting:
            self._files[path] = signed + digest
            self._remembered += 1
        return _Read(digest, signed, lasting)


def _read_digest(path: str) -> tuple[bytes, bytes, bool]:
    """Digest, signature, and whether the file stayed as it was meanwhile."""
    fd = os.open(path, _OPEN)
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise FileNotFoundError(f"{path} is no longer a plain file")
        made = sha256()
        while chunk := os.read(fd, min(before.st_size + 1, _CHUNK)):
            made.update(chunk)
        signed = signature(os.fstat(fd))
    finally:
        os.close(fd)
    return made.digest(), signed, signed == signature(before)
