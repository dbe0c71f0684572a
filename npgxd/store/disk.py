"""The only module that writes, renames, fsyncs, links or removes published state.

Promise: a file or directory that appears under its final name is complete, has the mode that was asked for whatever the umask, and
(where ``durable``) is on the disk before the call returns.  Every act goes through :meth:`Disk.step` first, so that a test can stand
in for the disk and fail, or end the process, at any one of them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.store.plain import SCARCE, chunks, open_plain
from npgxd.store.under_way import UnderWay

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MODE: Final = 0o644
DIRECTORY_MODE: Final = 0o755
TEMPORARY_PREFIX: Final = ".npgxd-"

_FULL = "The disk that holds the state directory is full or over quota: free space there, or move state_dir to a larger disk"
_HINTS: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "The file system is mounted read-only: remount it read-write, or set another state_dir",
    errno.EACCES: "Give the daemon's user write access to it, or set another state_dir",
    errno.EPERM: "Give the daemon's user write access to it, or set another state_dir",
    errno.EIO: "The disk reports an input/output error: look into the kernel log, and do not trust this disk",
    errno.ENAMETOOLONG: "Use a shorter state_dir",
    **SCARCE,
}
_DEEP: Final = 64
"""Directories within each other that are held open at once."""
_LINK_UNSUPPORTED: Final = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP})


@contextlib.contextmanager
def explained(operation: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the operation, the path and what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {operation} {path}: {error.strerror or error}",
            hint=_HINTS.get(error.errno or 0, ""),
            path=str(path),
            errno=error.errno,
        ) from error


class Disk:
    """The disk as it is. Subclasses may override :meth:`step`; nothing else is meant to be replaced."""

    def __init__(self) -> None:
        self.under_way = UnderWay()
        """The acts that have not ended yet: where a disk hangs, that is where."""

    def step(self, operation: str, path: Path) -> None:
        """Called before each act on the disk: write, fsync, rename, link, mkdir, chmod, unlink, rmdir."""

    # ---- files -------------------------------------------------------------------------------------------------------

    def write_file(
        self, path: Path, data: bytes, mode: int = FILE_MODE, *, staging: Path | None = None, durable: bool = True
    ) -> None:
        """Put ``data`` at ``path`` by one rename, replacing what was there.

        The temporary file lies in ``staging`` (same file system), else beside ``path``.
        """
        temporary = self._temporary(path, data, mode, staging, durable=durable)
        with self._discarded_on_error(temporary), explained("put in place", path), self._act("rename", path):
            os.rename(temporary, path)
        if durable:
            self.fsync_directory(path.parent)

    def rewrite_staged(self, path: Path, data: bytes) -> None:
        """Give a file that nobody can see yet other content, in place and not forced to the disk: ``fsync_file`` does that.

        The names in its directory stay as they are, so that they need no fsync again.
        """
        with self._act("write", path), explained("write", path):
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _write_all(fd, data)
                _start_writing(fd)
            finally:
                os.close(fd)

    def append_staged(self, path: Path, data: bytes, mode: int = FILE_MODE) -> None:
        """Put ``data`` at the end of a file that nobody can see yet, which is made if it is missing; not forced to the disk.

        It is sent on its way there, so that the ``fsync_file`` at the end has little left to wait for.
        """
        with explained("write", path):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                with self._new_file(path, mode) as fd, self.under_way.act("write", path):
                    _write_all(fd, data)
                    _start_writing(fd)
                return
            try:
                with self._act("write", path):
                    _write_all(fd, data)
                    _start_writing(fd)
            finally:
                os.close(fd)

    def copy_file(
        self,
        source: Path,
        target: Path,
        mode: int = FILE_MODE,
        *,
        beneath: Path | None = None,
        durable: bool = True,
        most: int | None = None,
    ) -> tuple[str, int]:
        """Copy a plain file, of at most ``most`` bytes, to a new name; its sha256 and size, taken while copying."""
        digest = hashlib.sha256()
        size = 0
        reading = open_plain(source, beneath=beneath, most=most)
        with reading as fd, explained("write", target), self._new_file(target, mode) as out:
            for chunk in chunks(fd, source):
                digest.update(chunk)
                size += len(chunk)
                with self.under_way.act("write", target):
                    _write_all(out, chunk)
            if durable:
                with self._act("fsync", target):
                    os.fsync(out)
        return digest.hexdigest(), size

    def link_or_copy(self, source: Path, target: Path) -> bool:
        """Make ``target`` the same file as ``source``; True if it is a hard link, False where it had to be a copy."""
        try:
            with self._act("link", target):
                os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _LINK_UNSUPPORTED:
                with explained("link", target):
                    raise
        else:
            return True
        self.copy_file(source, target, durable=False)
        return False

    def allocate(self, path: Path, size: int) -> None:
        """A new file of ``size`` bytes that nobody reads, with all its blocks; nothing is left of it where they are not to be had."""
        trouble, act = explained("keep space at", path), self.under_way.act("keep space at", path)
        with self._discarded_on_error(path), trouble, self._new_file(path, 0o600) as fd, act:
            os.posix_fallocate(fd, 0, size)

    def fsync_file(self, path: Path) -> None:
        """The content of a plain file reaches the disk."""
        with open_plain(path) as fd, explained("fsync", path), self._act("fsync", path):
            os.fsync(fd)

    def unlink(self, path: Path, *, durable: bool = False) -> bool:
        """Remove one name; False if it was not there."""
        try:
            with self._act("unlink", path):
                os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError:
            with explained("remove", path):
                raise
        if durable:
            self.fsync_directory(path.parent)
        return True

    # ---- directories -------------------------------------------------------------------------------------------------

    def make_directory(self, path: Path, mode: int = DIRECTORY_MODE, *, exist_ok: bool = False) -> bool:
        """Make one directory with exactly ``mode``; True if it is new. What exists must be a directory of ours, not a link."""
        with self._act("mkdir", path), explained("make directory", path):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if not exist_ok:
                    raise
                facts = os.lstat(path)
                if not stat.S_ISDIR(facts.st_mode):
                    raise StoreError(f"{path} is in the way: it is not a directory", path=str(path)) from None
                if stat.S_IMODE(facts.st_mode) != mode:  # a crash came between mkdir and chmod, or somebody changed it
                    os.chmod(path, mode)
                return False
            os.chmod(path, mode)
        return True

    def set_mode(self, path: Path, mode: int) -> None:
        """Give a file or directory of ours exactly ``mode``."""
        with self._act("chmod", path), explained("change the mode of", path):
            os.chmod(path, mode)

    def fsync_directory(self, path: Path) -> None:
        """The names in a directory reach the disk; the state directory itself may be reached through a link."""
        with self._act("fsync", path), explained("fsync", path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def fsync_tree(self, root: Path) -> None:
        """Every file and directory below ``root``, and ``root`` itself, reach the disk, the deepest first.

        All files are sent on their way before the first is waited for, so that they share the file system's commits: for a
        hundred small kernels that is a tenth of the time.
        """
        walked = list(os.walk(root, topdown=False, followlinks=False, onerror=_raise))
        for directory, _, files in walked:
            for name in files:
                with open_plain(Path(directory, name)) as fd:
                    _start_writing(fd)
        for directory, _, files in walked:
            for name in files:
                self.fsync_file(Path(directory, name))
            self.fsync_directory(Path(directory))

    def publish(self, staged: Path, final: Path, *, durable: bool = True) -> bool:
        """``staged`` (file or whole tree, complete) becomes ``final`` by one rename; False, and nothing changed, if that exists.

        The caller is the only writer (it holds the instance lock), so looking first is enough for files.
        """
        if final.is_symlink() or final.is_file():
            return False
        try:
            with self._act("rename", final):
                os.rename(staged, final)
        except OSError as error:
            # The same words are said where the place itself is no directory; then nothing is there, and nobody may think so.
            if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR} and os.path.lexists(final):
                return False
            with explained("publish", final):
                raise
        if durable:
            self.fsync_directory(final.parent)
        return True

    def move(self, source: Path, target: Path, *, durable: bool = True) -> None:
        """Rename ``source`` to the new name ``target``; afterwards a reader of the old name finds nothing at all."""
        with self._act("rename", target), explained("move", source):
            os.rename(source, target)
        if durable:
            self.fsync_directory(source.parent)
            self.fsync_directory(target.parent)

    def remove_tree(self, path: Path) -> bool:
        """Remove ``path`` and all below it, following no link, whatever modes and however deep; False if it was not there."""
        with explained("remove", path):
            try:
                facts = os.lstat(path)
            except FileNotFoundError:
                return False
            if not stat.S_ISDIR(facts.st_mode):
                return self.unlink(path)
            parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._remove_below(parent, path.name, path, ())
            finally:
                os.close(parent)
        return True

    # ---- inside ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _act(self, operation: str, path: Path) -> Iterator[None]:
        """A step that the disk may take its time for."""
        with self.under_way.act(operation, path):
            self.step(operation, path)
            yield

    def _remove_below(self, parent: int, name: str, path: Path, above: tuple[int, ...]) -> None:
        """Remove directory ``name`` of descriptor ``parent``; ``path`` is for people, ``above`` are the tree's directories above.

        What lies too deep is first moved up to the tree's root: a program can nest directories deeper than any path, than the
        interpreter's stack, and than a process has descriptors.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=parent)
        except PermissionError:  # a compiler may leave a directory that even its owner cannot read
            os.chmod(name, 0o700, dir_fd=parent)
            fd = os.open(name, flags, dir_fd=parent)
        try:
            os.fchmod(fd, 0o700)
            while entries := _entries(fd):
                for inner, is_directory in entries:
                    if not is_directory:
                        with self._act("unlink", path / inner):
                            os.unlink(inner, dir_fd=fd)
                    elif len(above) < _DEEP:
                        self._remove_below(fd, inner, path / inner, (*above, fd))
                    else:
                        with self._act("rename", path / inner):
                            os.chmod(inner, 0o700, dir_fd=fd)  # a directory that may not be written to cannot be moved either
                            os.rename(inner, f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=above[0])
                if above:
                    break
        finally:
            os.close(fd)
        with self._act("rmdir", path):
            os.rmdir(name, dir_fd=parent)

    def _temporary(self, path: Path, data: bytes, mode: int, staging: Path | None, *, durable: bool) -> Path:
        """A complete file under a name that nobody looks for."""
        temporary = (staging or path.parent) / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        with self._discarded_on_error(temporary), explained("write", path), self._new_file(temporary, mode) as fd:
            with self.under_way.act("write", path):
                _write_all(fd, data)
            if durable:
                with self._act("fsync", path):
                    os.fsync(fd)
        return temporary

    @contextlib.contextmanager
    def _new_file(self, path: Path, mode: int) -> Iterator[int]:
        with self._act("write", path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, mode)  # before the fsync of whoever writes here: a mode can be lost as bytes can
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _discarded_on_error(self, temporary: Path) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _entries(fd: int) -> list[tuple[str, bool]]:
    """The names in a directory, and which of them are directories."""
    with os.scandir(fd) as found:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _start_writing(fd: int) -> None:
    """Send what is dirty of a file on its way to the disk without waiting for it."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # that is what this does on Linux, for pages that are dirty


def _raise(error: OSError) -> None:
    with explained("list", Path(error.filename or "?")):
        raise error


DISK: Final = Disk()
