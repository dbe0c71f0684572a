"""What the daemon does for each message: one method an op, a checked message in, a reply out; no sockets here."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from typing import TYPE_CHECKING, Any

from npgxd import __version__
from npgxd.daemon.demand.uploads import Uploads
from npgxd.daemon.refusals import Refused
from npgxd.daemon.serving.followers import Followers
from npgxd.daemon.serving.progressing import Progresses
from npgxd.daemon.serving.switching import Agreements, Others
from npgxd.wire import limits, messages
from npgxd.wire.artifact_messages import CacheDocument, CacheList
from npgxd.wire.codec import pack_records
from npgxd.wire.explain_messages import Explain, Explained
from npgxd.wire.form import Message
from npgxd.wire.observe_messages import Metrics, MetricsText, Trace, TraceDocument
from npgxd.wire.printable import one_line
from npgxd.wire.states import ClientState, Reason, Strategy
from npgxd.wire.switch_messages import Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.caching.lookups import Lookups
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.library.roots import OpLibrary
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.wire.credentials import PeerCredentials

log = logging.getLogger(__name__)

MAX_SESSIONS = 4096
MAX_LEASES = 1024
"""Leases of one session; a hello can name as many."""
GATHERED_FRAMES = 8
Reply = tuple[Message, list[bytes]]


class Handlers:
    """The requests of ranks. Every method may raise an NpgxError, which becomes a refusal."""

    def __init__(
        self,
        *,
        instance: str,
        stores: Stores,
        keyer: Keyer,
        sessions: Sessions,
        coordinator: Coordinator,
        library: OpLibrary | None = None,
        lookups: Lookups,
        cached: Callable[[PeerCredentials, str, float], list[bytes]],
        explained: Callable[[PeerCredentials, str, float], list[bytes]],
        status: Callable[[float], list[bytes]],
        metrics: Callable[[float], list[bytes]] = lambda _now: [],
        trace: Callable[[str, float], list[bytes]] = lambda _job, _now: [],
    ) -> None:
        self._instance = instance
        self._stores = stores
        self._keyer = keyer
        self._sessions = sessions
        self._coordinator = coordinator
        self._library = library
        self._lookups = lookups
        # What npgxctl asks for, without a hello.
        self._pages: dict[type[Message], Callable[[PeerCredentials, Any, float], Reply]] = {
            messages.Status: lambda _peer, _asked, now: (messages.StatusDocument(schema=1), status(now)),
            CacheList: lambda peer, asked, now: (CacheDocument(schema=1), cached(peer, asked.match, now)),
            Explain: lambda peer, asked, now: (Explained(schema=1), explained(peer, asked.what, now)),
            Metrics: lambda _peer, _asked, now: (MetricsText(), metrics(now)),
            Trace: lambda _peer, asked, now: (TraceDocument(schema=1), trace(asked.job, now)),
        }
        self._uploads = Uploads()
        self._agreements = Agreements(lambda: secrets.token_hex(16))
        self.progresses = Progresses(sessions, coordinator)
        self.draining = False
        self.followers = Followers()
        self._by_kind: dict[type[Message], Callable[..., Reply]] = {
            messages.Report: self._report,
            messages.Submit: self._submit,
            messages.Follow: self._follow,
            messages.Gathered: self._gathered,
            messages.Lease: self._lease,
            messages.Leased: self._leased,
            Switch: self._switch,
            messages.Bye: self._bye,
            **lookups.by_kind,
        }

    def handle(self, identity: bytes, peer: PeerCredentials, message: Message, frames: tuple[bytes, ...], now: float) -> Reply:
        """The answer to one request of one connection."""
        page = self._pages.get(type(message))
        if page is not None:
            return page(peer, message, now)
        if isinstance(message, messages.Hello):
            return self._hello(identity, peer, message, now)
        session = self._sessions.by_identity(identity)
        if session is None or session.peer != peer:
            raise Refused("NEED_HELLO", "no session on this connection", hint="say hello on a fresh socket")
        return self._by_kind[type(message)](session, message, frames, now)

    def end(self, session: Session, now: float) -> None:
        """The process behind a session has ended, or its connection has."""
        self._sessions.end(session)
        self._uploads.forget(session.id)
        self.followers.gone(session.identity)
        self._stores.leases.session_ended(session.id)
        self._lookups.end(session, now)
        self._agreements.gone(session.id)

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def _hello(self, identity: bytes, peer: PeerCredentials, hello: messages.Hello, now: float) -> Reply:
        if limits.PROTOCOL_VERSION not in hello.versions:
            raise Refused(
                "UNSUPPORTED_VERSION",
                f"this daemon speaks protocol version {limits.PROTOCOL_VERSION}, the client {list(hello.versions)}",
                hint="install the same npgxd on both sides",
            )
        earlier = self._sessions.by_identity(identity)
        if earlier is not None:
            self.end(earlier, now)
        if len(self._sessions) >= MAX_SESSIONS:
            raise Refused("LIMIT", f"{MAX_SESSIONS} processes are connected", hint="npgxctl status lists them")
        self._coordinator.quotas.check_connection(peer.uid, self._sessions.of_user(peer.uid))
        self._keyer.refresh(now)  # the rank has looked at its own files just now
        self._keyer.find_if_missing(now)
        session = self._sessions.open(identity, peer, hello, now)
        session.differences, session.compared = self._keyer.differences(hello.toolchain), self._keyer.moves
        self._take_up_leases(session)
        self._lookups.begin(session)
        if self._library is not None:
            self._library.returned(session, now)
        expected, _note = self._coordinator.expected(session.job)
        return messages.Welcome(
            version=limits.PROTOCOL_VERSION,
            instance=self._instance,
            session=session.id,
            daemon=f"npgxd {__version__}",
            store_id=self._stores.state.store_id,
            store_path=str(self._stores.state.path),
            toolchain=self._keyer.info,
            toolchain_problem=self._keyer.problem[:2000],
            differences=session.differences,
            local_world_size=expected,
            strategy=self._library.strategy if self._library is not None else Strategy.VIEW,
        ), []

    def _take_up_leases(self, session: Session) -> None:
        """What the process leased in an earlier session, perhaps from an earlier daemon, it has loaded, and for good."""
        for lease in session.hello.leases:
            facts = self._stores.leases.facts_of(lease)
            if facts is not None and facts.uid == session.peer.uid and facts.pid == session.peer.pid:
                session.leases.add(lease)
                self._coordinator.loaded(session, facts.view)

    def _report(self, session: Session, report: messages.Report, _frames: tuple[bytes, ...], now: float) -> Reply:
        if session.hurt and report.state is ClientState.INSTALLED:
            # What it says of one graph does not undo what was done to the process.
            report = dataclasses.replace(
                report, state=ClientState.DEGRADED, reason=str(Reason.OP_LIBRARY_DAMAGED), detail=session.hurt
            )
        session.tell(report.state, now, reason=report.reason, detail=report.detail, graph=report.graph)
        if report.state is ClientState.DEGRADED:
            self._leave_alone(session, report.graph)
            self._coordinator.gave_up(session, report.graph, now)
        if report.state is not ClientState.RECORDING:
            reason, detail = one_line(report.reason, limits.MAX_NAME), one_line(report.detail, limits.MAX_TEXT)
            settled = self._coordinator.rounds.get(session.round)
            known = settled is not None and settled.result is not None and settled.result.reason == report.reason
            # What became of its round was logged when that was settled.
            fresh = logging.WARNING if report.state is ClientState.DEGRADED else logging.INFO
            level = logging.DEBUG if known else fresh
            log.log(level, "pid %d of job %s: %s(%s) %s", session.peer.pid, session.job, report.state, reason, detail)
        return messages.Done(), []

    def _leave_alone(self, session: Session, graph: str) -> None:
        """A process that waits no more for a graph, at its deadline for example, reads nothing of its rounds either."""
        for name in self.followers.rounds_of(session.identity):
            followed = self._coordinator.rounds.get(name)
            if followed is not None and followed.session == session.id and followed.graph == graph:
                self.followers.leave(name, session.identity)

    def _bye(self, session: Session, _bye: messages.Bye, _frames: tuple[bytes, ...], now: float) -> Reply:
        self.end(session, now)
        return messages.Done(), []

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def _submit(self, session: Session, submit: messages.Submit, frames: tuple[bytes, ...], now: float) -> Reply:
        if self.draining:
            raise Refused("DRAINING", "the daemon is stopping", hint="the next one takes the round")
        self._keyer.serves(session.hello.toolchain, now)
        if session.compared != self._keyer.moves:  # what was equal at the hello may not be any more, and the other way round
            session.differences, session.compared = self._keyer.differences(session.hello.toolchain), self._keyer.moves
        if session.differences:
            first = session.differences[0]
            raise Refused(
                "TOOLCHAIN_MISMATCH",
                f"{first.what}: this process has {first.rank}, the daemon {first.daemon}",
                hint="point the daemon's [toolchain] at the CANN that this process uses",
            )
        if self._library is not None:
            self._library.check()
        raw = self._uploads.take(session.id, submit, frames, uid=session.peer.uid)
        if raw is None:
            return messages.PartTaken(round=submit.round, part=submit.part), []
        taken = self._coordinator.accept(session, submit, raw, now)
        if taken.result is None:
            session.tell(ClientState.QUEUED, now, graph=taken.graph)
        return self.progresses.of(taken, now), []

    def _follow(self, session: Session, follow: messages.Follow, _frames: tuple[bytes, ...], now: float) -> Reply:
        asked = self._coordinator.round_of(session, follow.round)
        if asked.session != session.id or asked.given_up:
            asked = self._coordinator.adopt(asked, session, now)
        if asked.result is None:
            self.followers.add(asked.id, session.identity)
        return self.progresses.of(asked, now), []

    def _gathered(self, session: Session, gathered: messages.Gathered, _frames: tuple[bytes, ...], _now: float) -> Reply:
        asked = self._coordinator.round_of(session, gathered.round)
        records = self._coordinator.gathered(asked)
        taken, size = 0, 0
        for record in records[gathered.start :]:
            size += len(record.canonical) + 512
            if size > GATHERED_FRAMES * limits.MAX_FRAME_BYTES // 2 and taken:
                break
            taken += 1
        piece = records[gathered.start : gathered.start + taken]
        after = gathered.start + taken
        reply = messages.GatheredPart(round=asked.id, total=len(records), next=after if after < len(records) else None)
        return reply, pack_records((record.name, record.canonical) for record in piece)

    def _switch(self, session: Session, said: Switch, _frames: tuple[bytes, ...], now: float) -> Reply:
        uid, job = session.peer.uid, session.job
        rounds = (r for r in self._coordinator.rounds.values() if r.result is None and r.graph == said.graph)
        compiling = sum(r.job == job and r.uid == uid and self._sessions.is_open(r.session) for r in rounds)
        others = Others(compiling=compiling, expected=self._coordinator.expected(job)[0])
        return self._agreements.hear(said, uid=uid, job=job, session=session.id, others=others, now=now), []

    # ---- leases ------------------------------------------------------------------------------------------------------

    def _lease(self, session: Session, lease: messages.Lease, _frames: tuple[bytes, ...], _now: float) -> Reply:
        if not self._coordinator.may_lease(session, lease.view):
            raise Refused("UNKNOWN_VIEW", "no such view for this user", hint="submit the round again")
        if len(session.leases) >= MAX_LEASES:
            raise Refused("LIMIT", f"this process has {MAX_LEASES} leases", hint="lease a view once, and keep it")
        offer = self._stores.leases.offer(
            lease.view,
            session=session.id,
            uid=session.peer.uid,
            pid=session.peer.pid,
            started=session.started,
        )
        session.leases.add(offer.lease)
        return messages.LeaseOffer(lease=offer.lease, lease_path=f"leases/{offer.lease}", view_path=f"views/{lease.view}"), []

    def _leased(self, session: Session, leased: messages.Leased, _frames: tuple[bytes, ...], now: float) -> Reply:
        if leased.lease not in session.leases:
            raise Refused("UNKNOWN_LEASE", "no such lease of this session", hint="ask for the view's lease again")
        view = self._stores.leases.confirm(leased.lease)
        self._coordinator.leased(session, view, now)
        return messages.Done(), []
