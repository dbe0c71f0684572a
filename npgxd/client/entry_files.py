"""Entries on disk: read only if nobody else can have written them, and written so that no reader sees a part.

Promise: ``read`` returns bytes only from a regular file of mode 0600 that this user owns, reached without any link through directories
that this user owns and others cannot write; it looks at no byte before that is certain.  ``save`` makes the file whole or not
at all, with mode 0600 from its first byte, under a name that readers only ever see complete; directories that it makes are 0700.

The base (the user's ``cache_dir``) may itself be reached through links, as ``/home`` often is: what counts is where it leads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ATTEMPTS: Final = 5
MAX_BYTES: Final = 2**31
"""What an entry can have at most."""
_HINT: Final = "An entry is code: it is used only if this user alone can have written it. Remove it, or give another cache_dir"


class EntryRefused(NpgxError):
    """A file, or a directory on the way to it, that somebody else could have put there: nothing of it was read."""

    code = "ENTRY_REFUSED"
    exit_code = 77


def read(base: Path, parts: Sequence[str]) -> bytes:
    """The bytes of ``base/parts[0]/parts[1]/...``. FileNotFoundError if there is none, EntryRefused if it is not safely ours."""
    with _directory(base, parts[:-1], make=False) as directory:
        try:
            descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise _opened(error, parts[-1]) from error
        with os.fdopen(descriptor, "rb") as file:
            _check_file(os.fstat(descriptor), str(base.joinpath(*parts)))
            return file.read(MAX_BYTES + 1)


def save(base: Path, parts: Sequence[str], data: bytes) -> None:
    """Make the file, or put ``data`` in its place by one rename. OSError or EntryRefused if that cannot be done safely."""
    with _directory(base, parts[:-1], make=True) as directory:
        _sweep(directory, f".{parts[-1]}.")
        for attempt in range(_ATTEMPTS):
            try:
                _save(directory, parts[-1], data)
                break
            except FileNotFoundError:  # another writer swept the new file before it was locked
                if attempt == _ATTEMPTS - 1:
                    raise
        os.fsync(directory)


def link(base: Path, parts: Sequence[str], name: str, other: str) -> None:
    """Give the file ``name`` in the directory ``base/parts...`` a second name, unless that is taken."""
    with _directory(base, parts, make=False) as directory, suppress(FileExistsError):
        os.link(name, other, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)


def remove(base: Path, parts: Sequence[str], name: str) -> None:
    """Take a file away, if it is there."""
    with _directory(base, parts, make=False) as directory, suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def newest(base: Path, parts: Sequence[str]) -> list[str]:
    """The names in the directory ``base/parts...``, the one that was written last first."""
    with _directory(base, parts, make=False) as directory:
        written: dict[str, int] = {}
        for name in os.listdir(directory):  # noqa: PTH208 -- a directory that is held open, not a path
            with suppress(FileNotFoundError):
                written[name] = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns
    return sorted(written, key=lambda name: (-written[name], name))


def make_base(base: Path) -> None:
    """The user's ``cache_dir``, made if it is missing. OSError if it cannot be made or used, EntryRefused if others may write in it."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(base, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(f"{base} is not readable and writable for this process")
    with _directory(base, (), make=False):
        return


@contextmanager
def _directory(base: Path, parts: Sequence[str], *, make: bool) -> Iterator[int]:
    """A descriptor of ``base/parts...``, every step of it checked; nothing is looked up by a path that somebody could swap."""
    descriptor = os.open(base, _DIRECTORY)
    try:
        _check_directory(os.fstat(descriptor), str(base), group_may_write=True)
        at = str(base)
        for part in parts:
            at = f"{at}/{part}"
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
            try:
                below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                raise _opened(error, at) from error
            os.close(descriptor)
            descriptor = below
            _check_directory(os.fstat(descriptor), at, group_may_write=False)
        yield descriptor
    finally:
        os.close(descriptor)


def _save(directory: int, name: str, data: bytes) -> None:
    temporary = f".{name}.{os.urandom(8).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # says that its writer lives
            os.fchmod(descriptor, 0o600)  # whatever the umask takes away
            file.write(data)
            file.flush()
            os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _sweep(directory: int, prefix: str) -> None:
    """Take away what writers left that did not live to rename it: nobody holds its lock."""
    for name in os.listdir(directory):
        if name.startswith(prefix):
            with suppress(OSError):
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=directory)
                finally:
                    os.close(descriptor)


def _opened(error: OSError, path: str) -> Exception:
    if isinstance(error, FileNotFoundError):
        return error
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return EntryRefused(f"{path} is a link, or not a directory where one belongs", hint=_HINT, path=path)
    return EntryRefused(f"{path} cannot be opened: {error.strerror}", hint=_HINT, path=path)


def _check_directory(status: os.stat_result, path: str, *, group_may_write: bool) -> None:
    """The user's own directory may be their group's as well (umask 002); what is made here never is."""
    if status.st_uid not in {os.geteuid(), 0}:
        raise EntryRefused(f"{path} belongs to uid {status.st_uid}", hint=_HINT, path=path)
    others = stat.S_IWOTH if group_may_write else _OTHERS_WRITE
    if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
        raise EntryRefused(f"others may write in {path} (mode {stat.S_IMODE(status.st_mode):04o})", hint=_HINT, path=path)


def _check_file(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise EntryRefused(f"{path} is no regular file", hint=_HINT, path=path)
    if status.st_uid != os.geteuid():
        raise EntryRefused(f"{path} belongs to uid {status.st_uid}", hint=_HINT, path=path)
    if stat.S_IMODE(status.st_mode) != 0o600:  # noqa: PLR2004 -- the mode that entries have
        raise EntryRefused(f"{path} has mode {stat.S_IMODE(status.st_mode):04o} and not 0600", hint=_HINT, path=path)
    if status.st_size > MAX_BYTES:
        raise EntryRefused(f"{path} is larger than an entry can be", hint=_HINT, path=path)
