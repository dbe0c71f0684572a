"""Sessions: the client processes that are connected, who they are by the kernel's word, and when they have ended.

A session ends with its connection, and when its process does.  Where the process is visible here a pidfd tells at once; where it is
not (another pid namespace), the connection tells.  What a process has leased outlives both: only the lock on a lease counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npgxd.wire.credentials import PeerCredentials
    from npgxd.wire.messages import Difference, Hello, RankInfo


MAX_GRAPHS = 256
_WORST_FIRST = (ClientState.DEGRADED, ClientState.INSTALLED, ClientState.DISABLED)
"""The states in which a graph ends, as one of several counts: a graph with nothing to compile says nothing about the others."""


@dataclass(slots=True)
class Session:
    """One process that said hello. ``identity`` is the routing id of its connection."""

    id: str
    identity: bytes
    peer: PeerCredentials
    hello: Hello
    job: str
    connected_at: float
    started: float = 0.0
    pidfd: int = -1
    connection: int = -1
    """The descriptor of the connection in this process, which belongs to libzmq; -1: not known."""
    state: ClientState = ClientState.CONNECTED
    reason: str = ""
    detail: str = ""
    graph: str = ""
    state_since: float = 0.0
    ends: dict[str, tuple[ClientState, str, str]] = field(default_factory=dict)
    """graph -> how it ended: state, reason, detail; "" is the process itself."""
    differences: tuple[Difference, ...] = ()
    compared: int = -1
    """``Keyer.moves`` at the time of ``differences``."""
    round: str = ""
    leases: set[str] = field(default_factory=set)
    hurt: str = ""
    """What somebody did to kernels that this process had loaded from a shared op library; empty if nothing."""
    loaded: dict[str, str] = field(default_factory=dict)
    """simplified key -> id of the kernel that this process loaded first; the runtime keeps that one for the process's life."""

    unread: set[str] = field(default_factory=set)
    """Views that it has leased and that could not be read then, for want of descriptors or memory: ``loaded`` lacks what is in them."""

    @property
    def rank(self) -> RankInfo:
        """The rank labels that the process gave."""
        return self.hello.rank

    def tell(self, state: ClientState, now: float, *, reason: str = "", detail: str = "", graph: str = "") -> None:
        """Note the state that the process is in now; said again it is no younger, since others wait for a rank that records only so long.

        Of graphs that have come to their end the worst one is shown: one that is INSTALLED does not hide another that is DEGRADED.
        """
        if state is not self.state or (graph and graph != self.graph):
            self.state_since = now
        self.ends.pop(graph, None)
        if state in _WORST_FIRST:
            if len(self.ends) >= MAX_GRAPHS:
                self.ends.pop(next(iter(self.ends)))
            self.ends[graph] = (state, reason, detail)
            graph = min(self.ends, key=lambda name: _WORST_FIRST.index(self.ends[name][0]))
            state, reason, detail = self.ends[graph]
        self.state, self.reason, self.detail = state, reason, detail
        self.graph = graph or self.graph


def job_id(uid: int, rank: RankInfo) -> str:
    """One job's name on this node: its user, run, rendezvous and launcher. Rank variables are labels, not identity."""
    text = "\0".join((str(uid), rank.run_id, rank.master, rank.launcher))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Sessions:
    """The table of live sessions, by connection and by pidfd."""

    def __init__(self) -> None:
        self._by_identity: dict[bytes, Session] = {}
        self._by_pidfd: dict[int, Session] = {}
        self._by_connection: dict[int, Session] = {}
        self._open: set[str] = set()
        self._users: Counter[int] = Counter()

    def __iter__(self) -> Iterator[Session]:  # over a copy: the body may end sessions
        return iter(list(self._by_identity.values()))

    def __len__(self) -> int:
        return len(self._by_identity)

    def by_identity(self, identity: bytes) -> Session | None:
        """The session of a connection."""
        return self._by_identity.get(identity)

    def by_pidfd(self, pidfd: int) -> Session | None:
        """The session whose process this pidfd watches."""
        return self._by_pidfd.get(pidfd)

    def by_connection(self, connection: int) -> Session | None:
        """The session on the connection with this descriptor."""
        return self._by_connection.get(connection)

    def is_open(self, name: str) -> bool:
        """Whether the session of this id lives."""
        return name in self._open

    def of_user(self, uid: int) -> int:
        """How many live sessions a user has."""
        return self._users[uid]

    def of_job(self, job: str) -> list[Session]:
        """The live sessions of one job."""
        return [session for session in self._by_identity.values() if session.job == job]

    def open(self, identity: bytes, peer: PeerCredentials, hello: Hello, now: float) -> Session:
        """Begin a session; an earlier one on the same connection is replaced, and must have been ended by the caller."""
        session = Session(
            id=secrets.token_hex(16),
            identity=identity,
            peer=peer,
            hello=hello,
            job=job_id(peer.uid, hello.rank),
            connected_at=now,
            state_since=now,
        )
        if peer.pid:
            with contextlib.suppress(OSError):
                session.pidfd = os.pidfd_open(peer.pid)
                self._by_pidfd[session.pidfd] = session
            with contextlib.suppress(psutil.Error):
                session.started = psutil.Process(peer.pid).create_time()
        self._by_identity[identity] = session
        self._open.add(session.id)
        self._users[peer.uid] += 1
        return session

    def on_connection(self, session: Session, connection: int) -> None:
        """Note on which connection a session is."""
        session.connection = connection
        self._by_connection[connection] = session

    def end(self, session: Session) -> None:
        """Forget a session and close its pidfd."""
        self._by_identity.pop(session.identity, None)
        if session.id in self._open:
            self._open.discard(session.id)
            self._users[session.peer.uid] -= 1
            if not self._users[session.peer.uid]:
                del self._users[session.peer.uid]
        if self._by_connection.get(session.connection) is session:
            del self._by_connection[session.connection]
        if session.pidfd >= 0:
            self._by_pidfd.pop(session.pidfd, None)
            os.close(session.pidfd)
            session.pidfd = -1
