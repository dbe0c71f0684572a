"""The heart of the daemon: rounds come in, each key is present, in flight or missing, and every round is settled key by key.

It owns rounds, groups and keys in flight, and knows neither sockets nor processes: compiled kernels and failed tries are told to it
by the dispatcher, and whoever follows a round reads ``changed``.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from npgxd.daemon.assembly import Assembly
from npgxd.daemon.churn import Churn, process_of
from npgxd.daemon.flights import Flights, GivenUp, Try
from npgxd.daemon.kept import Kept
from npgxd.daemon.ledger import Ledger
from npgxd.daemon.placing import Placing
from npgxd.daemon.quotas import Quotas
from npgxd.daemon.refusals import Refused
from npgxd.daemon.rounds import Assembled, Round, Settlement, result_of
from npgxd.daemon.windows import Windows
from npgxd.errors import NpgxError, StoreError, ToolchainError
from npgxd.store.rounds import RoundEntry
from npgxd.wire.states import KeyOutcome, Reason, RoundState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.config import Config
    from npgxd.daemon.groups import Group
    from npgxd.daemon.keyer import Keyer
    from npgxd.daemon.placing import Placed
    from npgxd.daemon.roots import OpLibrary
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.daemon.stores import Stores
    from npgxd.store.manifest import KernelManifest
    from npgxd.toolchain.record import Record
    from npgxd.wire.messages import Submit

log = logging.getLogger(__name__)

TAKE_UP_S = 5.0
"""How often a toolchain is looked for while accepted rounds wait for one."""
VIEW_GRACE_S = 60.0
"""A view that was told to a client is kept this long for it to lease."""


class Coordinator:
    """Rounds, groups and keys of one daemon. All times are monotonic seconds, passed in."""

    def __init__(
        self, config: Config, stores: Stores, keyer: Keyer, sessions: Sessions, library: OpLibrary | None = None
    ) -> None:
        self._config = config
        self._stores = stores
        self._keyer = keyer
        self._sessions = sessions
        self.flights = Flights(config.compile.attempts)
        self.rounds: dict[str, Round] = {}
        self._windows = Windows(sessions, config.group)
        self._assembly = Assembly(stores, sessions)
        self._ledger = Ledger(stores, keyer)
        self.placing = Placing(library)
        self.quotas = Quotas(config.limits)
        self.churn = Churn(config.limits)
        self._kept = Kept()
        self._postponed: list[RoundEntry] = []
        self._take_up_at = float("inf")
        self.changed: set[str] = set()
        """Rounds about which their followers are to be told something."""

    # ---- submissions -------------------------------------------------------------------------------------------------

    def accept(self, session: Session, submit: Submit, raw: Sequence[tuple[str, bytes]], now: float) -> Round:
        """Take a round: settled at once if all is known, else durable in the journal before this returns."""
        known = self.rounds.get(submit.round)
        if known is not None:
            return self.adopt(known, session, now)
        self._check_owner(session.peer.uid, submit.round)
        self._keyer.refresh(now)
        entry = _entry(session, submit, raw)
        taken = self._ledger.round(entry, session.id, now)
        if not submit.recompile:
            self._ledger.settle_known(taken)
        if taken.open_keys:
            self.quotas.check(taken.uid, taken.open_keys, taken.size)
            self._cap(taken, session)
        if taken.open_keys:
            self._ledger.make_durable(taken)
        session.round = taken.id
        self._postponed = [entry for entry in self._postponed if entry.round != taken.id]
        self._stores.count(rounds=1, records=len(raw))
        self._admit(taken, now)
        self._join_group(taken, session, now)
        return taken

    def _check_owner(self, uid: int, name: str) -> None:
        if any(entry.round == name and entry.uid != uid for entry in self._postponed):
            raise Refused("UNKNOWN_ROUND", "no such round of this user", hint="submit under a new round id")

    def _cap(self, taken: Round, session: Session) -> None:
        """Operators that keep changing are not compiled any more: that is their outcome, with the reason."""
        missing = ((key, taken.needs[key].record) for key in taken.open_keys)
        for key, reason in self.churn.take(process_of(session), missing).items():
            taken.settle_key(key, Settlement(KeyOutcome.CAPPED, reason=reason, why=Reason.CHURN))

    def resume(self, entries: Iterable[RoundEntry], now: float) -> int:
        """Take up the rounds that an earlier life accepted and did not settle; their number. Without a toolchain they wait for one."""
        self._postponed += entries
        return self._take_up(now)

    def _take_up(self, now: float) -> int:
        taken_up = 0
        left, self._postponed = self._postponed, []
        for entry in left:
            try:
                taken = self._ledger.round(entry, "", now)
            except ToolchainError as error:
                if not self._postponed:
                    log.warning("an accepted round waits for a toolchain: %s", error)
                self._postponed.append(entry)
                continue
            except NpgxError as error:  # written by a version with other options: its rank submits it again, if it still wants it
                log.error("round %s cannot be taken up: %s", entry.round[:8], error)
                continue
            taken.durable = True
            self._ledger.settle_if_known(taken)
            self._admit(taken, now)
            self._close(self._windows.alone(taken, now), now)
            taken_up += 1
        self._take_up_at = now + TAKE_UP_S if self._postponed else float("inf")
        return taken_up

    def adopt(self, known: Round, session: Session, now: float) -> Round:
        """A process asks again for a round, perhaps on a new connection: it is that session's round from now on."""
        if known.uid != session.peer.uid:
            raise Refused("UNKNOWN_ROUND", "no such round of this user", hint="submit under a new round id")
        other, known.session = known.session != session.id, session.id
        session.round = known.id
        told = known.result
        if told is not None and (other or told.root or (told.view is not None and told.view not in self._stores.views)):
            # Its view, or the root that it is in, is gone, or was made for what another process has loaded: it is made anew.
            known.result = None
            self._under_way(known)
            self._settle(known, now)
        return known

    def _admit(self, taken: Round, now: float) -> None:
        self.rounds[taken.id] = taken
        self._under_way(taken)
        for old in self._kept.excess(now, self._config.group.recording_s):
            self.rounds.pop(old.id, None)
            self._windows.forget(old, self.rounds)

    def _under_way(self, taken: Round) -> None:
        self._kept.drop(taken.id)
        self.quotas.charge(taken.id, taken.uid, taken.open_keys, taken.size)

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _join_group(self, taken: Round, session: Session, now: float) -> None:
        full = self._windows.join(taken, session, now)
        if full is not None:
            self._close(full, now)
        if not taken.open_keys:
            self._settle(taken, now)  # a full hit never waits; local rank 0 may still ask for its group's records
        self.tick(now)

    def expected(self, job: str) -> tuple[int | None, str]:
        """How many ranks a job has on this node, and a note for them when that cannot be told."""
        return self._windows.expected(job)

    def tick(self, now: float) -> float:
        """Close the windows whose time has come; when there is something to do next (``inf``: not before something happens)."""
        if now >= self._take_up_at:
            self._keyer.find_if_missing(now)
            self._take_up(now)
        for group in self._windows.due(now):
            self._close(group, now)
        return min(self._take_up_at, self._windows.next_close())

    def _close(self, group: Group, now: float) -> None:
        """The group is complete, or is not waited for any longer: its missing keys go to the workers, its known ones are settled."""
        self._windows.close(group)
        for member in group.rounds:
            waiting = self.rounds.get(member)
            if waiting is None or waiting.result is not None:
                continue
            self._ledger.settle_if_known(waiting)  # another group may have finished some of them meanwhile
            self._queue(waiting, now)

    def _queue(self, waiting: Round, now: float) -> None:
        """Its open keys are in flight from now on; without any it is settled."""
        waiting.state = RoundState.QUEUED
        self.changed.add(waiting.id)
        for key in waiting.open_keys:
            if not self.flights.join(key, waiting.id):
                self.flights.add(waiting.needs[key], waiting.id)
        if not waiting.open_keys:
            self._settle(waiting, now)

    # ---- what the workers tell ---------------------------------------------------------------------------------------

    def compiling(self, keys: Sequence[str], now: float, current: tuple[str, ...] = ()) -> None:
        """A worker has these keys, and is at ``current``."""
        wanted = set(keys)
        for waiting in self.rounds.values():
            if waiting.result is None and not wanted.isdisjoint(waiting.needs):
                if waiting.compiling_since is None:
                    waiting.compiling_since = now
                waiting.state = RoundState.COMPILING
                waiting.current = current[:8]
                self.changed.add(waiting.id)

    def landed(self, manifests: Iterable[KernelManifest], now: float) -> None:
        """These kernels are published."""
        touched: set[str] = set()
        landed = list(manifests)
        self._stores.count(compiled=len(landed))
        for manifest in landed:
            flight = self.flights.landed(manifest.key)
            if flight is None:
                continue
            for waiter in flight.waiters:
                waiting = self.rounds.get(waiter)
                if waiting is not None:
                    waiting.settle_key(manifest.key, Settlement(KeyOutcome.COMPILED, kernel=manifest.id))
                    touched.add(waiter)
        self._finish(touched, now)

    def failed(self, tries: Iterable[Try], now: float) -> None:
        """These tries ended without a kernel; what is given up is told to its waiters, the rest waits for a worker again."""
        touched: set[str] = set()
        for attempt in tries:
            lost = self.flights.failed(attempt)
            if lost is None:
                continue
            self._give_up(lost)
            touched |= lost.flight.waiters
        self._finish(touched & self.rounds.keys(), now)

    def moved(self, keys: Iterable[str], now: float) -> None:
        """The toolchain changed under these keys: whoever waits for them needs other ones."""
        flights = [flight for flight in map(self.flights.landed, keys) if flight is not None]
        for name in {waiter for flight in flights for waiter in flight.waiters} & self.rounds.keys():
            waiting = self.rounds[name]
            if waiting.result is None:
                self._ledger.renew(waiting)
                self._queue(waiting, now)

    def refuse_waiting(self, reason: str, why: Reason, now: float) -> None:
        """Nothing can be compiled just now (for lack of space, say): whoever waits is told, and what was published stays."""
        touched: set[str] = set()
        for flight in self.flights.drop_waiting():
            touched |= flight.waiters & self.rounds.keys()
            for waiter in flight.waiters & self.rounds.keys():
                self.rounds[waiter].settle_key(flight.need.key, Settlement(KeyOutcome.FAILED, reason=reason, why=why))
        if touched:
            log.error("%d rounds are told: %s", len(touched), reason)
        self._finish(touched, now)

    def _give_up(self, lost: GivenUp) -> None:
        need = lost.flight.need
        log.warning("%s has no kernel: %s", need.record.op_type, lost.reason)
        if lost.remember:
            try:
                self._stores.remember_failure(lost)
            except StoreError as error:
                log.error("this failure is not remembered: %s", error)
        for waiter in lost.flight.waiters:
            if waiter in self.rounds:
                self.rounds[waiter].settle_key(need.key, Settlement(lost.outcome, reason=lost.reason))

    def _finish(self, touched: Iterable[str], now: float) -> None:
        for name in touched:
            waiting = self.rounds[name]
            self.changed.add(name)
            if not waiting.open_keys and waiting.result is None:
                self._settle(waiting, now)

    # ---- settling ----------------------------------------------------------------------------------------------------

    def _settle(self, done: Round, now: float) -> None:
        """Every key has its outcome: assemble the view of what this process does not have yet, and tell.

        What turns out stale or damaged just now is asked for anew, a bounded number of times, and the round waits for it.
        """
        if done.id in self.placing:
            return
        if self._ledger.renew(done):
            self._queue(done, now)
            return
        try:
            assembled = self._assembly.of(done)
        except StoreError as error:
            if self._ledger.mend(done):
                self._queue(done, now)
                return
            log.error("round %s has no view: %s", done.id[:8], error)
            assembled = Assembled(None, 0, {}, problem=error.message)
        told = self.placing.begin(done, assembled, now)
        if told is not None:
            self._conclude(done, told, now)

    def placed(self, name: str, placed: Placed, now: float) -> None:
        """A round's kernels are in the shared op library now, or cannot be."""
        told, done = self.placing.ended(name, placed), self.rounds.get(name)
        if told is None or done is None or done.result is not None:
            return
        if placed.incomplete and self._ledger.mend(done):  # the store's copies are damaged
            self._queue(done, now)
        elif all(self._keyer.is_current(need) for need in done.needs.values()):
            self._conclude(done, told, now)
        else:
            self._settle(done, now)

    def _conclude(self, done: Round, assembled: Assembled, now: float) -> None:
        done.result = result_of(done, assembled, gathered=len(self.gathered(done)))
        done.state = RoundState.SETTLED
        if not done.settled_at:  # what is told again counts once
            self._stores.count(hits=done.result.hits, failed=done.result.failed)
        done.settled_at = now
        self.quotas.release(done.id)
        self._kept.add(done)
        if done.durable:
            try:
                self._stores.rounds.settle(done.id)
            except StoreError as error:
                log.error("round %s is settled again at the next start: %s", done.id[:8], error)
            done.durable = False
        self.changed.add(done.id)
        told = done.result
        log.info(
            "round %s of job %s: %s(%s), %d kernels: %d hit, %d compiled, %d failed",
            *(done.id[:8], done.job, told.state, told.reason, len(done.needs), told.hits, told.compiled, told.failed),
        )

    # ---- questions ---------------------------------------------------------------------------------------------------

    def round_of(self, session: Session, round_id: str) -> Round:
        """A round of this session's user; Refused if there is none."""
        found = self.rounds.get(round_id)
        if found is None or found.uid != session.peer.uid:
            raise Refused("UNKNOWN_ROUND", f"no round {round_id}", hint="submit it again; nothing is compiled twice")
        return found

    def gathered(self, asked: Round) -> list[Record]:
        """The unique records of all ranks in the round's group."""
        unique: dict[str, Record] = {}
        for member in self._windows.members(asked):
            other = self.rounds.get(member)
            if other is not None and other.uid == asked.uid:
                for key, need in other.needs.items():
                    unique.setdefault(key, need.record)
        return list(unique.values())

    def may_lease(self, session: Session, view: str) -> bool:
        """Whether a round of this session's user was settled with this view, and it is still there."""
        given = any(r.uid == session.peer.uid and r.result is not None and r.result.view == view for r in self.rounds.values())
        return given and view in self._stores.views

    def loaded(self, session: Session, view: str) -> None:
        """The process behind a session has leased a view."""
        self._assembly.loaded(session, view)

    def views_in_use(self, now: float) -> set[str]:
        """Views that were told to somebody a short while ago, who may be about to lease them."""
        recent = (r.result for r in self.rounds.values() if r.result is not None and now - r.settled_at < VIEW_GRACE_S)
        return {result.view for result in recent if result.view is not None} | self.placing.views

    def eta(self, asked: Round, now: float) -> float | None:
        """Seconds until the round is settled, as past runs tell; None where there are none, or this one has outlived the estimate."""
        if asked.result is not None:
            return 0.0
        expected = self._stores.expected_s((asked.needs[key].record.op_type for key in asked.open_keys), self._config.jobs)
        left = 0.0 if asked.compiling_since is None else asked.compiling_since + expected - now
        return left if left > 0 else None


def _entry(session: Session, submit: Submit, raw: Sequence[tuple[str, bytes]]) -> RoundEntry:
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
