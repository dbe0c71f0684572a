"""The heart of the daemon: rounds come in, each key is present, in flight or missing, and every round is settled key by key.

It owns rounds, groups and keys in flight, and knows neither sockets nor processes: compiled kernels and failed tries are told to it
by the dispatcher, and whoever follows a round reads ``changed``.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from npgxd.daemon.demand.flights import Flights
from npgxd.daemon.demand.rounds import Assembled, Round, Settlement, result_of
from npgxd.daemon.keeping.metrics_histograms import ROUND_WAIT
from npgxd.daemon.library.placing import Placing
from npgxd.daemon.refusals import Refused
from npgxd.daemon.scheduling.assembly import Assembly
from npgxd.daemon.scheduling.attendance import Attendance
from npgxd.daemon.scheduling.churn import Churn, graph_of
from npgxd.daemon.scheduling.kept import Kept
from npgxd.daemon.scheduling.ledger import Ledger
from npgxd.daemon.scheduling.misses import Misses
from npgxd.daemon.scheduling.outcomes import Outcomes
from npgxd.daemon.scheduling.postponed import Postponed
from npgxd.daemon.scheduling.prospects import Prospects
from npgxd.daemon.scheduling.quotas import Quotas
from npgxd.daemon.scheduling.settling import Settling
from npgxd.daemon.scheduling.tracing import Mark, Tracing
from npgxd.daemon.scheduling.windows import Windows
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.config import Config
    from npgxd.daemon.demand.tries import Try
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.library.placing import Placed
    from npgxd.daemon.library.roots import OpLibrary
    from npgxd.daemon.scheduling.groups import Group
    from npgxd.daemon.scheduling.settling import Ended
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.store.manifest import KernelManifest
    from npgxd.store.rounds import RoundEntry
    from npgxd.toolchain.record import Record
    from npgxd.wire.messages import Submit

log = logging.getLogger(__name__)

VIEW_GRACE_S = 60.0
"""A view that was told to a client is kept this long for it to lease."""


ENTER_KEYS = 256
"""Keys of closed groups that are put in flight in one go, but for those of the last round: a few milliseconds."""


class Coordinator:
    """Rounds, groups and keys of one daemon. All times are monotonic seconds, passed in."""

    def __init__(
        self, config: Config, stores: Stores, keyer: Keyer, sessions: Sessions, library: OpLibrary | None = None
    ) -> None:
        self._config = config
        self._stores = stores
        self._keyer = keyer
        self.flights = Flights(config.compile.attempts, stores.costs)
        self.prospects = Prospects(self.flights, stores.costs, config.compile.batch_s)
        self.rounds: dict[str, Round] = {}
        self.placing = Placing(library)
        self.quotas = Quotas(config.limits)
        self.churn = Churn(config.limits)
        self._windows = Windows(sessions, config.group)
        self._assembly = Assembly(stores, sessions)
        self._ledger = Ledger(stores, keyer)
        self._attendance = Attendance(sessions, config.compile.background_s)
        self._outcomes = Outcomes(self.rounds, self.flights, stores, config.compile.remember_s)
        self.settling = Settling(keyer, self._ledger, self._assembly, self.placing)
        self._misses = Misses(stores, self.flights)
        self.trace = Tracing()
        self.postponed = Postponed(self._ledger)
        self._kept = Kept()
        self.enter_keys = ENTER_KEYS
        self.entering: deque[str] = deque()
        """Rounds of closed groups whose keys are not in flight yet: workers are given none of a group before all of it is there."""
        self.changed: set[str] = set()
        """Rounds about which their followers are to be told something."""

    def reconfigured(self) -> None:
        """The configuration was reloaded: what is not read at its use is taken anew."""
        settings = self._config.compile
        self.flights.attempts, self.prospects.batch_s = settings.attempts, settings.batch_s
        self._attendance.background_s, self._outcomes.remember_s = settings.background_s, settings.remember_s

    # ---- submissions -------------------------------------------------------------------------------------------------

    def accept(self, session: Session, submit: Submit, raw: Sequence[tuple[str, bytes]], now: float) -> Round:
        """Take a round: settled at once if all is known, else durable in the journal before this returns."""
        known = self.rounds.get(submit.round)
        if known is not None:
            return self.adopt(known, session, now)
        self.postponed.submitted(submit.round, session.peer.uid)
        self._keyer.refresh(now)
        taken = self._ledger.round(self._ledger.entry(session, submit, raw), session.id, now)
        if not submit.recompile:
            self._ledger.settle_known(taken)
        if taken.open_keys:
            self.quotas.check(taken.uid, taken.open_keys, taken.size)
            self._cap(taken, session)
        if taken.open_keys:
            self._ledger.make_durable(taken)
        session.round = taken.id
        self.postponed.forget(taken.id)
        self._misses.count(taken)
        self._stores.count(rounds=1, records=len(raw))
        self.trace.submitted(taken, session, now)
        self._admit(taken, now)
        self._join_group(taken, session, now)
        if taken.result is None:  # also one that waits only for its known kernels to be put into a shared op library
            self._ledger.make_durable(taken)
        return taken

    def _cap(self, taken: Round, session: Session) -> None:
        """Operators that keep changing are not compiled any more: that is their outcome, with the reason."""
        missing = ((key, taken.needs[key].record) for key in taken.open_keys)
        for key, reason in self.churn.take(graph_of(session, taken.graph), missing).items():
            taken.settle_key(key, Settlement(KeyOutcome.CAPPED, reason=reason, why=Reason.CHURN))

    def resume(self, entries: Iterable[RoundEntry], now: float) -> int:
        """Take up the rounds that an earlier life accepted and did not settle; their number. Without a toolchain they wait for one."""
        self.postponed.add(entries)
        taken = self._take_up(now)
        self._enter(now)
        return taken

    def _take_up(self, now: float) -> int:
        rounds = self.postponed.take_up(now)
        for taken in rounds:
            taken.durable = True
            self._ledger.settle_if_known(taken)
            self._admit(taken, now)
            self._close(self._windows.alone(taken, now))
        return len(rounds)

    def adopt(self, known: Round, session: Session, now: float) -> Round:
        """A process asks again for a round, perhaps on a new connection: it is that session's round from now on."""
        if known.uid != session.peer.uid:
            raise Refused("UNKNOWN_ROUND", "no such round of this user", hint="submit under a new round id")
        other, known.session = known.session != session.id, session.id
        session.round = known.id
        told = known.result
        if told is None:
            if self._attendance.returned(known):
                self.flights.attend(known.waiter, known.open_keys, now)
        elif self._ledger.revive(known):
            self._under_way(known, now)
            self._queue(known, now)
        elif other or told.root or (told.view is not None and told.view not in self._stores.views):
            # Its view, or the root that it is in, is gone, or was made for what another process has loaded: it is made anew.
            known.result, known.state = None, RoundState.QUEUED
            self._under_way(known, now)
            self._ledger.hold(known)
            self._settle_at_once(known, now)
        if known.result is None:
            self._ledger.make_durable(known)
        return known

    def _admit(self, taken: Round, now: float) -> None:
        self.rounds[taken.id] = taken
        self._under_way(taken, now)
        for old in self._kept.excess(now, self._config.group.recording_s):
            self.rounds.pop(old.id, None)
            self._windows.forget(old, self.rounds)

    def _under_way(self, taken: Round, now: float) -> None:
        self._kept.drop(taken.id)
        self.quotas.charge(taken.id, taken.uid, taken.open_keys, taken.size)
        self._attendance.begin(taken, now)

    def gave_up(self, session: Session, graph: str, now: float) -> None:
        """A process runs a graph without its kernels from now on: nobody waits for its rounds of that graph any more."""
        for left in [r for r in self.rounds.values() if r.session == session.id and r.graph == graph and r.result is None]:
            if self._attendance.gave_up(left, now):
                log.info("pid %d waits no more for round %s: it goes on in the background", session.peer.pid, left.id[:8])
                self.flights.attend(left.waiter, left.open_keys, now)

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _join_group(self, taken: Round, session: Session, now: float) -> None:
        full = self._windows.join(taken, session, now)
        if full is not None:
            self._close(full)
        if not taken.open_keys:
            self._settle_at_once(taken, now)  # a full hit never waits; local rank 0 may still ask for its group's records
        self.tick(now)

    def expected(self, job: str) -> tuple[int | None, str]:
        """How many ranks a job has on this node, and a note for them when that cannot be told."""
        return self._windows.expected(job)

    def tick(self, now: float) -> float:
        """Close the windows whose time has come, and see who still waits; when there is something to do next (``inf``: nothing)."""
        if now >= self.postponed.due:
            self._keyer.find_if_missing(now)
            self._take_up(now)
        for group in self._windows.due(now):
            self._close(group)
        self._enter(now)
        changes = self._attendance.tick(now)
        for left in changes.dropped:
            log.info("no process waits for round %s of job %s any more: it goes on in the background", left.id[:8], left.job)
            self.flights.attend(left.waiter, left.open_keys, now)
        for left in changes.expired:
            self._finish(self._outcomes.expired(left, self._config.compile.background_s))
        due = min(self.postponed.due, self._windows.next_close(), self._attendance.next_check)
        return now if self.entering else due

    def _close(self, group: Group) -> None:
        """The group is complete, or is not waited for any longer: its missing keys go to the workers, its known ones are settled."""
        self._windows.close(group)
        self.entering += group.rounds

    def _enter(self, now: float) -> None:
        """Rounds of groups that were closed, a few large ones at a time."""
        left = self.enter_keys
        while self.entering and left > 0:
            waiting = self.rounds.get(self.entering.popleft())
            if waiting is None or waiting.result is not None:
                continue
            left -= len(waiting.needs)
            if waiting.open_keys:
                self._ledger.settle_if_known(waiting)  # another group may have finished some of them meanwhile
            self._queue(waiting, now)

    def _queue(self, waiting: Round, now: float) -> None:
        """Its open keys are in flight from now on; without any it is settled."""
        waiting.state = RoundState.QUEUED
        self.trace.mark(Mark.QUEUED, waiting.id, now)
        self.changed.add(waiting.id)
        for key in waiting.open_keys:
            self.flights.add(waiting.needs[key], waiting.waiter, now)
        if not waiting.open_keys:
            self.settling.add(waiting)

    # ---- what the workers tell ---------------------------------------------------------------------------------------

    def compiling(self, keys: Iterable[str], now: float, current: tuple[str, ...] = ()) -> None:
        """A worker has these keys, and is at ``current``."""
        for name in self.flights.waiters(keys) & self.rounds.keys():
            waiting = self.rounds[name]
            if waiting.state is not RoundState.COMPILING:
                self.trace.mark(Mark.COMPILING, waiting.id, now)
            waiting.state = RoundState.COMPILING
            waiting.current = current[:8]
            self.changed.add(name)

    def landed(self, manifests: Iterable[KernelManifest]) -> None:
        """These kernels are published."""
        self._finish(self._outcomes.landed(manifests))

    def failed(self, tries: Iterable[Try], now: float) -> None:
        """These tries of one run ended without a kernel; what is given up is told to its waiters, the rest waits for a worker again."""
        self._finish(self._outcomes.failed(tries, now))

    def moved(self, keys: Iterable[str], now: float) -> None:
        """The toolchain changed under these keys: whoever waits for them needs other ones."""
        for name in self._outcomes.moved(keys):
            waiting = self.rounds[name]
            if waiting.result is None:
                self._ledger.renew(waiting)
                self._queue(waiting, now)

    def refuse_waiting(self, reason: str, why: Reason) -> None:
        """Nothing can be compiled just now (for lack of space, say): whoever waits is told, and what was published stays."""
        self._finish(self._outcomes.refused(reason, why))

    def _finish(self, touched: Iterable[str]) -> None:
        for name in touched:
            waiting = self.rounds[name]
            self.changed.add(name)
            if not waiting.open_keys and waiting.result is None:
                self.settling.add(waiting)

    # ---- settling ----------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> float:
        """Settle rounds that are complete for one slice, at most one of them; when to come back (``inf``: none is left)."""
        self._ended(self.settling.slice(now), now)
        return now if self.settling else float("inf")

    def _settle_at_once(self, done: Round, now: float) -> None:
        self._ended(self.settling.at_once(done, now), now)

    def placed(self, name: str, placed: Placed, now: float) -> None:
        """A round's kernels are in the shared op library now, or cannot be."""
        self._ended(self.settling.placed(self.rounds.get(name), name, placed), now)

    def _ended(self, ended: Ended | None, now: float) -> None:
        """The round is told, or waits for the op library, or for keys that are to be compiled anew."""
        if ended is None:
            return
        if ended.told is not None:
            self._conclude(ended.done, ended.told, now)
        elif ended.done.open_keys:
            self._queue(ended.done, now)

    def _conclude(self, done: Round, assembled: Assembled, now: float) -> None:
        done.result = result_of(done, assembled, gathered=len(set().union(*(other.needs for other in self._group(done)))))
        done.state = RoundState.SETTLED
        if not done.settled_at:  # what is told again counts once
            waited = ROUND_WAIT.counted(now - done.accepted_at)
            self._stores.count(hits=done.result.hits, failed=done.result.failed, **waited)
        done.settled_at = now
        self.trace.mark(Mark.SETTLED, done.id, now)
        self.quotas.release(done.id)
        self._attendance.end(done.id)
        self._kept.add(done)
        self._ledger.settled(done)
        self.changed.add(done.id)
        told = done.result
        log.log(
            logging.WARNING if told.state is ClientState.DEGRADED else logging.INFO,
            "round %s of job %s: %s(%s), %s: %d hit, %d compiled, %d failed",
            *(
                done.id[:8],
                done.job,
                told.state,
                told.reason,
                counted(len(done.needs), "kernel"),
                told.hits,
                told.compiled,
                told.failed,
            ),
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
        for other in self._group(asked):
            for key, need in other.needs.items():
                unique.setdefault(key, need.record)
        return list(unique.values())

    def _group(self, asked: Round) -> list[Round]:
        others = map(self.rounds.get, self._windows.members(asked))
        return [other for other in others if other is not None and other.uid == asked.uid]

    def may_lease(self, session: Session, view: str) -> bool:
        """Whether a round of this session's user was settled with this view, and it is still there."""
        given = any(r.uid == session.peer.uid and r.result is not None and r.result.view == view for r in self.rounds.values())
        return given and view in self._stores.views

    def loaded(self, session: Session, view: str) -> None:
        """The process behind a session holds the lease of a view."""
        self._assembly.loaded(session, view)

    def leased(self, session: Session, view: str, now: float) -> None:
        """It has just leased it."""
        mine = (r for r in self.rounds.values() if r.session == session.id and r.result is not None and r.result.view == view)
        self.trace.leased([r.id for r in mine], now)
        self.loaded(session, view)

    def views_in_use(self, now: float) -> set[str]:
        """Views that were told to somebody a short while ago, who may be about to lease them."""
        recent = (r.result for r in self.rounds.values() if r.result is not None and now - r.settled_at < VIEW_GRACE_S)
        return {result.view for result in recent if result.view is not None} | self.placing.views

    def eta(self, asked: Round, now: float) -> float | None:
        """Seconds until the round is settled, as the planner goes about it; None where nothing was compiled yet, or a run is late."""
        if asked.result is not None:
            return 0.0
        return self.prospects.eta(asked.waiter, [asked.needs[key] for key in asked.open_keys], now)
