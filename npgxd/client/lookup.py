"""One look-up in the compile cache, over the builds that other processes make of it, lost connections and restarted daemons.

Promise: it ends: with the entry, with this process as its builder, at the caller's deadline, or because no daemon tells any more.
"""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING, Final

import zmq

from npgxd.client.connection import ConnectionLost, DaemonSilent
from npgxd.errors import DaemonUnavailable, NpgxError, ProtocolError, RequestRefused
from npgxd.wire import limits
from npgxd.wire.artifact_messages import MAX_WAIT_S, Artifact, ArtifactPart, Fetch, Lookup, Release
from npgxd.wire.plain import Plain, plain
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.client.session import Session
    from npgxd.wire.form import Event

log = logging.getLogger("npgxd")

FAULTS: Final = (NpgxError, OSError, zmq.ZMQError)
"""What can go wrong between this process and the daemon; none of it is the caller's business."""
PAUSE_S: Final = 0.1
_WATCH_S: Final = 0.2
_LEAST_S: Final = 1.0
"""What an answer may take also when nothing is to be waited for."""
_AGAIN: Final = 5
"""Look-ups of one entry that is removed, each time, while its parts are on their way."""


@plain
class Found(Plain):
    """What a look-up came to.

    HIT: ``data`` are the entry's bytes, with this sha256 ``digest``; ``proven``: somebody has loaded them well before; ``publisher``: the uid
    that made them, another than this process's own only where an administrator trusts it.  Say ``proven`` or ``bad_artifact`` after loading.

    MISS: build it.  Unless ``alone``, other processes wait for this one: end with ``publish``, ``not_cacheable`` or ``release``, and publish
    before anything of the entry is executed, since those who wait may owe it a collective.  ``alone``: nobody waits, or nobody can be told
    (``code``: NO_DAEMON, SILENT, DEADLINE, BUILDING, REFUSED); what is built may be published all the same.

    NOT_CACHEABLE: compile as usual and do not try to cache; ``code`` and ``reason`` are those that were remembered.
    """

    state: ArtifactState
    data: bytes | None = None
    digest: str = ""
    proven: bool = False
    publisher: int | None = None
    alone: bool = False
    code: str = ""
    reason: str = ""
    waited_s: float = 0.0
    """For how long this process waited for another's build."""

    @property
    def builder(self) -> bool:
        """This process is to build it."""
        return self.state is ArtifactState.MISS


