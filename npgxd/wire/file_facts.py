"""What ``stat`` says of files, as compact signatures; and one look at a whole tree.

Promise: a signature changes when a file is replaced or written to: it holds device, inode, size, and the times of the last change
of content and of anything else. A look opens no file. A rank makes one for each root at every start, over tens of thousands of
files, so it keeps no object of a file but its name and 40 bytes.
"""

# Paths are plain strings here: thousands are handled, and a Path for each would cost more than the work itself.
# ruff: noqa: PTH116

from __future__ import annotations

import hashlib
import os
import stat
import struct
from typing import Final, NamedTuple

QUIET_NS: Final = 2_000_000_000
"""How long a file must have been left alone before its times can be trusted: the coarsest file system clocks tick so slowly."""
SIGNATURE_BYTES: Final = 40

_SIGNATURE: Final = struct.Struct("=QQqqq")
_LAST_TIME: Final = 2**63 - 1
_MAX_DEPTH: Final = 64
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_MADE_BY_RUNNING: Final = "__pycache__"
"""Directories that appear when an implementation is merely used."""


def signature(facts: os.stat_result) -> bytes:
    """What changes when a file is replaced or written to: device, inode, size, mtime_ns, ctime_ns; 40 bytes."""
    try:
        return _SIGNATURE.pack(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    except struct.error:  # a time after the year 2262: it counts as one that is still to come, so the file is never trusted
        return _SIGNATURE.pack(facts.st_dev, facts.st_ino, facts.st_size, _LAST_TIME, _LAST_TIME)


def is_quiet(signatures: bytes, at: int) -> bool:
    """Whether every file of these signatures, one after the other, had been left alone long enough at the time ``at``."""
    numbers = memoryview(signatures).cast("q")
    return max([*numbers[3::5], *numbers[4::5]]) + QUIET_NS < at


class Seen(NamedTuple):
    """The plain files of a tree: their names within it, sorted, and their signatures in the same order."""

    names: list[str]
    signatures: list[bytes]
    device: int
    """Where the root itself lies."""

    def sign(self) -> str:
        """One signature over all names and signatures, 64 hexadecimal digits."""
        names = "\0".join(self.names).encode(errors="surrogateescape")
        made = hashlib.sha256(b"%d\0%b" % (len(self.names), names))
        made.update(b"".join(self.signatures))
        return made.hexdigest()

    def is_quiet(self, at: int) -> bool:
        """Whether no file in the tree was too young at the time ``at``."""
        return is_quiet(b"".join(self.signatures), at)


def look(root: str) -> Seen:
    """Every plain file under ``root``, or ``root`` itself under the empty name; none if there is nothing. OSError as it comes.

    Links are followed, but not back up; what leads nowhere does not count, nor does what running an implementation leaves.
    """
    names: list[str] = []
    signatures: list[bytes] = []
    try:
        facts = os.stat(root)
    except (FileNotFoundError, NotADirectoryError):
        return Seen(names, signatures, 0)
    if stat.S_ISREG(facts.st_mode):
        return Seen([""], [signature(facts)], facts.st_dev)
    if stat.S_ISDIR(facts.st_mode):
        ahead: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(root, "", ((facts.st_dev, facts.st_ino),))]
        while ahead:
            directory, prefix, above = ahead.pop()
            for name, inner in _look_into(directory, prefix, names, signatures):
                if inner not in above and len(above) < _MAX_DEPTH:  # a link may lead back up
                    ahead.append((f"{directory}/{name}", f"{prefix}{name}/", (*above, inner)))
    order = sorted(range(len(names)), key=names.__getitem__)  # directories list their names in any order
    return Seen([names[at] for at in order], [signatures[at] for at in order], facts.st_dev)


def _look_into(directory: str, prefix: str, names: list[str], signatures: list[bytes]) -> list[tuple[str, tuple[int, int]]]:
    """Note the files of one directory; what directories it holds, by name, device and inode."""
    inner: list[tuple[str, tuple[int, int]]] = []
    pack = _SIGNATURE.pack
    # By its descriptor, so that the system looks up one name for each file and not a whole path.
    opened = os.open(directory, _OPEN_DIRECTORY)
    try:
        with os.scandir(opened) as entries:
            for entry in entries:
                name = entry.name
                if name == _MADE_BY_RUNNING or name.endswith(".pyc"):
                    continue
                if entry.is_file():
                    facts = entry.stat()
                    try:  # as ``signature`` does, without the call
                        signatures.append(pack(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))
                    except struct.error:
                        signatures.append(signature(facts))
                    names.append(prefix + name)
                elif entry.is_dir():
                    facts = entry.stat()
                    inner.append((name, (facts.st_dev, facts.st_ino)))
    finally:
        os.close(opened)
    return inner
