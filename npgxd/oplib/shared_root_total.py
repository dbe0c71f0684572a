"""Reading and replacing a shared root's total index while others, who take no lock, rewrite it in place.

Promise: the index is replaced by one rename of a complete file that holds all that others had in it, also what they wrote between
our reading and our rename, and what a writer that had opened the old file wrote into it afterwards.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.oplib.shared_root_files import Signature, signature
from npgxd.oplib.shared_root_index import TotalIndex
from npgxd.oplib.shared_root_place import LibraryError
from npgxd.store.disk import TEMPORARY_PREFIX, Disk
from npgxd.store.index import INDEX_NAME, MAX_INDEX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LATE_S: Final = 10.0
"""A writer that had the old file open is expected to have closed it after this long."""
_POLL_S: Final = 0.02
_TRIES: Final = 50
_READABLE: Final = 0o444
_NEW_MODE: Final = 0o664


@dataclass(slots=True)
class _Replaced:
    """A file that was the index until we replaced it: somebody may still be writing into it."""

    fd: int
    raw: bytes
    until: float


class TotalFile:
    """The total index of one SoC family, ``ai_core/config/<family>/binary_info_config.json``."""

    def __init__(self, directory: Path, disk: Disk, patience_s: float) -> None:
        self.path = directory / INDEX_NAME
        self._disk = disk
        self._patience_s = patience_s
        self._replaced: list[_Replaced] = []
        self._late: list[tuple[TotalIndex, TotalIndex]] = []
        """What others wrote into files that we had replaced: what was in such a file, and what they made of it."""
        self.replaced_at = 0.0
        """When the index was last replaced by us, in seconds since boot: a process that started later cannot have read the old one."""
        self.seen: Signature | None = None
        """The file as it was when it was last found, or made, to be right."""
        self._forced: Signature | None = None
        """The file as it was when it was last forced to the disk."""

    def changed(self) -> bool:
        """Whether the index may differ from what it was when it was last right, or somebody wrote into one that we replaced."""
        self._hear_late()
        return signature(self.path) != self.seen or bool(self._late)

    def read(self) -> TotalIndex:
        """The index as it is (empty if there is none); LibraryError if it cannot be read for longer than a write takes."""
        return self._whole()[1]

    def read_durable(self) -> TotalIndex:
        """``read``, and no older index can come back by a power loss: others write without forcing anything to the disk."""
        while True:
            before = signature(self.path)
            self._force(before)
            present = self._whole()[1]
            if signature(self.path) == before:
                return present

    def replace(self, decide: Callable[[TotalIndex], bytes | None]) -> TotalIndex:
        """Put ``decide`` of the present index in its place, deciding again whenever others were faster; what it was decided on.

        ``decide`` answers None to leave the index as it is.
        """
        for _ in range(_TRIES):
            self._hear_late()
            before, late = signature(self.path), list(self._late)
            raw, present = self._whole()
            for base, written in late:
                present = present.with_changes(base, written)
            text = decide(present)
            if text is None and late:
                text = present.text()
            if text is None:
                self.seen = before
                self._force(before)  # an earlier life may have renamed it, and been killed before it was on the disk
                if signature(self.path) == before:
                    return present
            elif self._exchange(raw, text):
                del self._late[: len(late)]
                made = signature(self.path)
                self._hear_late()
                # Looked at after its stats were taken: what somebody wrote in place since our rename is not taken for ours.
                if not self._late and self._content() == text:
                    self.seen = self._forced = made
                    return present
        raise LibraryError(
            f"{self.path} is rewritten by others faster than npgxd can merge it", hint="look for an installer that runs in a loop"
        )

    def close(self) -> None:
        """Let go of replaced files."""
        for one in self._replaced:
            os.close(one.fd)
        self._replaced.clear()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _content(self) -> bytes:
        """The bytes of the index; b"" if there is none."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise LibraryError(
                f"{self.path} cannot be read: {error.strerror}", hint="npgxd needs to read it, to keep what is in it"
            ) from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise LibraryError(f"{self.path} is not a file", hint="move it away; nothing of CANN reads it")
            return _all_of(fd)
        finally:
            os.close(fd)

    def _whole(self) -> tuple[bytes, TotalIndex]:
        """What is there, once it is whole: others write in place."""
        end = time.monotonic() + self._patience_s
        while True:
            raw = self._content()
            if not raw and not os.path.lexists(self.path):
                return raw, TotalIndex()
            try:
                return raw, TotalIndex.parse(raw)
            except StoreError as error:
                if time.monotonic() >= end:
                    raise LibraryError(
                        f"{self.path}: {error.message}",
                        hint="npgxd does not guess what others had in it: install their packages again, or move the file away "
                        "if nothing else is installed there; npgxd then puts its own kernels back by itself",
                    ) from None
            time.sleep(_POLL_S)

    def _exchange(self, raw: bytes, text: bytes) -> bool:
        """Rename a file with ``text`` over the index; False, with nothing changed, if it is no longer ``raw``."""
        disk = self._disk
        temporary = self.path.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        old = -1
        moved = False
        try:
            try:
                old = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                disk.write_file(temporary, text, _NEW_MODE)
            else:
                facts = os.fstat(old)
                disk.write_file(temporary, text, stat.S_IMODE(facts.st_mode) | _READABLE)
                with contextlib.suppress(OSError):  # where we may: whoever wrote it is to be able to write it again
                    os.chown(temporary, facts.st_uid, facts.st_gid)
            if self._content() != raw:
                return False
            disk.move(temporary, self.path, durable=False)
            moved = True
            self.replaced_at = time.clock_gettime(time.CLOCK_BOOTTIME)
            if old >= 0:
                self._replaced.append(_Replaced(old, raw, time.monotonic() + LATE_S))
                old = -1
            disk.fsync_directory(self.path.parent)
        finally:
            if old >= 0:
                os.close(old)
            if not moved:
                with contextlib.suppress(StoreError):  # what went wrong is more to the point; a next start removes it
                    disk.unlink(temporary)
        return True

    def _force(self, seen: Signature | None) -> None:
        """What is in the index, and that it is there, is on the disk; once for each content."""
        if seen is None or seen == self._forced:
            return
        self._disk.fsync_file(self.path.resolve())
        self._disk.fsync_directory(self.path.parent)
        self._forced = seen

    def _hear_late(self) -> None:
        """Take note of what somebody wrote into an index that we had replaced already, once it is whole; each is told once."""
        for one in list(self._replaced):
            with contextlib.suppress(StoreError, LibraryError, OSError):  # half written, or of no use: it is looked at again
                raw = _all_of(one.fd)
                if raw != one.raw:
                    self._late.append((TotalIndex.parse(one.raw), TotalIndex.parse(raw)))
                    one.raw = raw
            if time.monotonic() >= one.until:
                os.close(one.fd)
                self._replaced.remove(one)


def _all_of(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    if size > MAX_INDEX_BYTES:
        raise LibraryError(f"the total index has {size} bytes; at most {MAX_INDEX_BYTES} are read")
    parts: list[bytes] = []
    at = 0
    while piece := os.pread(fd, 1 << 20, at):
        parts.append(piece)
        at += len(piece)
    return b"".join(parts)
