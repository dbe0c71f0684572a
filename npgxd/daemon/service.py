"""The loop: what ranks sent, pidfds of sessions, the jobs' channels and a wake-up pipe for signals, all on one poller.

It moves messages and time to the parts that decide, and their answers back.  Publishing and removing wait for the disk
beside it (``beside``).  What it still waits for itself: a commit of the catalog, a round or a compile-cache entry that is to be on the disk
before it is acknowledged, and the start of a worker.  A thread that waits for none of this reads what ranks send, and answers look-ups
(``serving/front.py``).
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import zmq

from npgxd.daemon.administering.acts import Acts
from npgxd.daemon.administering.admin import AdminPort
from npgxd.daemon.administering.draining import Draining
from npgxd.daemon.administering.importing import Importer
from npgxd.daemon.caching.at_hand import AtHand
from npgxd.daemon.caching.cached import CachePage
from npgxd.daemon.caching.lookups import Lookups
from npgxd.daemon.compiling.dispatch import Dispatcher
from npgxd.daemon.compiling.housekeeping import GB, Housekeeping
from npgxd.daemon.garbage import Garbage
from npgxd.daemon.library.placing import awaited, settled_at
from npgxd.daemon.library.roots import OpLibrary
from npgxd.daemon.notify import Watchdog, notify
from npgxd.daemon.reloading import Reloading
from npgxd.daemon.scheduling.coordinator import VIEW_GRACE_S, Coordinator
from npgxd.daemon.serving.connections import Connections
from npgxd.daemon.serving.following import Following
from npgxd.daemon.serving.front import Front
from npgxd.daemon.serving.handlers import Handlers
from npgxd.daemon.serving.ranks import RankPort
from npgxd.daemon.sessions import Session, Sessions
from npgxd.daemon.signals import Signals
from npgxd.daemon.slices import Task
from npgxd.daemon.telling.explaining import Explainer
from npgxd.daemon.telling.log_lines import set_up as set_up_log
from npgxd.daemon.telling.metrics import MetricsPage
from npgxd.daemon.telling.metrics_export import Scrapes, Textfile
from npgxd.daemon.telling.status import StatusPage
from npgxd.daemon.telling.tracing_document import frames as trace_frames
from npgxd.daemon.threads import needed
from npgxd.errors import NoThreads
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.config import Config, Settings
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.serving.listening import Doors

log = logging.getLogger(__name__)

REST_S = 1.0
"""After messages that change nothing, what is to be done by the clock alone waits for so long at most."""
FAULT_S = 1.0
"""After a fault of ours, so long until what failed is tried again."""
LONG_S = 0.002
"""A part that took so long is not followed by the next one before ranks were answered."""
FEW = 16
"""More descriptors that are gone than this are not taken out of the poller one by one: each time it moves all that come after."""
LEASE_POLL_S = 5.0
"""How often lease locks are tried for processes that are not visible here, and for leases without a session."""
IDLE_S = 0.02
"""A moment in which nothing is to be done for so long is one to look for garbage in."""
TOGETHER_S = 0.1
"""Ranks of a job end together: their leases are looked at once."""
_LEASES = "leases that have ended are looked for again"


class Service:
    """A daemon that is set up and ready to run."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        keyer: Keyer,
        doors: Doors,
        *,
        read_config: Callable[[], Config],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = settings.live
        self._stores = stores
        self._keyer = keyer
        self._clock = clock
        self.instance = secrets.token_hex(16)
        self._sessions = Sessions()
        self._library = OpLibrary(config.op_library, stores, keyer, self._sessions)
        self._coordinator = Coordinator(config, stores, keyer, self._sessions, self._library)
        self._library.settled_at = partial(settled_at, self._coordinator.rounds)
        self._dispatcher = Dispatcher(config, stores, keyer, self._coordinator)
        self._housekeeping = Housekeeping(config.store, stores, keyer, self._coordinator)
        self._dispatcher.housekeeping = self._housekeeping
        page = StatusPage(config, self.instance, stores, keyer, self._sessions, self._coordinator, self._dispatcher)
        page.removal = self._housekeeping.describe
        page.library = self._library.describe
        self._importer = Importer(config, stores, keyer, self._coordinator, self._dispatcher)
        explainer = Explainer(stores, self._sessions, self._coordinator, self._dispatcher.history, self._dispatcher.stage)
        acts = Acts(
            stores,
            self._coordinator,
            self._housekeeping,
            self._importer,
            explainer,
            lambda why, at_once: self._draining.asked(why, at_once=at_once),
        )
        lookups = Lookups(config.cache, int(config.store.min_free_gb * GB), stores)
        cached = CachePage(config.cache, stores, lookups)
        page.artifacts = cached.summary
        metrics = MetricsPage(page.document, self._sessions, stores.all_counters)
        self._textfile = Textfile(config.metrics, metrics.text)
        self._scrapes = Scrapes(config.metrics.listen, metrics.text)
        self._admin = AdminPort(doors.admins, acts, clock=clock)
        self._page = page
        self._handlers = Handlers(
            instance=self.instance,
            stores=stores,
            keyer=keyer,
            sessions=self._sessions,
            coordinator=self._coordinator,
            library=self._library,
            lookups=lookups,
            cached=cached.frames,
            explained=explainer.frames,
            status=page.frames,
            metrics=metrics.frames,
            trace=partial(trace_frames, self._coordinator.trace),
        )
        self._draining = Draining(
            config, stores, self._sessions, self._coordinator, self._dispatcher, self._handlers, page, clock=clock
        )
        self._reloading = Reloading(settings, read_config, self.describe)
        page.reload = self._reloading.describe
        self._reloading.parts += [
            self._coordinator.reconfigured,
            self._dispatcher.reconfigured,
            self._housekeeping.reconfigured,
            self._textfile.reconfigured,
            lambda: lookups.reconfigured(config.cache, int(config.store.min_free_gb * GB)),
            lambda: set_up_log(config.daemon.log_level, config.daemon.log_format, os.environ),
        ]
        page.progress = explainer.progress = self._handlers.progresses.of
        connections = Connections(doors.path, lambda: config.limits.connections, clock=clock)
        doors.admission.refuses = connections.refuses
        self._front = Front(
            doors, connections, self._sessions, AtHand(self._sessions, lookups.scopes, stores.artifacts), clock=clock
        )
        self._ranks = RankPort(self._front, self._sessions, self._handlers, self._end_session, clock=clock)
        self._following = Following(
            self._handlers.followers,
            self._coordinator,
            self._handlers.progresses,
            lookups,
            self._ranks.send,
        )
        self._doors = doors
        self._signals = Signals()
        self._due = -math.inf
        """When the parts are to be asked again what there is to do."""
        self._poller = self._new_poller()
        self._watched: set[int] = set()
        self._next_lease_poll = 0.0
        self._releasing: Task[None] | None = None
        self._told_busy = 0
        self._watchdog = Watchdog(os.environ, self._front.lives)
        self._garbage = Garbage()
        self._ticks = (
            self._coordinator.tick,
            self._coordinator.settle,
            self._dispatcher.tick,
            self._following.tick,
            self._poll_leases,
            self._housekeeping.tick,
            self._importer.tick,
            self._tend_library,
            self._admin.tick,
            self._draining.tick,
            self._textfile.tick,
            self._scrapes.tick,
            self._watchdog.tick,
        )

    # ---- set-up ------------------------------------------------------------------------------------------------------

    def resume(self) -> int:
        """Take up what an earlier life accepted."""
        return self._coordinator.resume(self._stores.rounds.pending(), self._clock())

    def describe(self) -> str:
        """One line for the service manager."""
        busy = self._dispatcher.busy
        running = f", {counted(busy, 'compile')} running" if busy else ""
        return f"{counted(self._stores.kernels.count(), 'kernel')}{running}; {self._keyer.describe()}"

    def catch_signals(self) -> None:
        """SIGTERM and SIGINT drain, a second one ends at once; SIGHUP reloads the configuration."""
        self._signals.catch()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until a drain has ended; NoThreads if it cannot begin."""
        try:
            with needed():
                self._front.begin()
                self._stores.disk_watch.begin()
        except NoThreads:
            self._close()
            raise
        self._page.started(self._clock())
        self._garbage.begin(self._clock())
        while not self._draining.is_over():
            self._step()
        self._close()

    def _step(self) -> None:
        if self._clock() >= self._due:
            self._look_around()
        if self._garbage.due:
            self._collect_garbage()
        timeout = None if self._due == math.inf else math.ceil(max(0.0, self._due - self._clock()) * 1000)
        ready = self._poller.poll(0 if self._ranks.waiting else timeout)
        # Ends first: a descriptor that is closed for a message below may be another's before its own event is looked at.
        for source, _event in sorted(ready, key=self._after_ends):
            if source == self._front.fileno():
                self._front.hush()
                self._guarded(self._take_notices)
            else:
                self._due = -math.inf
                self._guarded(partial(self._serve, source))
        if self._ranks.waiting:
            self._guarded(self._answer)

    def _look_around(self) -> None:
        """Let every part do what is due, and ranks be answered after one that took long."""
        self._due = self._draining.deadline
        for tick in self._ticks:
            begun = self._clock()
            self._due = min(self._due, self._guarded(partial(tick, begun)))
            if self._clock() - begun >= LONG_S:
                self._guarded(self._take_notices)
                if self._ranks.waiting:
                    self._guarded(self._answer)
        self._watch()
        self._tell_manager()

    def _collect_garbage(self) -> None:
        idle = not self._ranks.waiting and self._due - self._clock() >= IDLE_S and not self._poller.poll(0)
        if idle or self._garbage.overdue:
            self._garbage.collect(self._clock(), idle=idle)

    def _answer(self) -> None:
        """Answer ranks. What only was looked up is no reason to ask every part: a look-up is to cost no more than itself."""
        due, self._due = self._due, -math.inf  # also after a fault
        if not self._ranks.serve():
            self._due = min(due, self._clock() + REST_S)

    def _guarded(self, act: Callable[[], float | None]) -> float:
        """No fault of ours in one thing may end the daemon, or keep it from the others: it is logged whole, and tried again in a while."""
        try:
            result = act()
        except Exception:
            log.exception("internal error in the loop")
            return self._clock() + FAULT_S
        return math.inf if result is None else result

    def _after_ends(self, event: tuple[object, int]) -> bool:
        return not isinstance(event[0], int)

    def _take_notices(self) -> None:
        if self._ranks.take_notices():
            self._due = -math.inf

    def _serve(self, source: object) -> None:
        if source is self._doors.admins:
            self._admin.receive()
        elif source == self._signals.fileno():
            self._take_signals()
        elif source == self._library.fileno():
            self._take_placed()
        elif source == self._stores.beside.fileno():
            self._stores.beside.rest()
        elif isinstance(source, int):
            self._serve_descriptor(source)

    def _serve_descriptor(self, fileno: int) -> None:
        session = self._sessions.by_pidfd(fileno)
        if session is not None:
            self._end_session(session, "ended")
        elif not self._scrapes.serve(fileno, self._clock()):
            self._dispatcher.read(fileno, self._clock())

    def _watch(self) -> None:
        """Keep the poller's descriptors equal to the living sessions' and jobs'."""
        wanted = (
            {session.pidfd for session in self._sessions if session.pidfd >= 0}
            | self._dispatcher.filenos()
            | self._scrapes.filenos()
        )
        gone, come = self._watched - wanted, wanted - self._watched
        if len(gone) > FEW:
            self._poller, gone, come = self._new_poller(), set(), wanted
        for fd in gone:
            self._poller.unregister(fd)
        for fd in come:
            self._poller.register(fd, zmq.POLLIN)
        self._watched = wanted

    def _new_poller(self) -> zmq.Poller:
        """With what is watched as long as the daemon lives."""
        own = self._front.fileno(), self._signals.fileno(), self._library.fileno(), self._stores.beside.fileno()
        poller = zmq.Poller()
        for source in (*own, self._doors.admins):
            poller.register(source, zmq.POLLIN)
        return poller

    def _tell_manager(self) -> None:
        """Keep the line in ``systemctl status`` true; it changes with the number of running compiles, so look-ups cost nothing."""
        if self._told_busy != self._dispatcher.busy and not self._handlers.draining:
            self._told_busy = self._dispatcher.busy
            notify(f"STATUS={self.describe()}")

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _end_session(self, session: Session, how: str) -> None:
        log.debug("pid %d of job %s %s", session.peer.pid, session.job, how)
        now = self._clock()
        self._handlers.end(session, now)
        self._next_lease_poll = min(self._next_lease_poll, now + TOGETHER_S)

    def _poll_leases(self, now: float) -> float:
        """Drop lease files, then views, whose processes have ended; when to look again (``inf``: nothing is leased)."""
        if self._releasing is None and now >= self._next_lease_poll:
            self._next_lease_poll = math.inf
            self._releasing = Task(self._stores.releasing(lambda: self._coordinator.views_in_use(self._clock())))
        if self._releasing is not None:
            if not self._releasing.run():
                return now
            if self._releasing.error is not None:
                self._stores.troubles.tell(_LEASES, self._releasing.error)
            else:
                self._stores.troubles.over(_LEASES)
            self._releasing = None
        if self._next_lease_poll == math.inf and (self._stores.leases.count() or self._stores.spared):
            self._next_lease_poll = now + LEASE_POLL_S
        return self._next_lease_poll

    def _tend_library(self, now: float) -> float:
        rounds, placing = self._coordinator.rounds, self._coordinator.placing
        return self._library.tick(now, lambda: placing.views | awaited(rounds.values(), self._sessions, now - VIEW_GRACE_S))

    def _take_placed(self) -> None:
        """Rounds whose kernels are in the shared op library now, or cannot be."""
        now = self._clock()
        for name, placed in self._library.take(now).items():
            self._coordinator.placed(name, placed, now)

    def _take_signals(self) -> None:
        for number in self._signals.take():
            if number is signal.SIGHUP:
                self._reloading.reload()
            else:
                self._draining.begin(number.name)

    def _close(self) -> None:
        self._following.tell_all(self._clock())
        self._dispatcher.stop()
        self._keyer.close()
        self._admin.close()
        self._scrapes.close()
        self._housekeeping.stop()
        self._coordinator.settling.stop()
        if self._releasing is not None:
            self._releasing.stop()
        self._library.close()
        self._front.end()
        for session in self._sessions:
            self._sessions.end(session)
        self._doors.close()
        self._signals.close()
        self._stores.close()
