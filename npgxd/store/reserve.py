"""The reserve: a little of the state directory's disk, kept so that space can be made where there is none.

Promise: on a disk that others have filled to the last byte a start, a pass of removal and what an administrator removes still have the
room that they need first: a row leaves the catalog, by way of its log, before a file goes, and what goes is moved out of sight before.
Between giving the reserve back and using it others may take it; then space has to be freed by hand, as without one.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

NAME: Final = "reserve"
SIZES: Final = (1 << 20, 1 << 19, 1 << 18, 1 << 17)
"""Bytes. As much as is free of these, the most first: a start takes 64 KiB, a pass that removes 64 kernels about 100."""


class Reserve:
    """The file ``reserve`` of one state directory."""

    def __init__(self, state: StateDirectory) -> None:
        self._disk = state.disk
        self._path = state.path / NAME

    def give(self) -> bool:
        """Give the reserve back where less than it is free otherwise; whether there was one to give."""
        try:
            return self._free() < SIZES[0] and self._disk.unlink(self._path)
        except (StoreError, OSError) as error:
            log.warning("the reserve cannot be given back: %s", error)
            return False

    def keep(self) -> None:
        """Have a reserve from now on, as large as the disk has room for; without any there is none, which is no error."""
        try:
            if self._kept() >= SIZES[0] or (self._kept() and self._free() < SIZES[0]):
                return
            self._disk.unlink(self._path)
            for size in SIZES:
                with contextlib.suppress(StoreError):
                    self._disk.allocate(self._path, size)
                    return
        except (StoreError, OSError) as error:
            log.debug("no reserve is kept: %s", error)

    def missing(self) -> int:
        """Bytes that ``keep`` would take of what is free."""
        return max(0, SIZES[0] - self._kept())

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """What is done within may use the reserve, to free more than that."""
        self.give()
        try:
            yield
        finally:
            self.keep()

    def _kept(self) -> int:
        try:
            return self._path.lstat().st_size
        except OSError:  # it is not there, or nobody can tell: the state directory is closed to its own user, say
            return 0

    def _free(self) -> int:
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize
