"""Reading what others made: plain files only, no links, nothing that blocks, nothing without a bound.

Compilers and clients can leave symbolic links, pipes and devices where a file is expected.  Everything here opens without following
links, looks at what was opened rather than at its name, and raises StoreError for anything that is not a plain file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK: Final = 1024 * 1024
SCARCE: Final = {
    errno.EMFILE: "The daemon is out of file descriptors: raise LimitNOFILE",
    errno.ENFILE: "The system is out of file descriptors: raise fs.file-max, or end what holds so many",
    errno.ENOMEM: "There is no memory for it: raise the daemon's MemoryMax, or end what takes so much",
}
"""What to do where the means to look at a file are lacking."""
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def open_plain(path: Path | str, *, beneath: Path | None = None, most: int | None = None) -> Iterator[int]:
    """A descriptor of the plain file ``path``; with ``beneath``, no directory between that root and the file may be a link.

    A file of more than ``most`` bytes is a StoreError, also one with nothing in them (a sparse file has any size for nothing).
    """
    with _told_of(path):
        fd = _open_beneath(beneath, Path(path)) if beneath is not None else os.open(path, _FLAGS)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise StoreError(f"{path} is not a plain file", path=str(path))
        if most is not None and facts.st_size > most:
            raise StoreError(f"{path} is larger than {most} bytes", path=str(path))
        yield fd
    finally:
        os.close(fd)


def read_plain(path: Path, limit: int, *, beneath: Path | None = None) -> bytes:
    """The bytes of the plain file ``path``; more than ``limit`` of them is a StoreError."""
    with open_plain(path, beneath=beneath) as fd:
        parts: list[bytes] = []
        size = 0
        for chunk in chunks(fd, path):
            size += len(chunk)
            if size > limit:
                raise StoreError(f"{path} is larger than {limit} bytes", path=str(path))
            parts.append(chunk)
    return b"".join(parts)


def digest_plain(path: Path, *, beneath: Path | None = None, most: int | None = None) -> tuple[str, int]:
    """sha256 (hexadecimal) and size of the plain file ``path``; StoreError if it has more than ``most`` bytes."""
    digest = hashlib.sha256()
    size = 0
    with open_plain(path, beneath=beneath, most=most) as fd:
        for chunk in chunks(fd, path):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def chunks(fd: int, path: Path) -> Iterator[bytes]:
    """What is left to read from ``fd``, piece by piece; read errors name ``path``."""
    while True:
        with _told_of(path):
            chunk = os.read(fd, CHUNK)
        if not chunk:
            return
        yield chunk


def read_at(fd: int, path: Path | str, count: int, start: int) -> bytes:
    """Up to ``count`` bytes from ``start`` on; read errors name ``path``."""
    with _told_of(path):
        return os.pread(fd, count, start)


def in_memory(fd: int, count: int, start: int) -> bool:
    """Whether these bytes can be read without waiting for the disk (preadv2(2), RWF_NOWAIT); True where the file system cannot tell."""
    piece = memoryview(bytearray(min(count, CHUNK)))
    end = start + count
    try:
        return all(
            os.preadv(fd, [piece[: end - at]], at, os.RWF_NOWAIT) == min(CHUNK, end - at) for at in range(start, end, CHUNK)
        )
    except BlockingIOError:
        return False
    except OSError:  # EOPNOTSUPP; anything else is told by the read itself
        return True


def tree_bytes(root: Path) -> int:
    """The bytes of a file, or of all files in a tree, as their sizes say; what cannot be looked at does not count."""
    total = 0
    places = [os.fspath(root)]
    while places:
        place = places.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        places.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except NotADirectoryError:
            total += os.lstat(place).st_size
        except OSError:
            continue
    return total


def _open_beneath(root: Path, path: Path) -> int:
    """Open ``path`` below ``root``, one component at a time, following no link on the way."""
    inner = PurePosixPath(path.relative_to(root) if path.is_absolute() else path)
    if not inner.parts or ".." in inner.parts:
        raise StoreError(f"{path} leaves {root}", path=str(path))
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in inner.parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = deeper
        return os.open(inner.parts[-1], _FLAGS, dir_fd=directory)
    finally:
        os.close(directory)


@contextmanager
def _told_of(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror}", hint=SCARCE.get(error.errno or 0, ""), path=str(path), errno=error.errno
        ) from error