class Wait:
    """One look-up, over the builds that others make of it, lost connections and restarted daemons."""

    def __init__(
        self,
        session: Session,
        key: str,
        label: str,
        deadline_s: float,
        on_wait: Callable[[float], None] | None,
        ticket: int,
    ) -> None:
        self._session = session
        self._key, self._label, self._ticket = key, label, ticket
        self._on_wait = on_wait
        self._began = time.monotonic()
        self._until = self._began + max(0.0, min(deadline_s, MAX_WAIT_S))
        self._waiting = False

    @property
    def waited_s(self) -> float:
        """For how long another's build was waited for; 0 if none was."""
        return time.monotonic() - self._began if self._waiting else 0.0

    def found(self) -> Found:
        """What it comes to; raises when no daemon tells it."""
        lost_at: float | None = None
        while True:
            try:
                return self._attempt()
            except DaemonSilent:
                raise
            except DaemonUnavailable as error:
                # Who waits for nobody goes on alone at once, if the connection was not merely an earlier daemon's; who waited
                # gives a restarted daemon the time it needs.
                now = time.monotonic()
                first, lost_at = lost_at is None, now if lost_at is None else lost_at
                if first and isinstance(error, ConnectionLost):
                    continue
                if not self._waiting or now >= min(self._until, lost_at + self._session.patience.reconnect_s):
                    raise
                time.sleep(PAUSE_S)

    def _attempt(self) -> Found:
        for _ in range(_AGAIN):
            self._session.welcome()
            generation = self._session.generation
            told, frames = self._ask()
            if told.state is ArtifactState.BUILDING:
                ended = self._watch(generation, told)
                if ended is None:
                    return self._deadline()
                told, frames = ended, ()
                if told.state is ArtifactState.HIT:
                    continue  # now it can be had
            if told.state is not ArtifactState.HIT:
                return Found(state=told.state, code=told.code, reason=told.reason, waited_s=self.waited_s)
            data = self._bytes(told, frames)
            if data is not None:
                return Found(
                    state=ArtifactState.HIT,
                    data=data,
                    digest=told.digest or "",
                    proven=told.proven,
                    publisher=told.publisher,
                    waited_s=self.waited_s,
                )
        raise DaemonUnavailable("the entry is removed as fast as it can be read", hint="raise [cache] max_gb")

    def _ask(self, already_s: float = 0.0) -> tuple[Artifact, tuple[bytes, ...]]:
        left = max(0.0, self._until - time.monotonic())
        patience = min(self._session.patience.silence_s - already_s, max(left, _LEAST_S))
        asked = Lookup(key=self._key, label=self._label, wait_s=left, ticket=self._ticket)
        reply = self._session.request(asked, timeout_s=max(patience, _WATCH_S))
        if not isinstance(reply.message, Artifact) or reply.message.key != self._key:
            raise ProtocolError(f"the daemon answers lookup with {reply.message.op!r}")
        return reply.message, reply.frames

    def _watch(self, generation: int, told: Artifact) -> Artifact | None:
        """Wait for the end of another's build; None at the deadline."""
        heard_at = time.monotonic()
        while told.state is ArtifactState.BUILDING:
            self._tell(told.elapsed_s)
            now = time.monotonic()
            if now >= self._until:
                return None
            self._waiting = True
            event: Event | None = self._session.event(self._key, generation, timeout_s=min(_WATCH_S, self._until - now))
            quiet_s = time.monotonic() - heard_at
            if event is None and quiet_s > self._session.patience.remind_s:
                event = self._ask(already_s=quiet_s)[0]
            if isinstance(event, Artifact) and event.ticket == self._ticket:
                told, heard_at = event, time.monotonic()
        return told

    def _deadline(self) -> Found:
        """The caller's time is over: whoever builds, this process does not wait for it any more, and must not be made the builder."""
        try:
            self._session.request(Release(key=self._key), timeout_s=_LEAST_S)
        except FAULTS as error:
            log.debug("npgxd: release: %s", error)
        return Found(
            state=ArtifactState.MISS,
            alone=True,
            code="DEADLINE" if self._waiting else "BUILDING",
            reason="another process was still building it at the deadline" if self._waiting else "another process builds it",
            waited_s=self.waited_s,
        )

    def _bytes(self, told: Artifact, frames: tuple[bytes, ...]) -> bytes | None:
        """All of an entry, its digest checked; None if it was removed meanwhile."""
        if told.digest is None or not 0 < told.size <= limits.MAX_ARTIFACT_BYTES:
            raise ProtocolError("a HIT without its digest or size")
        parts = -(-told.size // limits.ARTIFACT_PART_BYTES)
        pieces = [*frames]
        try:
            for part in range(1, parts):
                reply = self._session.request(Fetch(key=self._key, digest=told.digest, part=part))
                if not isinstance(reply.message, ArtifactPart) or reply.message.part != part:
                    raise ProtocolError(f"the daemon answers fetch with {reply.message.op!r}")
                pieces.extend(reply.frames)
        except RequestRefused as refused:
            if refused.refusal != "UNKNOWN_ARTIFACT":
                raise
            return None
        data = b"".join(pieces)
        if len(data) != told.size or hashlib.sha256(data).hexdigest() != told.digest:
            raise ProtocolError("the entry's bytes are not those of its digest", hint="run npgxctl verify")
        return data

    def _tell(self, elapsed_s: float) -> None:
        if self._on_wait is None:
            return
        try:
            self._on_wait(elapsed_s)
        except Exception:  # whatever shows the wait must not end it
            log.exception("npgxd: on_wait failed and is not called again")
            self._on_wait = None


def alone(code: str, error: NpgxError, wait: Wait) -> Found:
    """Who is told nothing, or not what it needs, builds on its own."""
    log.debug("npgxd: lookup: %s", error)
    return Found(state=ArtifactState.MISS, alone=True, code=code, reason=error.message, waited_s=wait.waited_s)
