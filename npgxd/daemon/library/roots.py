"""The shared op library of CANN before 9.1.0 as the daemon keeps it: what is needed is in it, and nobody waits for a disk.

All work on the root is done by one thread, one task at a time; the loop hands it what is wanted and takes what became of it.
Rounds wait for their kernels to be in the root; with CANN 9.1.0 and later nothing here is ever used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from npgxd.daemon.library.departures import Departures, Witnesses
from npgxd.daemon.library.hurt import Hurt
from npgxd.daemon.library.needs import Wanted
from npgxd.daemon.library.placing import Placed, reason_of
from npgxd.oplib.shared_root import Look, SharedRoot, Synced
from npgxd.oplib.shared_root_choice import short
from npgxd.oplib.shared_root_past import Past
from npgxd.oplib.shared_root_place import InUse, LibraryError, default_root
from npgxd.oplib.users import User, cann_users, started_s, still_run, user_of
from npgxd.wire.printable import counted
from npgxd.wire.states import Reason, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.config import LibrarySection
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.store.manifest import KernelManifest

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
"""How often what others do to the root is looked for; damage is to be noticed within 5 s."""
RETRY_S: Final = 5.0
REFRESH_S: Final = 10.0
"""How often the toolchain is looked at while the root holds kernels: stale ones are to leave its index before new processes load them."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    kernels: tuple[str, ...]
    session: str


@dataclass(frozen=True, slots=True)
class _Done:
    """What a task found."""

    adopted: frozenset[str] | None = None
    look: Look = field(default_factory=Look)
    synced: Synced | None = None
    away: frozenset[str] = frozenset()
    """Kernels that had to be brought in at the first look after a start."""
    leftovers: frozenset[str] = frozenset()
    users: frozenset[User] = frozenset()
    running: frozenset[User] | None = None
    removed: frozenset[str] = frozenset()


