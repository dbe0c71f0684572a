"""Damage that others did to a shared op library: counted for whoever asks, and told to the processes that had loaded what was damaged.

A process is known by its leases, which outlive the daemon and the connection; what was done to it is told for as long as it lives.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from npgxd.errors import StoreError
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.oplib.shared_root import Look
    from npgxd.oplib.shared_root_past import Past

log = logging.getLogger(__name__)

_SAID = (
    "{} of its kernels were removed from the op library by another program; they are back, but operators that needed them meanwhile "
    "ran without them, or failed: restart the process to be sure"
)


class Hurt:
    """Who was hurt by what. ``past`` keeps it."""

    def __init__(self, stores: Stores, sessions: Sessions, past: Past) -> None:
        self._stores = stores
        self._sessions = sessions
        self._past = past
        self._damage: dict[str, object] = {"count": 0, "kernels": 0, "at": None, "what": ""}

    def describe(self) -> dict[str, object]:
        """The last damage, for the status document."""
        return dict(self._damage)

    def found(self, look: Look, now: float, recent: Callable[[Session], bool]) -> None:
        """Somebody damaged the root: processes that may suffer from it are told of it, for good; it is mended all the same.

        ``recent`` tells whether a process may not have loaded yet what it was told of: only then does a lost entry matter to it.
        """
        if not look.files and not look.entries:
            return
        what = "the tree was removed" if look.recreated else f"{len(look.files)} lost files, {len(look.entries)} their entry"
        self._count(len(look.files | look.entries), what)
        of_lease = {lease: session for session in self._sessions for lease in session.leases}

        def harmed(lease: str, kernels: frozenset[str]) -> frozenset[str]:
            session = of_lease.get(lease)
            return kernels & (look.files | look.entries if session is not None and recent(session) else look.files)

        self._tell(self._each_lease(harmed), now)

    def while_away(self, brought: frozenset[str], now: float) -> None:
        """At a start, the files of these kernels had to be written: who leases some of them had loaded them, and lost them since."""
        hurt = self._each_lease(lambda _lease, kernels: kernels & brought)
        if hurt:
            self._count(len(frozenset().union(*hurt.values())), "kernels lost files while no daemon ran")
            self._tell(hurt, now)

    def returned(self, session: Session, now: float) -> None:
        """A process is back on a new connection, perhaps to a new daemon: what was done to it is not undone."""
        said = self._past.hurt_of(session.leases)
        if said:
            self._mark(session, said, now)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _count(self, kernels: int, what: str) -> None:
        back = counted(kernels, "kernel is", "kernels are")
        log.warning("the op library was damaged by others (%s): %s put back from the store", what, back)
        count = self._damage["count"]
        self._damage = {
            "count": (count if isinstance(count, int) else 0) + 1,
            "kernels": kernels,
            "at": round(time.time(), 3),
            "what": what,
        }

    def _each_lease(self, harmed: Callable[[str, frozenset[str]], frozenset[str]]) -> dict[str, frozenset[str]]:
        """Of all leases that are held, those with kernels that ``harmed`` names, and which."""
        found: dict[str, frozenset[str]] = {}
        for path in self._stores.state.leases.iterdir():
            facts = self._stores.leases.facts_of(path.name)
            if facts is None:
                continue
            try:
                lost = harmed(path.name, frozenset(self._stores.views.kernels_of(facts.view)))
            except StoreError as error:
                log.warning("cannot tell what lease %s lost: %s", path.name[:8], error)
                continue
            if lost:
                found[path.name] = lost
        return found

    def _tell(self, hurt: Mapping[str, frozenset[str]], now: float) -> None:
        there = {path.name for path in self._stores.state.leases.iterdir()}
        self._past.hurt({lease: _SAID.format(len(kernels)) for lease, kernels in hurt.items()}, there)
        for session in self._sessions:
            lost = _union(hurt[lease] for lease in session.leases if lease in hurt)
            if lost:
                self._mark(session, _SAID.format(len(lost)), now)

    def _mark(self, session: Session, said: str, now: float) -> None:
        session.hurt = said
        session.tell(ClientState.DEGRADED, now, reason=str(Reason.OP_LIBRARY_DAMAGED), detail=said)
        log.warning("pid %d of job %s: %s", session.peer.pid, session.job, said)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
