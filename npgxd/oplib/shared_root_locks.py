"""The two locks of a shared root: ours, which makes one npgxd its only one, and the vendor's, where there is one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout

from npgxd.oplib.shared_root_place import LOCK_NAME, InUse, LibraryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VENDOR_LOCK: Final = "config/static_kernel.lock"
_POLL_S: Final = 0.05
_MODE: Final = 0o660
"""Of our own lock: who can open a file can lock it, and whoever may not write to the root has no business with it."""


class RootLock:
    """The lock file ``ai_core/.npgxd.lock``, held for as long as this daemon works in the root.

    It is found by where it lies, so every spelling of a root has the same one; it goes when somebody removes the tree, and is then
    made and taken anew.
    """

    def __init__(self, ai_core: Path) -> None:
        self._path = ai_core / LOCK_NAME
        self._lock: FileLock | None = None
        self._taken: tuple[int, int] | None = None

    def take(self) -> bool:
        """Hold it; True if it was not held before. LibraryError: another npgxd has it."""
        if self._lock is not None and self._taken == self._identity():
            return False
        self.release()
        lock = FileLock(self._path, timeout=0, mode=_MODE, thread_local=False, fallback_to_soft=False, preserve_lock_file=True)
        try:
            lock.acquire()
        except Timeout:
            raise InUse(
                f"another npgxd installs into this op library (it holds {self._path})",
                hint="one npgxd serves a node: stop the other one, or give it another CANN",
            ) from None
        except OSError as error:
            raise LibraryError(
                f"cannot lock {self._path}: {error.strerror}", hint="check that its file system has locks"
            ) from error
        self._lock, self._taken = lock, self._identity()
        return True

    def release(self) -> None:
        """Give it up."""
        if self._lock is not None:
            self._lock.release()
        self._lock = self._taken = None

    def _identity(self) -> tuple[int, int] | None:
        try:
            facts = self._path.lstat()
        except OSError:
            return None
        return facts.st_dev, facts.st_ino


@contextlib.contextmanager
def vendor_lock(ai_core: Path, patience_s: float) -> Iterator[None]:
    """Hold the vendor's lock file, where there is one; LibraryError if it cannot be had in time.

    Of which kind its lock is cannot be told without a node (docs/cann.md, section 9): so a ``flock`` and a POSIX lock are both
    taken, and neither is waited for while the other is held.
    """
    path = ai_core / VENDOR_LOCK
    end = time.monotonic() + patience_s
    fd = _taken(path)
    while fd == _BUSY:
        if time.monotonic() >= end:
            raise LibraryError(
                f"the vendor's lock {path} was held for {patience_s:g} s",
                hint="an installer is at work, or hangs: npgxd tries again by itself",
            )
        time.sleep(_POLL_S)
        fd = _taken(path)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


_NONE: Final = -1
_BUSY: Final = -2


def _taken(path: Path) -> int:
    """A descriptor that has both kinds of lock; _NONE: there is no such file; _BUSY: somebody has one."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    writable = True
    try:
        try:
            fd = os.open(path, os.O_RDWR | flags)
        except PermissionError:
            writable = False  # a POSIX lock to write needs a descriptor that may
            fd = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        return _NONE
    except OSError as error:
        raise LibraryError(
            f"the vendor's lock {path} cannot be opened: {error.strerror}", hint="give npgxd's user access to it"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if writable:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), path.stat()):
            return fd
    except OSError:  # held by somebody, or removed meanwhile
        pass
    os.close(fd)
    return _BUSY
