"""The heart of the daemon: rounds come in, each key is present, in flight or missing, and every round is settled key by key.

It owns rounds, groups and keys in flight, and knows neither sockets nor processes: compiled kernels and failed tries are told to it
by the dispatcher, and whoever follows a round reads ``changed``.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from npgxd.daemon.flights import Flights, GivenUp, Try
from npgxd.daemon.groups import Group, Standing, closes_at, expected_size
from npgxd.daemon.refusals import Refused
from npgxd.daemon.rounds import Assembled, Round, Settlement, result_of
from npgxd.errors import StoreError
from npgxd.store.rounds import RoundEntry
from npgxd.wire.messages import CompileOptions, RankInfo, Rejected, Submit
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.daemon.config import Config
    from npgxd.daemon.keyer import Keyer
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.daemon.stores import Stores
    from npgxd.store.manifest import KernelManifest
    from npgxd.toolchain.record import Record

log = logging.getLogger(__name__)

MAX_ROUNDS_PER_UID = 512
"""Unsettled rounds of one user; more are refused."""
VIEW_GRACE_S = 60.0
"""A view that was told to a client is kept this long for it to lease."""
KEPT_ROUNDS = 1024
"""Settled rounds whose outcome is kept for whoever asks again."""


class Coordinator:
    """Rounds, groups and keys of one daemon. All times are monotonic seconds, passed in."""

    def __init__(self, config: Config, stores: Stores, keyer: Keyer, sessions: Sessions) -> None:
        self._config = config
        self._stores = stores
        self._keyer = keyer
        self._sessions = sessions
        self.flights = Flights(config.compile.attempts)
        self.rounds: dict[str, Round] = {}
        self.groups: dict[str, Group] = {}
        self._open_group: dict[str, Group] = {}
        self.changed: set[str] = set()
        """Rounds about which their followers are to be told something."""

    # ---- submissions -------------------------------------------------------------------------------------------------

    def accept(self, session: Session, submit: Submit, raw: Sequence[tuple[str, bytes]], now: float) -> Round:
        """Take a round: settled at once if all is known, else durable in the journal before this returns."""
        known = self.rounds.get(submit.round)
        if known is not None:
            return self.adopt(known, session, now)
        if sum(r.uid == session.peer.uid and r.result is None for r in self.rounds.values()) >= MAX_ROUNDS_PER_UID:
            raise Refused(
                "LIMIT", f"user {session.peer.uid} has {MAX_ROUNDS_PER_UID} unsettled rounds", hint="wait for some of them"
            )
        self._keyer.refresh(now)
        records, rejected = self._keyer.parse(raw)
        keyed = self._keyer.needs(records, submit.options, session.peer.uid)
        taken = Round(
            id=submit.round,
            uid=session.peer.uid,
            session=session.id,
            job=session.job,
            rank=session.rank,
            graph=submit.graph,
            options=submit.options,
            recompile=submit.recompile,
            records=len(raw),
            rejected=tuple(Rejected(item.name, item.reason[:300]) for item in rejected),
            needs={need.key: need for need in reversed(keyed)},
            accepted_at=now,
        )
        session.round = taken.id
        self._stores.count(rounds=1, records=len(raw))
        if not submit.recompile:
            self._settle_known(taken)
        if taken.open_keys:
            self._stores.rounds.accept(_entry(taken, session))
            taken.durable = True
        self._admit(taken, now)
        self._join_group(taken, session, now)
        return taken

    def resume(self, entries: Iterable[RoundEntry], now: float) -> int:
        """Take up the rounds that an earlier life accepted and did not settle; their number."""
        count = 0
        for entry in entries:
            records, rejected = self._keyer.parse(entry.records)
            options = CompileOptions.parse(dict(entry.options))
            keyed = self._keyer.needs(records, options, entry.uid)
            taken = Round(
                id=entry.round,
                uid=entry.uid,
                session="",
                job=entry.job,
                rank=RankInfo.parse(dict(entry.rank)),
                graph=entry.graph,
                options=options,
                recompile=entry.recompile,
                records=len(entry.records),
                rejected=tuple(Rejected(item.name, item.reason[:300]) for item in rejected),
                needs={need.key: need for need in reversed(keyed)},
                accepted_at=now,
                durable=True,
            )
            if not entry.recompile:
                self._settle_known(taken)
            self._admit(taken, now)
            group = Group(id=f"{taken.job}-{taken.id[:8]}", job=taken.job, opened_at=now, expected=None)
            group.add(taken.id, "", now)
            taken.group = group.id
            self.groups[group.id] = group
            self._close(group, now)
            count += 1
        return count

    def adopt(self, known: Round, session: Session, now: float) -> Round:
        """A process asks again for a round, perhaps on a new connection: it is that session's round from now on."""
        if known.uid != session.peer.uid:
            raise Refused("UNKNOWN_ROUND", "no such round of this user", hint="submit under a new round id")
        known.session = session.id
        session.round = known.id
        if known.result is not None and known.result.view is not None and known.result.view not in self._stores.views:
            self._settle(known, now)  # its view went with its first connection: make it anew
        return known

    def _settle_known(self, taken: Round) -> None:
        present = self._stores.kernels.find_many(list(taken.needs))
        for key, manifest in present.items():
            taken.settle_key(key, Settlement(KeyOutcome.HIT, kernel=manifest.id))
        for key, reason in self._stores.catalog.failures(taken.open_keys).items():
            taken.settle_key(key, Settlement(KeyOutcome.FAILED, reason=reason))

    def _admit(self, taken: Round, now: float) -> None:
        self.rounds[taken.id] = taken
        self._forget_old(now)

    def _forget_old(self, now: float) -> None:
        settled = [r for r in self.rounds.values() if r.result is not None]
        for old in settled[: max(0, len(settled) - KEPT_ROUNDS)]:
            if now - old.settled_at > self._config.group.recording_s:
                self.rounds.pop(old.id, None)
                self._drop_group(old)

    def _drop_group(self, old: Round) -> None:
        group = self.groups.get(old.group)
        if group is not None and not any(member in self.rounds for member in group.rounds):
            del self.groups[group.id]

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _join_group(self, taken: Round, session: Session, now: float) -> None:
        group = self._open_group.get(taken.job)
        if group is None or session.id in group.sessions:
            if group is not None:
                self._close(group, now)
            group = Group(id=f"{taken.job}-{taken.id[:8]}", job=taken.job, opened_at=now, expected=None)
            self._open_group[taken.job] = self.groups[group.id] = group
        group.add(taken.id, session.id, now)
        taken.group = group.id
        group.expected = self.expected(taken.job)[0]
        if not taken.open_keys:
            self._settle(taken, now)  # a full hit never waits; local rank 0 may still ask for its group's records
        self.tick(now)

    def expected(self, job: str) -> tuple[int | None, str]:
        """How many ranks a job has on this node, and a note for them when that cannot be told."""
        stated = [session.rank.local_world_size for session in self._sessions.of_job(job)]
        size, note = expected_size(list(stated), self._config.group.local_world_size)
        alone = len(stated) <= 1 and all((s.rank.world_size or 1) <= 1 for s in self._sessions.of_job(job))
        return size, "" if alone else note

    def _closing(self, group: Group) -> float:
        others = [session for session in self._sessions.of_job(group.job) if session.id not in group.sessions]
        recording = tuple(s.state_since for s in others if s.state is ClientState.RECORDING)
        return closes_at(group, Standing(connected=len(others), recording_since=recording), self._config.group)

    def tick(self, now: float) -> float:
        """Close the windows whose time has come; when the next one closes (``inf``: none is open)."""
        next_close = float("inf")
        for group in list(self._open_group.values()):
            closing = self._closing(group)
            if closing <= now:
                self._close(group, now)
            else:
                next_close = min(next_close, closing)
        return next_close

    def close_all(self, now: float) -> None:
        """Close every window (the daemon stops)."""
        for group in list(self._open_group.values()):
            self._close(group, now)

    def _close(self, group: Group, now: float) -> None:
        """The group is complete, or is not waited for any longer: its missing keys go to the workers, its known ones are settled."""
        group.closed = True
        if self._open_group.get(group.job) is group:
            del self._open_group[group.job]
        for member in group.rounds:
            waiting = self.rounds[member]
            if waiting.result is not None:
                continue
            if not waiting.recompile:
                self._settle_known(waiting)  # another group may have finished some of them meanwhile
            waiting.state = RoundState.QUEUED
            self.changed.add(waiting.id)
            for key in waiting.open_keys:
                if not self.flights.join(key, waiting.id):
                    self.flights.add(waiting.needs[key], waiting.id)
            if not waiting.open_keys:
                self._settle(waiting, now)

    # ---- what the workers tell ---------------------------------------------------------------------------------------

    def compiling(self, keys: Sequence[str], current: tuple[str, ...] = ()) -> None:
        """A worker has these keys, and is at ``current``."""
        wanted = set(keys)
        for waiting in self.rounds.values():
            if waiting.result is None and not wanted.isdisjoint(waiting.needs):
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

    def no_space(self, reason: str, now: float) -> None:
        """Nothing can be compiled for lack of space: whoever waits is told, and what was published stays."""
        touched: set[str] = set()
        for flight in self.flights.drop_waiting():
            touched |= flight.waiters & self.rounds.keys()
            for waiter in flight.waiters & self.rounds.keys():
                said = Settlement(KeyOutcome.FAILED, reason=reason, why=Reason.NO_SPACE)
                self.rounds[waiter].settle_key(flight.need.key, said)
        if touched:
            log.error("%d rounds are told: %s", len(touched), reason)
        self._finish(touched, now)

    def _give_up(self, lost: GivenUp) -> None:
        need = lost.flight.need
        log.warning("%s has no kernel: %s", need.record.op_type, lost.reason)
        if lost.remember:
            self._stores.remember_failure(lost)
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
        """Every key has its outcome: assemble the view of what this process does not have yet, and tell."""
        assembled = self._assemble(done)
        group = self.groups.get(done.group)
        gathered = sum(len(self.rounds[m].needs) for m in group.rounds if m in self.rounds) if group is not None else 0
        done.result = result_of(done, assembled, gathered)
        done.state = RoundState.SETTLED
        done.settled_at = now
        self._stores.count(hits=done.result.hits, failed=done.result.failed)
        if done.durable:
            self._stores.rounds.settle(done.id)
            done.durable = False
        self.changed.add(done.id)
        log.info(
            "round %s of job %s: %s(%s), %d kernels: %d hit, %d compiled, %d failed",
            done.id[:8],
            done.job,
            done.result.state,
            done.result.reason,
            len(done.needs),
            done.result.hits,
            done.result.compiled,
            done.result.failed,
        )

    def _assemble(self, done: Round) -> Assembled:
        session = next((s for s in self._sessions if s.id == done.session), None)
        loaded = session.loaded if session is not None else {}
        wanted: list[KernelManifest] = []
        shadowed: dict[str, Reason] = {}
        digests: dict[str, None] = {}
        for key, settlement in done.settlements.items():
            if not settlement.kernel:
                continue
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
        try:
            view = self._stores.views.assemble(wanted)
        except StoreError as error:
            log.error("cannot assemble a view: %s", error)
            raise Refused("INTERNAL", f"cannot assemble a view: {error.message}", hint=error.hint) from error
        shadowed |= dict.fromkeys(view.shadowed, Reason.SHADOWED)
        return Assembled(view.digest, len(view.kernels), shadowed, packages)

    def _why_shadowed(self, wanted: KernelManifest, loaded: set[str]) -> Reason:
        """A process that has loaded an older kernel of the same record gets the newer one by a restart; of another record, never."""
        for kernel in loaded:
            try:
                if self._stores.kernels.get(kernel).origin.record_digest != wanted.origin.record_digest:
                    return Reason.SHADOWED
            except StoreError:
                continue  # it is gone from the store, and stays loaded there
        return Reason.RESTART_NEEDED

    # ---- questions ---------------------------------------------------------------------------------------------------

    def round_of(self, session: Session, round_id: str) -> Round:
        """A round of this session's user; Refused if there is none."""
        found = self.rounds.get(round_id)
        if found is None or found.uid != session.peer.uid:
            raise Refused("UNKNOWN_ROUND", f"no round {round_id}", hint="submit it again; nothing is compiled twice")
        return found

    def gathered(self, asked: Round) -> list[Record]:
        """The unique records of all ranks in the round's group."""
        group = self.groups.get(asked.group)
        unique: dict[str, Record] = {}
        for member in group.rounds if group is not None else [asked.id]:
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
        """The process behind a session has leased a view: these kernels are now the first under their names there."""
        try:
            for kernel in self._stores.views.kernels_of(view):
                for name in self._stores.kernels.get(kernel).simplified_keys:
                    session.loaded.setdefault(name, kernel)
        except StoreError as error:
            log.warning("cannot tell all that pid %d has loaded: %s", session.peer.pid, error)

    def views_in_use(self, now: float) -> set[str]:
        """Views that were told to somebody a short while ago, who may be about to lease them."""
        return {
            r.result.view
            for r in self.rounds.values()
            if r.result is not None and r.result.view is not None and now - r.settled_at < VIEW_GRACE_S
        }

    def eta(self, asked: Round) -> float | None:
        """Seconds until the round is settled, as far as past costs tell; None when nothing is known."""
        if asked.result is not None:
            return 0.0
        costs = [self._stores.cost_of(asked.needs[key].record.op_type) for key in asked.open_keys]
        return max(sum(costs) / self._config.jobs, max(costs, default=0.0))


def _entry(taken: Round, session: Session) -> RoundEntry:
    return RoundEntry(
        round=taken.id,
        uid=session.peer.uid,
        gid=session.peer.gid,
        pid=session.peer.pid,
        job=taken.job,
        rank=asdict(taken.rank),
        graph=taken.graph,
        options=asdict(taken.options),
        recompile=taken.recompile,
        records=tuple((need.record.name, need.record.canonical) for need in taken.needs.values()),
        accepted_at=time.time(),
    )
