"""From a settled round to what its process may load: the view of what it does not have yet, and the keys that cannot take effect there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npgxd.daemon.demand.rounds import Assembled
from npgxd.errors import StoreError
from npgxd.oplib.sweeping import Step
from npgxd.wire.states import Reason

if TYPE_CHECKING:
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.oplib.sweeping import Steps
    from npgxd.store.manifest import KernelManifest

log = logging.getLogger(__name__)


class Assembly:
    """Makes views for rounds, and keeps account of what each process has loaded."""

    def __init__(self, stores: Stores, sessions: Sessions) -> None:
        self._stores = stores
        self._sessions = sessions

    def ground(self, done: Round) -> tuple[str, int]:
        """What decides which of its kernels a round's process needs, beside the round: it changes when that does.

        A process loads more as time goes on, and never less.
        """
        return done.session, len(self._loaded_by(done))

    def _session(self, done: Round) -> Session | None:
        return next((s for s in self._sessions if s.id == done.session), None)

    def _loaded_by(self, done: Round) -> dict[str, str]:
        session = self._session(done)
        return session.loaded if session is not None else {}

    def of(self, done: Round) -> Steps[Assembled]:
        """The view for a round whose keys all have their outcome, bit by bit.

        StoreError if one of its kernels is gone or damaged, or if it cannot be told now what its process has loaded already.
        """
        session = self._session(done)
        if session is not None:
            for leased in list(session.unread):
                self._load(session, leased)
        loaded = self._loaded_by(done)
        wanted: list[KernelManifest] = []
        shadowed: dict[str, Reason] = {}
        digests: dict[str, None] = {}
        for key, settlement in list(done.settlements.items()):
            if not settlement.kernel:
                continue
            if not self._stores.kernels.at_hand(settlement.kernel):
                yield Step("kernels", len(wanted), 0)
            manifest = self._stores.kernels.get(settlement.kernel)
            digests[manifest.package] = None
            taken = {loaded[name] for name in manifest.simplified_keys if name in loaded}
            if taken - {manifest.id}:
                shadowed[key] = self._why_shadowed(manifest, taken - {manifest.id})
            if not taken:
                wanted.append(manifest)
        packages = tuple(package for package in map(self._stores.package, digests) if package is not None)
        if not wanted:
            return Assembled(None, 0, shadowed, packages)
        view = yield from self._stores.views.assembling(wanted)
        shadowed |= dict.fromkeys(view.shadowed, Reason.SHADOWED)
        return Assembled(view.digest, len(view.kernels), shadowed, packages)

    def _why_shadowed(self, wanted: KernelManifest, loaded: set[str]) -> Reason:
        """A process that has loaded an older kernel of the same record and options gets the newer one by a restart; of others, never."""
        for kernel in loaded:
            try:
                other = self._stores.kernels.get(kernel).origin
                if (other.record_digest, other.options) != (wanted.origin.record_digest, wanted.origin.options):
                    return Reason.SHADOWED
            except StoreError:
                continue  # it is gone from the store, and stays loaded there
        return Reason.RESTART_NEEDED

    def loaded(self, session: Session, view: str) -> None:
        """The process behind a session has leased a view: these kernels are now the first under their names there."""
        try:
            self._load(session, view)
        except StoreError as error:
            if error.no_means:
                session.unread.add(view)
            log.warning("cannot tell all that pid %d has loaded: %s", session.peer.pid, error)

    def _load(self, session: Session, view: str) -> None:
        kernels = self._stores.views.kernels_of(view)
        gone = [kernel for kernel in kernels if not self._loaded(session, kernel)]
        if gone:  # from the store; what it loaded under their names it keeps all the same
            for name in self._stores.views.keys_of(view):
                session.loaded.setdefault(name, gone[0])
        session.unread.discard(view)

    def _loaded(self, session: Session, kernel: str) -> bool:
        try:
            names = self._stores.kernels.get(kernel).simplified_keys
        except StoreError as error:
            if error.no_means:
                raise
            return False
        for name in names:
            session.loaded.setdefault(name, kernel)
        return True
