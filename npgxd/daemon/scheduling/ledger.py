"""One round against the store and the toolchain: its keys, what is known of them, its place in the journal, and its starting over."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from npgxd.daemon.demand.rounds import Round, Settlement, named, why_store
from npgxd.errors import StoreError, ToolchainError
from npgxd.store.rounds import RoundEntry
from npgxd.wire.messages import CompileOptions, RankInfo, Rejected
from npgxd.wire.states import KeyOutcome, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.sessions import Session
    from npgxd.wire.messages import Submit

log = logging.getLogger(__name__)

RENEWALS = 3
"""How often a round starts over because its toolchain moved, or a kernel turned out damaged."""


class Ledger:
    """What every round of a daemon needs of its store and its toolchain; it knows of one round at a time."""

    def __init__(self, stores: Stores, keyer: Keyer) -> None:
        self._stores = stores
        self._keyer = keyer

    def round(self, entry: RoundEntry, session: str, now: float) -> Round:
        """A round as submitted, or as an earlier life wrote it down. ToolchainError if its keys cannot be told."""
        records, rejected = self._keyer.parse(entry.records)
        options = CompileOptions.parse(dict(entry.options))
        keyed = self._keyer.needs(records, options, entry.uid)
        # What is rejected is kept too: a round that is taken up again must not look better than it was.
        bad = {item.name for item in rejected}
        kept = [(need.record.name, need.record.canonical) for need in keyed] + [item for item in entry.records if item[0] in bad]
        return Round(
            id=entry.round,
            uid=entry.uid,
            session=session,
            job=entry.job,
            rank=RankInfo.parse(dict(entry.rank)),
            graph=entry.graph,
            options=options,
            recompile=entry.recompile,
            records=len(entry.records),
            rejected=named(Rejected(item.name, item.reason[:300]) for item in rejected),
            needs={need.key: need for need in reversed(keyed)},
            accepted_at=now,
            entry=replace(entry, records=tuple(kept)),
            size=sum(len(raw) for _, raw in kept),
        )

    @staticmethod
    def entry(session: Session, submit: Submit, raw: Sequence[tuple[str, bytes]]) -> RoundEntry:
        """A submission as the journal keeps it."""
        return RoundEntry(
            round=submit.round,
            uid=session.peer.uid,
            gid=session.peer.gid,
            pid=session.peer.pid,
            job=session.job,
            rank=asdict(session.rank),
            graph=submit.graph,
            options=asdict(submit.options),
            recompile=submit.recompile,
            records=tuple(raw),
            accepted_at=time.time(),
        )

    def settled(self, done: Round) -> None:
        """Its journal file is not needed any more; one that cannot go is settled again at the next start."""
        if done.durable:
            try:
                self._stores.rounds.settle(done.id)
            except StoreError as error:
                log.error("round %s is settled again at the next start: %s", done.id[:8], error)
            done.durable = False

    def make_durable(self, taken: Round) -> None:
        """Into the journal, on the disk when this returns; StoreError if that cannot be."""
        if not taken.durable and taken.entry is not None:
            self._stores.rounds.accept(taken.entry)
            taken.durable = True

    def settle_known(self, taken: Round) -> None:
        """Settle the keys that have a kernel, are known to fail, or have a kernel that cannot be looked at now.

        The last are not compiled again, which would take descriptors and memory, too: the process runs without them, and is told why.
        StoreError if the store cannot tell.
        """
        found = self._stores.kernels.look_up(list(taken.needs))
        for key, manifest in found.kernels.items():
            taken.settle_key(key, Settlement(KeyOutcome.HIT, kernel=manifest.id))
        for key, error in found.unread.items():
            taken.settle_key(key, Settlement(KeyOutcome.FAILED, reason=str(error), why=why_store(error)))
        for key, row in self._stores.history.failures(taken.open_keys).items():
            taken.settle_key(key, Settlement(KeyOutcome(row.outcome), reason=row.reason))

    def hold(self, done: Round) -> None:
        """It is settled again: removal that is under way takes none of its kernels from now on."""
        self._stores.kernels.uses.touch([told.kernel for told in done.settlements.values() if told.kernel])

    def settle_if_known(self, waiting: Round) -> None:
        """The same for a round that is accepted already: if the store cannot tell what is known, it is taken for unknown."""
        if waiting.recompile:
            return
        try:
            self.settle_known(waiting)
        except StoreError as error:
            log.error("round %s: the store cannot tell what is there: %s", waiting.id[:8], error)

    def revive(self, done: Round) -> bool:
        """A process asks for a round of which kernels were given up while nobody waited: those are open again, if any is."""
        given_up = [key for key, told in done.settlements.items() if told.outcome is KeyOutcome.EXPIRED]
        for key in given_up:
            del done.settlements[key]
        if not given_up:
            return False
        done.result = None
        self.settle_if_known(done)
        return self._waits_again(done)

    def renew(self, done: Round) -> bool:
        """Give every need whose toolchain has moved since its new key; whether one of those is to be waited for."""
        stale = {key: need for key, need in done.needs.items() if not self._keyer.is_current(need)}
        if not stale:
            return False
        try:
            fresh = self._keyer.needs([need.record for need in stale.values()], done.options, done.uid)
        except ToolchainError as error:
            fresh, reason, why = [], str(error), Reason.NO_TOOLCHAIN
        else:
            reason, why = "the toolchain keeps changing", Reason.COMPILE_FAILED
        if not fresh or done.renewals >= RENEWALS:
            told = Settlement(KeyOutcome.FAILED, reason=reason, why=why)
            done.settlements |= dict.fromkeys(stale, told)
            return False
        done.renewals += 1
        for key, need in zip(stale, fresh, strict=True):
            del done.needs[key]
            done.settlements.pop(key, None)
            done.needs[need.key] = need
        self.settle_if_known(done)
        return self._waits_again(done)

    def mend(self, done: Round) -> bool:
        """Take back kernels that are no longer what they were; whether they are to be waited for, compiled anew."""
        try:
            lost = [
                key for key, told in done.settlements.items() if told.kernel and not self._stores.kernels.recheck(told.kernel)
            ]
        except StoreError as error:
            log.error("the kernels of round %s cannot be looked through: %s", done.id[:8], error)
            return False
        if not lost or done.renewals >= RENEWALS:
            return False
        done.renewals += 1
        for key in lost:
            del done.settlements[key]
        return self._waits_again(done)

    def _waits_again(self, done: Round) -> bool:
        if not done.open_keys:
            return False
        try:
            self.make_durable(done)
        except StoreError as error:
            told = Settlement(KeyOutcome.FAILED, reason=error.message, why=why_store(error))
            done.settlements |= dict.fromkeys(done.open_keys, told)
            return False
        return True
