"""Room for compile-cache entries: what one entry, one user and all of them may take, and what goes to make room: the last used last."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from npgxd.daemon.demand.uploads import TooMuch
from npgxd.daemon.refusals import Refused
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from npgxd.config import CacheSection
    from npgxd.daemon.keeping.stores import Stores

log = logging.getLogger(__name__)

GB: Final = 1_000_000_000
MB: Final = 1_000_000
_MOST: Final = 512
"""Entries that one publication may push out: each is a file, and look-ups wait meanwhile."""


class Room:
    """Decides before an entry is taken, and makes room before it is published."""

    def __init__(self, settings: CacheSection, min_free: int, stores: Stores) -> None:
        self._settings = settings
        self.min_free = min_free
        self._stores = stores

    def check(self, size: int) -> None:
        """TooMuch or Refused (``NO_SPACE``) if an entry of this size is not taken, whatever else goes."""
        settings = self._settings
        if size > settings.max_artifact_mb * MB:
            told = f"an entry of {size / MB:.1f} MB; at most {settings.max_artifact_mb} are taken ([cache] max_artifact_mb)"
            raise TooMuch(told, hint="let an administrator raise the limit")
        if size > min(settings.max_gb, settings.max_uid_gb) * GB:
            raise TooMuch(f"an entry of {size / MB:.1f} MB is more than [cache] max_gb or max_uid_gb", hint="raise the limit")
        found = os.statvfs(self._stores.state.path)
        if found.f_bavail * found.f_frsize - size < self.min_free:
            raise Refused(
                "NO_SPACE",
                f"{found.f_bavail * found.f_frsize / GB:.2f} GB are free on the disk of {self._stores.state.path}, "
                f"of which {self.min_free / GB:g} must stay ([store] min_free_gb)",
                hint="free space there, or lower the limit",
            )

    def make(self, uid: int, size: int) -> None:
        """Remove what was not used for longest until one more entry fits; Refused (``LIMIT``) if that is too much at once."""
        settings, rows = self._settings, self._stores.artifacts.rows
        count, taken = rows.totals(uid)
        why = f"user {uid} has {counted(count, 'entry', 'entries')} of {taken / MB:.0f} MB"
        self._push_out(uid, over=taken + size - int(settings.max_uid_gb * GB), entries=count + 1 - settings.max_entries, why=why)
        count, taken = rows.totals()
        why = f"all users have {counted(count, 'entry', 'entries')} of {taken / MB:.0f} MB"
        self._push_out(None, over=taken + size - int(settings.max_gb * GB), entries=0, why=why)

    def _push_out(self, uid: int | None, *, over: int, entries: int, why: str) -> None:
        """Remove entries, of one user or of all, until ``over`` bytes and ``entries`` have gone."""
        if over <= 0 and entries <= 0:
            return
        going: list[str] = []
        for row in self._stores.artifacts.rows.oldest(_MOST, uid):
            if over <= 0 and entries <= 0:
                break
            over -= row.size
            entries -= 1
            going.append(row.id)
        self._stores.artifacts.remove(going)
        self._stores.count(artifact_evicted=len(going))
        log.info("%d compile-cache entries went to make room: %s", len(going), why)
        if over > 0 or entries > 0:
            raise Refused("LIMIT", f"{why}, and not enough of that can go at once", hint="publish it again")
