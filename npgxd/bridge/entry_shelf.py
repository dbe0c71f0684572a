"""The bundled compile cache's directory of one function: ``compiled_module``, its sidecar, and what was set aside.

Promise: an entry is given out only whole, with its own sidecar, from files that this user alone can have written; a file that does
not fit, or is broken, is renamed and stays; no other file is touched, and no directory is ever removed. A sidecar's name has
its entry's digest in it, so that no reader, whenever it comes, takes one writer's sidecar for another's entry.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.bridge.sidecar import Sidecar, SidecarDamaged, digest_of
from npgxd.client import entry_files
from npgxd.client.entry_files import EntryRefused
from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger("npgxd")

FILE: Final = "compiled_module"
STALE: Final = "stale"
BROKEN: Final = "broken"
KEPT: Final = 7
"""How many files of each kind stay set aside: the newest ones."""
_SHORT: Final = 16


class Unusable(NpgxError):
    """There is a ``compiled_module``, and it must not be used; the message is why. It was set aside, where that can be done safely."""

    code = "ENTRY_UNUSABLE"
    exit_code = 65


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry's bytes, whole, with the sidecar that is theirs."""

    entry: bytes
    sidecar: Sidecar

    @classmethod
    def of(cls, entry: bytes, sidecar: Sidecar) -> Kept:
        """SidecarDamaged unless the sidecar is of this entry."""
        if digest_of(entry) != sidecar.digest:
            raise SidecarDamaged("the file is not the one that its sidecar is of")
        return cls(entry, sidecar)


class EntryShelf:
    """The directory that ``path``, the documented path of a ``compiled_module``, lies in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base = path.parent

    def current(self) -> Kept | None:
        """The entry, None if there is none; Unusable says why the one that is there is none."""
        try:
            entry = entry_files.read(self._base, (FILE,))
        except FileNotFoundError:
            return None
        except (EntryRefused, OSError) as error:
            self._move(BROKEN, "unread")
            raise Unusable(str(error)) from error
        try:
            return self._with_sidecar(entry)
        except FileNotFoundError:
            why = "it is damaged, or was made without npgxd, and nothing says from which source"
        except (EntryRefused, OSError, SidecarDamaged) as error:
            why = f"its sidecar cannot be used: {error}"
        self._move(BROKEN, digest_of(entry)[:_SHORT])
        raise Unusable(why)

    def earlier(self) -> Iterator[Kept]:
        """Whole entries that were set aside since they did not fit, the newest first: a source that is as it was finds its own."""
        for name in self._names(f".{STALE}"):
            with suppress(OSError, EntryRefused, SidecarDamaged):
                yield self._with_sidecar(entry_files.read(self._base, (name,)))

    def put(self, kept: Kept) -> None:
        """Make it the ``compiled_module``. OSError or EntryRefused if that cannot be done safely."""
        entry_files.make_base(self._base)
        entry_files.save(self._base, (_sidecar_name(kept.sidecar.digest),), kept.sidecar.encoded())
        entry_files.save(self._base, (FILE,), kept.entry)
        entry_files.remove(self._base, (), _aside_name(kept.sidecar.digest[:_SHORT], STALE))
        self._bound()

    def set_aside(self, kept: Kept, kind: str) -> str:
        """Rename the ``compiled_module`` if it still is that entry: another process may have made the next one. Its new name."""
        short = kept.sidecar.digest[:_SHORT]
        with suppress(OSError, EntryRefused):
            if digest_of(entry_files.read(self._base, (FILE,))) == kept.sidecar.digest:
                self._move(kind, short)
        return _aside_name(short, kind)

    def abandon(self) -> None:
        """Set aside whatever ``compiled_module`` there is: for the bundled code's own wish to remove its directory."""
        self._move(BROKEN, "abandoned")

    def _move(self, kind: str, short: str) -> None:
        name = _aside_name(short, kind)
        try:
            entry_files.remove(self._base, (), name)  # an earlier one of that name is the same one, or was not readable either
            entry_files.link(self._base, (), FILE, name)
            entry_files.remove(self._base, (), FILE)
            self._bound()
        except (OSError, EntryRefused) as error:
            log.debug("npgxd: %s stays where it is: %s", self.path, error)

    def _with_sidecar(self, entry: bytes) -> Kept:
        return Kept.of(entry, Sidecar.parse(entry_files.read(self._base, (_sidecar_name(digest_of(entry)),))))

    def _names(self, suffix: str) -> list[str]:
        with suppress(OSError, EntryRefused):
            return [name for name in entry_files.newest(self._base, ()) if name.startswith(FILE + ".") and name.endswith(suffix)]
        return []

    def _bound(self) -> None:
        """Let no directory grow with every edit of a model. A sidecar may be newer than its entry, which its writer brings next."""
        for suffix, kept in ((f".{STALE}", KEPT), (f".{BROKEN}", KEPT), (".json", 2 * KEPT)):
            for name in self._names(suffix)[kept:]:
                entry_files.remove(self._base, (), name)


def _sidecar_name(digest: str) -> str:
    return f"{FILE}.{digest[:_SHORT]}.json"


def _aside_name(short: str, kind: str) -> str:
    return f"{FILE}.{short}.{kind}"
