"""The entries of one function on disk: ``compiled_module``, the newest, and the older ones that may still fit somebody.

Promise: saving an entry takes nothing away from whoever uses another one: two models of one class, or two starts with other
arguments, share a directory, and each finds its own.  At most ``KEPT`` older entries stay, the newest ones.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from npgxd.client import entry_files as files
from npgxd.client.entry_files import EntryRefused
from npugraph_ex.inference.container import EntryDamaged, EntryOutdated, unpack
from npugraph_ex.inference.places import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugraph_ex.inference.places import Place

logger = logging.getLogger("npugraph_ex")

KEPT: Final = 7


class Shelf:
    """One ``Place``'s entries."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def entries(self) -> Iterator[bytes]:
        """Each entry's bytes, the newest first; a file that is not safely this user's is told and left alone."""
        for name in (FILE, *self._older()):
            try:
                yield files.read(self._place.base, (*self._place.parts, name))
            except FileNotFoundError:
                continue
            except (EntryRefused, OSError) as error:
                logger.warning("npugraph_ex: %s is not used: %s", self._place.directory / name, error)

    def put(self, data: bytes) -> None:
        """Make ``data`` the ``compiled_module``; the one that was there stays beside it. OSError or EntryRefused."""
        with suppress(FileNotFoundError, EntryRefused, EntryDamaged, EntryOutdated):
            old = files.read(self._place.base, (*self._place.parts, FILE))
            if old == data:
                return
            unpack(old)
            files.link(self._place.base, self._place.parts, FILE, _older_name(old))
        files.save(self._place.base, (*self._place.parts, FILE), data)
        for name in (_older_name(data), *self._older()[KEPT:]):
            files.remove(self._place.base, self._place.parts, name)

    def _older(self) -> list[str]:
        with suppress(OSError, EntryRefused):
            return [name for name in files.newest(self._place.base, self._place.parts) if name.startswith(FILE + ".")]
        return []


def _older_name(data: bytes) -> str:
    """By its content: the same entry is kept once."""
    return f"{FILE}.{hashlib.sha256(data).hexdigest()[:12]}"
