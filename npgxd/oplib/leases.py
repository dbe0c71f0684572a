"""Leases: one file for each claim of a client process on a view, held by a lock that ends with the process.

The client holds a shared ``flock`` on the file through a read-only descriptor, for life.  A lease whose exclusive lock can be had
without waiting is held by nobody.  So a lease ends when its process does, however it ends, also while no daemon runs.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 * 1024
_ID_LENGTH: Final = 32
_NOTHING_TO_LOCK: Final = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO})
"""Opening says: no such file, a symbolic link, a socket. Anything else (out of descriptors, say) proves nothing."""


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """What a lease file says: the view, and who asked for it. The lock, not the text, says whether it is held."""

    lease: str
    view: str
    session: str
    uid: int
    pid: int
    started: float
    boot: str


class Leases:
    """All lease files of a state directory."""

    def __init__(self, state: StateDirectory, boot: str) -> None:
        self._state = state
        self._boot = boot
        self._offered: dict[str, LeaseFacts] = {}
        """Offered and not confirmed: held by this table until the client has its lock, or its session has ended."""
        self._offered_to: dict[str, set[str]] = {}
        """The same by session: hundreds may end together."""
        self.lately: set[str] = set()
        """Views that were offered since this was last emptied: whoever looks through all leases bit by bit misses none of these."""
        self._watching: list[set[str]] = []
        self._count = sum(1 for _ in state.leases.iterdir())

    def offer(self, view: str, *, session: str, uid: int, pid: int, started: float) -> LeaseFacts:
        """Make a lease file for a view; it is held until ``confirm`` or ``session_ended``.

        Not forced to the disk: power loss ends the process that it is for, and the view with it.
        """
        facts = LeaseFacts(secrets.token_hex(_ID_LENGTH // 2), view, session, uid, pid, started, self._boot)
        text = {"view": view, "session": session, "uid": uid, "pid": pid, "started": started, "boot": self._boot}
        self._state.disk.write_file(
            self._state.leases / facts.lease, json.dumps(text).encode(), staging=self._state.staging, durable=False
        )
        self._offered[facts.lease] = facts
        self._offered_to.setdefault(session, set()).add(facts.lease)
        self.lately.add(view)
        for seen in self._watching:
            seen.add(view)
        self._count += 1
        return facts

    def confirm(self, lease: str) -> str:
        """The client says that it has the lock: from now on only the lock counts. The lease's view.

        Raises:
            StoreError: the lease was not offered, or nobody has its lock.
        """
        facts = self._offered.get(lease)
        if facts is None:
            raise StoreError(f"lease {lease} was not offered", hint="ask for the view's lease again")
        if not self.is_held(lease):
            raise StoreError(f"nobody holds the lock of lease {lease}", hint="lock the lease file (shared) before saying leased")
        del self._offered[lease]
        self._offered_to[facts.session].discard(lease)
        return facts.view

    def session_ended(self, session: str) -> None:
        """What was offered to a session and not confirmed is not held any longer."""
        for lease in self._offered_to.pop(session, ()):
            del self._offered[lease]

    def facts_of(self, lease: str) -> LeaseFacts | None:
        """What a lease file says, if somebody holds its lock."""
        return self._facts(lease) if self.is_held(lease) else None

    def is_held(self, lease: str) -> bool:
        """Whether some process has the lease file's lock."""
        with self._try_lock(lease) as free:
            return free is False

    def count(self) -> int:
        """How many lease files there are."""
        return self._count

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """The views that are offered while this is open: whoever looks through all leases bit by bit misses none of these."""
        seen: set[str] = set()
        self._watching.append(seen)
        try:
            yield seen
        finally:
            self._watching = [other for other in self._watching if other is not seen]

    def release_dead(self) -> list[LeaseFacts]:
        """Remove the files of leases that nobody holds; those leases."""
        return [facts for facts in self.each_released() if facts is not None]

    def each_released(self) -> Iterator[LeaseFacts | None]:
        """``release_dead`` bit by bit, for a caller that has other things to do between two leases; None for one that stays."""
        for name in sorted(os.listdir(self._state.leases)):  # noqa: PTH208 -- names
            yield None if name in self._offered else self._released(name)
        self._count = sum(1 for _ in self._state.leases.iterdir())

    def _released(self, lease: str) -> LeaseFacts | None:
        """Remove a lease's file if nobody holds it; what it said."""
        path = self._state.leases / lease
        with self._try_lock(lease) as free:
            if free is False or not os.path.lexists(path):
                return None
            # Removed under the exclusive lock: a client that opened it meanwhile gets its lock on a file without a name
            # at best, and ``confirm`` then says that this is no lease.
            facts = self._facts(lease)
            if facts is None:
                log.warning("leases/%s is not a lease, and is removed", lease)
            try:
                self._state.disk.remove_tree(path)
            except StoreError as error:
                log.warning("leases/%s cannot be removed: %s", lease, error)
                return None
            return facts

    def unreadable(self) -> list[tuple[str, bool]]:
        """Lease files whose text cannot be read, and whether somebody holds them."""
        names = sorted(path.name for path in self._state.leases.iterdir())
        return [(name, self.is_held(name)) for name in names if self._facts(name) is None]

    def views_in_use(self) -> set[str]:
        """The views of all leases, held or offered; every view there is, if somebody holds a lease whose text cannot be read."""
        return set().union(*self.each_in_use())

    def each_in_use(self) -> Iterator[set[str]]:
        """``views_in_use`` bit by bit, for a caller that has other things to do between two leases."""
        yield {facts.view for facts in self._offered.values()}
        for path in self._state.leases.iterdir():
            facts = self._facts(path.name)
            if facts is not None:
                yield {facts.view}
            elif self.is_held(path.name):
                log.warning("leases/%s is held and cannot be read: no view is removed until it ends", path.name)
                yield {view.name for view in self._state.views.iterdir()}

    # ---- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _try_lock(self, lease: str) -> Iterator[bool | None]:
        """True while we have the exclusive lock, False if somebody has one or it cannot be told, None if nothing can be locked."""
        try:
            fd = os.open(self._state.leases / lease, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            yield None if error.errno in _NOTHING_TO_LOCK else False
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def _facts(self, lease: str) -> LeaseFacts | None:
        try:
            said = json.loads(read_plain(self._state.leases / lease, _MAX_BYTES))
            return LeaseFacts(lease, said["view"], said["session"], said["uid"], said["pid"], said["started"], said["boot"])
        except (StoreError, ValueError, KeyError, TypeError):
            return None
