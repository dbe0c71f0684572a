"""The status document (schema 1): everything that ``npgxctl status`` shows, as the daemon knows it at one moment."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from npgxd import __version__
from npgxd.errors import StoreError
from npgxd.wire import limits
from npgxd.wire.states import ClientState, RoundState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.config import Config
    from npgxd.daemon.compiling.dispatch import Dispatcher
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.wire.messages import RoundProgress


SCHEMA = 1
MAX_ROUNDS = 200
MAX_JOBS = 200
MAX_RANKS = 1000
MAX_SAID = 300
"""Characters of what a client says of itself. With the other limits, the document fits into one message whatever clients say."""


class StatusPage:
    """Assembles the document from the daemon's parts; changes nothing, but that a toolchain that went or came is noticed."""

    def __init__(
        self,
        config: Config,
        instance: str,
        stores: Stores,
        keyer: Keyer,
        sessions: Sessions,
        coordinator: Coordinator,
        dispatcher: Dispatcher,
    ) -> None:
        self._config = config
        self._instance = instance
        self._stores = stores
        self._keyer = keyer
        self._sessions = sessions
        self._coordinator = coordinator
        self._dispatcher = dispatcher
        self._started: float | None = None
        self._progresses: dict[str, RoundProgress] = {}
        """Of the rounds in the document that is being made: each is told twice, of its round and of its rank."""
        self._unreadable = ""
        """What of the state could not be read for the document that is being made."""
        self.draining = False
        self.removal: Callable[[float], dict[str, object]] = lambda _now: {}
        self.library: Callable[[], dict[str, object]] = dict
        self.progress: Callable[[Round, float], RoundProgress] = lambda asked, now: asked.progress(now)
        self.artifacts: Callable[[], dict[str, object]] = dict
        self.reload: Callable[[], dict[str, object]] = dict

    def frames(self, now: float) -> list[bytes]:
        """The document as JSON, cut into payload frames."""
        text = json.dumps(self.document(now), separators=(",", ":")).encode()
        size = limits.MAX_FRAME_BYTES
        return [text[start : start + size] for start in range(0, len(text), size)][: limits.MAX_FRAMES]

    def document(self, now: float) -> dict[str, object]:
        """docs/file-formats.md, "Status document"."""
        if self._started is None:
            self._started = now
        self._progresses.clear()
        self._keyer.notice(now)  # nobody else may: a probe waits for it, and no rank comes before the probe is content
        self._unreadable = ""
        document = {
            "schema": SCHEMA,
            "daemon": {
                "version": __version__,
                "instance": self._instance,
                "pid": os.getpid(),
                "uid": os.getuid(),
                "uptime_s": round(now - self._started, 3),
                "state": "DRAINING" if self.draining else "READY",
                "state_dir": str(self._stores.state.path),
                "store_id": self._stores.state.store_id,
                "socket": str(self._config.socket),
                "config": self._config.source,
                "reload": self.reload(),
            },
            "toolchain": self._toolchain(),
            "disk": self._stores.disk_watch.describe(now),
            "workers": self._dispatcher.describe(now),
            "queue": self._queue(now),
            "jobs": self._jobs(now),
            "kernels": self._or(self._stores.describe, {}),
            "removal": self._or(lambda: self.removal(now), {}),
            "op_library": self._or(self.library, {}),
            "cache": self._or(self._stores.counters, {}),
            "artifacts": self._or(self.artifacts, {}),
            "failures": self._or(self._stores.failures, []),
            "churn": self._coordinator.churn.describe(),
        }
        if self._unreadable:
            self._stores.troubles.tell("for the status", self._unreadable)
        else:
            self._stores.troubles.over("for the status")
        return {**document, "problem": self._unreadable}

    def _or(self, told: Callable[[], object], otherwise: object) -> object:
        """A store that cannot be read is one thing that people look at the status for: the rest of it is told all the same."""
        try:
            return told()
        except (StoreError, OSError) as error:
            self._unreadable = self._unreadable or str(error)
            return otherwise

    def started(self, now: float) -> None:
        """The daemon is ready from now on."""
        self._started = now

    def _toolchain(self) -> dict[str, object]:
        toolchain, info = self._keyer.toolchain, self._keyer.info_lately
        if toolchain is None or info is None:
            return {"problem": self._keyer.problem}
        cores = toolchain.cores
        return {
            "home": str(toolchain.home),
            "soc": toolchain.soc,
            "family": toolchain.family,
            "cann_version": toolchain.cann_version,
            "cores": None if cores is None else {"vector": cores.vector, "cube": cores.cube},
            "fingerprint": info.fingerprint,
            "simulated": toolchain.simulated,
            "versions": dict(toolchain.versions),
            "problem": "",
        }

    def _queue(self, now: float) -> dict[str, object]:
        unsettled = [r for r in self._coordinator.rounds.values() if r.result is None]
        flights = self._coordinator.flights
        return {
            "keys_waiting": flights.waiting,
            "keys_compiling": len(flights) - flights.waiting,
            "rounds_total": len(unsettled),
            "rounds": [self._round(waiting, now) for waiting in unsettled[:MAX_ROUNDS]],
            "users": self._coordinator.quotas.describe(),
        }

    def _progress(self, asked: Round, now: float) -> RoundProgress:
        if asked.id not in self._progresses:
            self._progresses[asked.id] = self.progress(asked, now)
        return self._progresses[asked.id]

    def _round(self, waiting: Round, now: float) -> dict[str, object]:
        progress = self._progress(waiting, now)
        return {
            "round": waiting.id,
            "job": waiting.job,
            "group": waiting.group,
            "rank": waiting.rank.rank,
            "graph": waiting.graph,
            "state": str(waiting.state),
            "done": progress.done,
            "total": progress.total,
            "elapsed_s": round(progress.elapsed_s, 3),
            "eta_s": progress.eta_s,
            "stalled_s": round(progress.stalled_s, 3),
        }

    def _jobs(self, now: float) -> list[dict[str, object]]:
        by_job: dict[str, list[Session]] = {}
        for session in self._sessions:
            by_job.setdefault(session.job, []).append(session)
        left = MAX_RANKS
        jobs: list[dict[str, object]] = []
        for job, members in list(by_job.items())[:MAX_JOBS]:
            jobs.append(self._job(job, members, now, left))
            left = max(0, left - len(members))
        return jobs

    def _job(self, job: str, members: list[Session], now: float, most: int) -> dict[str, object]:
        expected, note = self._coordinator.expected(job)
        first = members[0]
        return {
            "job": job,
            "program": first.hello.program[:MAX_SAID],
            "uid": first.peer.uid,
            "local_world_size": expected,
            "world_size": first.rank.world_size,
            "note": note,
            "ranks": [
                self._rank(member, now)
                for member in sorted(members, key=lambda m: (m.rank.rank is None, m.rank.rank or 0, m.peer.pid))[:most]
            ],
            "ranks_total": len(members),
        }

    def _rank(self, session: Session, now: float) -> dict[str, object]:
        followed = self._coordinator.rounds.get(session.round)
        done, total = 0, 0
        if followed is not None:
            done, total = len(followed.settlements), len(followed.needs)
            if followed.result is None and session.state is not ClientState.RECORDING:
                done = self._progress(followed, now).done
        return {
            "session": session.id,
            "pid": session.peer.pid,
            "rank": session.rank.rank,
            "local_rank": session.rank.local_rank,
            "state": str(state_of(session, followed)),
            "reason": session.reason,
            "detail": session.detail[:MAX_SAID],
            "graph": session.graph,
            "done": done,
            "total": total,
            "connected_s": round(now - session.connected_at, 3),
            "leases": len(session.leases),
        }


def state_of(session: Session, followed: Round | None) -> ClientState:
    """The state in which a process is shown: while its round goes on, that round's."""
    if followed is None or followed.result is not None or session.state is ClientState.RECORDING:
        return session.state
    if session.state is ClientState.DEGRADED:  # a rank that gave up waiting: its round goes on without it
        return session.state
    return ClientState.COMPILING if followed.state is RoundState.COMPILING else ClientState.QUEUED