class OpLibrary:
    """The root of the present toolchain, if it is one that is shared."""

    def __init__(self, settings: LibrarySection, stores: Stores, keyer: Keyer, sessions: Sessions) -> None:
        self._stores = stores
        self._keyer = keyer
        self._sessions = sessions
        self.settled_at: Callable[[str], float] = lambda _round: 0.0
        """When a round was settled, in the loop's time; the coordinator knows."""
        self._wanted = Wanted(settings.leave_after_s, stores, keyer)
        self._past = Past(stores.state, stores.boot)
        self._hurt = Hurt(stores, sessions, self._past)
        self._unreadable = settings.unreadable == "wait"
        self._root: SharedRoot | None = None
        self._former: SharedRoot | None = None
        """The root of before, which led elsewhere."""
        self._adopted = False
        self._synced = Synced("")
        self._manifests: dict[str, KernelManifest] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._departures = Departures()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="op-library")
        self._task: Future[_Done] | None = None
        self._tasked: tuple[str, ...] = ()
        """Rounds that the task under way is for."""
        self._dirty = False
        self._next = 0.0
        self._good_at = 0.0
        self._refreshed_at = 0.0
        self._moves = keyer.moves
        self.error: LibraryError | None = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)

    # ---- what the rest of the daemon asks ----------------------------------------------------------------------------

    @property
    def strategy(self) -> Strategy:
        """How kernels reach processes with the present toolchain."""
        toolchain = self._keyer.toolchain
        return Strategy.VIEW if toolchain is None or toolchain.supports_install_path else Strategy.SHARED_ROOT

    def fileno(self) -> int:
        """Readable when a task has ended."""
        return self._wake_read.fileno()

    def check(self) -> None:
        """NotWritable or LibraryError, before anything is compiled, if nothing could be installed."""
        if self.strategy is Strategy.SHARED_ROOT:
            self._present_root().check()
            if isinstance(self.error, InUse):
                raise self.error

    def returned(self, session: Session, now: float) -> None:
        """A process said hello that leased kernels before."""
        if self.strategy is Strategy.SHARED_ROOT:
            self._hurt.returned(session, now)

    def place(self, round_id: str, kernels: tuple[str, ...], session: str, now: float) -> Placed | None:
        """Have a round's kernels where the session's process loads them; None: that takes a while, and ``take`` tells."""
        if self.strategy is Strategy.VIEW:
            return Placed()
        if not kernels:
            return Placed(Strategy.SHARED_ROOT)
        waiting = _Waiting(kernels, session)
        try:
            root = self._present_root() if self._task is None else None
        except LibraryError:
            root = None  # ``tick`` tells
        known = self._synced.installed | (self._synced.shadowed or {}).keys()
        if root is not None and known.issuperset(waiting.kernels) and root.intact(waiting.kernels):
            self._wanted.need(waiting.kernels, now)
            return self._placed(waiting)
        self._waiting[round_id] = waiting
        self._dirty = True
        return None

    def tick(self, now: float, awaited: Callable[[], set[str]]) -> float:
        """Start what is due; when to come back. ``awaited`` tells the views that somebody is about to lease."""
        if self._task is not None:
            return float("inf")
        if self.strategy is Strategy.VIEW:
            self._leave_root()
            self._drop_former()
            return float("inf")
        try:
            root = self._present_root()
            moved, self._moves = self._keyer.moves != self._moves, self._keyer.moves
            if self._waiting or moved or now >= self._next:
                self._begin(root, awaited, now)
        except LibraryError as error:
            self._failed(error)
            self._next, self._tasked = now + RETRY_S, tuple(self._waiting)
            if self._tasked:
                self._wake()  # they are told by ``take``
        return float("inf") if self._task is not None else self._next

    def take(self, now: float) -> dict[str, Placed]:
        """What became of the task that ended: rounds whose kernels are in place, or cannot be."""
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(64)
        task = self._task
        if task is not None and not task.done():
            return {}
        tasked, self._tasked = self._tasked, ()
        if task is not None:
            self._task, self._next = None, now + LOOK_S
            try:
                done = task.result()
            except LibraryError as error:
                self._failed(error)
                self._dirty, self._next, tasked = True, now + RETRY_S, tuple(self._waiting)
            else:
                self.error = None
                self._learn(done, now)
        return {name: self._placed(waiting) for name in tasked if (waiting := self._waiting.pop(name, None)) is not None}

    def describe(self) -> dict[str, object]:
        """For the status document."""
        if self.strategy is Strategy.VIEW:
            return {"strategy": str(self.strategy)}
        return {
            "strategy": str(self.strategy),
            "root": "" if self._root is None else str(self._root.root),
            "marker": self._synced.marker,
            "kernels": len(self._synced.installed),
            "shadowed": len(self._synced.shadowed or {}),
            "leaving": len(self._departures),
            "damage": self._hurt.describe(),
            "problem": "" if self.error is None else str(self.error),
        }

    def close(self) -> None:
        """Let what runs end, and give the root up; what is in it stays."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._drop_former()
        if self._root is not None:
            self._root.close()
        self._wake_read.close()
        self._wake_write.close()

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def _begin(self, root: SharedRoot, awaited: Callable[[], set[str]], now: float) -> None:
        """Hand the thread what there is to do."""
        if not self._adopted:
            self._adopt(root)
            return
        if self._manifests and now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            self._keyer.refresh(now)
        for waiting in self._waiting.values():
            self._wanted.need(waiting.kernels, now)
        self._wanted.need_views({*awaited(), *self._stores.leases.views_in_use()}, now)
        manifests, outdated = self._wanted.manifests(now)
        if not manifests and not self._manifests and not self._waiting and not len(self._departures) and not self._dirty:
            self._next = now + LOOK_S
            return
        due = self._dirty or manifests.keys() != self._manifests.keys()
        known, awaited_users = bool(self._synced.marker), self._departures.users
        self._manifests, self._dirty, self._tasked = manifests, False, tuple(self._waiting)

        def work() -> _Done:
            look = root.look() if known else Look()
            if not due and not look.changed:
                return _Done(running=still_run(awaited_users))
            synced = root.sync(manifests.values(), outdated)
            away = frozenset() if known else synced.brought
            leftovers = root.leftovers()
            users = cann_users(unreadable=self._unreadable) if leftovers else frozenset()
            return _Done(look=look, synced=synced, away=away, leftovers=leftovers, users=users)

        self._start(work)

    def _adopt(self, root: SharedRoot) -> None:
        """Find what an earlier life installed; and what has become of another root where the way to it led to that one before."""
        former, self._former = self._former, None

        def work() -> _Done:
            look = Look()
            if former is not None:
                with contextlib.suppress(LibraryError):  # it cannot be told
                    look = former.look()
                former.close()
            return _Done(adopted=root.present(), look=look)

        self._start(work)

    def _start(self, act: Callable[[], _Done]) -> None:
        def run() -> _Done:
            try:
                return act()
            except LibraryError:
                raise
            except Exception as error:
                log.exception("internal error in the op library")
                raise LibraryError(f"npgxd failed at the op library: {error}", hint="its log says more") from error

        try:
            self._task = self._executor.submit(run)
        except RuntimeError as error:
            raise LibraryError(f"no thread can be had for the op library: {error}", hint="raise TasksMax= of the unit") from error
        self._task.add_done_callback(lambda _task: self._wake())

    def _wake(self) -> None:
        try:
            self._wake_write.send(b".")
        except (BlockingIOError, OSError):
            log.debug("the loop is awake, or has ended")

    def _learn(self, done: _Done, now: float) -> None:
        self._hurt.found(done.look, now, lambda session: self.settled_at(session.round) >= self._good_at)
        if done.adopted is not None:
            self._adopted, self._dirty, self._next = True, self._root is not None and self._root.exists, now
            self._wanted.adopt(done.adopted, now)
            return
        self._hurt.while_away(done.away, now)
        if done.synced is not None:
            self._took(done, done.synced, now)
        if done.running is not None:
            self._part(done.running)
        self._departures.again(done.removed)
        self._good_at = now

    def _took(self, done: _Done, synced: Synced, now: float) -> None:
        known, self._synced = self._synced.failed or {}, synced
        for kernel, why in (synced.failed or {}).items():
            if known.get(kernel) != why:
                log.error("kernel %s is not in the op library: %s", short(kernel), why)
        if synced.failed:  # for want of space, say
            self._dirty, self._next = True, now + RETRY_S
        self._departures.again(map(short, synced.installed))
        fresh = [kernel for kernel in done.leftovers if kernel not in self._departures]
        if fresh:
            log.info(
                "%s left the op library's index; the files go when every process of now has ended",
                counted(len(fresh), "kernel has", "kernels have"),
            )
            self._departures.begin(fresh, self._witnesses(done.users))

    def _witnesses(self, users: frozenset[User]) -> Witnesses:
        """Whoever may have loaded what was in the index until just now: more than that harms nobody."""
        visible = {session.id: user_of(session.peer.pid) if session.peer.pid else None for session in self._sessions}
        hidden = (self._stores.leases.facts_of(path.name) for path in self._stores.state.leases.iterdir())
        return Witnesses(
            users | {user for user in visible.values() if user is not None},
            frozenset(facts.lease for facts in hidden if facts is not None and (not facts.pid or user_of(facts.pid) is None))
            | {session for session, user in visible.items() if user is None},
        )

    def _part(self, running: frozenset[User]) -> None:
        there = {path.name for path in self._stores.state.leases.iterdir()} | {session.id for session in self._sessions}
        over = self._departures.over(running, there)
        root = self._root
        if over and root is not None and self._task is None:

            def remove() -> _Done:
                return _Done(removed=root.remove(over) | over)

            leaving = counted(len(over), "kernel leaves", "kernels leave")
            log.info("%s the op library: no process needs that, or could have loaded it", leaving)
            self._start(remove)

    def _placed(self, waiting: _Waiting) -> Placed:
        """What can be told of a round's kernels now."""
        error, synced = self.error, self._synced
        if error is not None:
            why = reason_of(error)
            return Placed(Strategy.SHARED_ROOT, problem=error.message, hint=error.hint, why=why, usable=False)
        shadowed: dict[str, Reason] = {}
        started = next((started_s(s.peer.pid) for s in self._sessions if s.id == waiting.session), 0.0)
        for kernel in waiting.kernels:
            manifest = self._manifests.get(kernel)
            if manifest is None:
                continue
            if kernel in (synced.shadowed or {}):
                shadowed[manifest.key] = Reason.SHADOWED
            elif self._root is not None and self._root.earlier(manifest, started):
                shadowed[manifest.key] = Reason.RESTART_NEEDED
        absent = [kernel for kernel in waiting.kernels if kernel not in synced.installed | (synced.shadowed or {}).keys()]
        problem = ""
        if absent:
            told = (synced.failed or {}).get(absent[0], "the toolchain has changed since it was compiled")
            problem = f"{len(absent)} of {counted(len(waiting.kernels), 'kernel')} not in the op library: {told}"
        return Placed(Strategy.SHARED_ROOT, synced.marker, shadowed, problem)

    # ---- trouble -----------------------------------------------------------------------------------------------------

    def _failed(self, error: LibraryError) -> None:
        if self.error is None or self.error.message != error.message:
            log.error("op library: %s", error)
        self.error = error

    # ---- the root ----------------------------------------------------------------------------------------------------

    def _present_root(self) -> SharedRoot:
        """The root of the present toolchain; not to be called while a task runs on another one."""
        toolchain = self._keyer.toolchain
        if toolchain is None:
            raise LibraryError(self._keyer.problem or "no toolchain")
        path = default_root(toolchain.environment)
        present = self._root
        if present is not None:
            same = (present.root, present.family, os.fspath(present.real)) == (path, toolchain.family, os.path.realpath(path))
            if same or self._task is not None:
                return present
        self._leave_root()
        stores = self._stores
        self._root = SharedRoot(path, toolchain.family, stores.kernels.directory, disk=stores.state.disk, past=self._past)
        return self._root

    def _leave_root(self) -> None:
        if self._root is not None:
            self._drop_former()
            self._former = self._root
            self._root, self._adopted, self._synced, self._manifests = None, False, Synced(""), {}
            self._departures = Departures()

    def _drop_former(self) -> None:
        if self._former is not None:
            self._former.close()
            self._former = None
