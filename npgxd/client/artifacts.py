"""The compile cache as a rank uses it: look an entry up, build it where there is none, publish it, say what became of it.

Promise: nothing here raises for anything that the daemon does or does not do, and nothing waits past its deadline: without a daemon, or
with one that is silent, the caller is told at once to build on its own.  Entries are bytes; their digest was checked, nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from typing import TYPE_CHECKING, Final

from npgxd.client.connection import ConnectionLost, DaemonSilent
from npgxd.client.lookup import FAULTS, PAUSE_S, Found, Wait, alone
from npgxd.client.rank import printable
from npgxd.errors import DaemonUnavailable, NpgxError, ProtocolError, RequestRefused
from npgxd.wire import limits
from npgxd.wire.artifact_messages import (
    MAX_FACT,
    BadArtifact,
    CacheNote,
    NotCacheable,
    Proven,
    Publish,
    Published,
    PublishTaken,
    Release,
)
from npgxd.wire.plain import Plain, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npgxd.client.session import Session
    from npgxd.wire.form import Message

log = logging.getLogger("npgxd")

DEADLINE_S: Final = 1800.0
"""How long a look-up waits for another process's build where its caller does not say."""
MAX_CHAIN: Final = 8
"""How many entries that do not fit a process looks past before it builds one without the daemon."""
UNREACHABLE: Final = frozenset({"NO_DAEMON", "SILENT", "REFUSED"})
"""Codes of a MISS after which nobody need be told what was built."""
PUBLISH_S: Final = 60.0
_SLOW_DISK: Final = 20e6
"""Bytes a second that any disk takes."""


def next_after(key: str, digest: str) -> str:
    """Where to look after the entry with ``digest`` was found under ``key`` and did not fit: the same for everybody with that misfit."""
    return hashlib.sha256(f"{key} {digest}".encode()).hexdigest()


@plain
class Told(Plain):
    """Whether the daemon took what it was told (``ok``); else why it did not. True as a condition if it did."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


class ArtifactClient:
    """The compile cache's part of ``Client``."""

    _session: Session
    _tickets = itertools.count(1)

    def lookup(
        self, key: str, label: str = "", *, deadline_s: float = DEADLINE_S, on_wait: Callable[[float], None] | None = None
    ) -> Found:
        """The entry of ``key`` (64 hexadecimal digits), waiting up to ``deadline_s`` seconds while another process builds it.

        The wait also ends when the daemon is silent for 5 s or has been gone for 10 s; the builder's end makes one of those who wait the
        builder.  With ``deadline_s`` 0 nothing is waited for.  ``label`` is for people: which function of which model.  ``on_wait`` is
        called about every second of the wait with the seconds for which the entry has been built.
        """
        wait = Wait(self._session, key, printable(label, limits.MAX_NAME), deadline_s, on_wait, next(self._tickets))
        try:
            return wait.found()
        except DaemonSilent as error:
            self._session.rest(error)
            return alone("SILENT", error, wait)
        except RequestRefused as error:
            return alone("REFUSED", error, wait)
        except NpgxError as error:
            return alone("NO_DAEMON", error, wait)
        except Exception as error:  # no fault of ours may stop a rank; it is logged whole
            log.exception("npgxd: a look-up failed")
            return alone("NO_DAEMON", NpgxError(f"the look-up failed: {error}"), wait)

    def publish(
        self, key: str, data: bytes, *, label: str = "", meta: Mapping[str, str] | None = None, deadline_s: float = PUBLISH_S
    ) -> Told:
        """Give the entry's bytes to the daemon; true: they are on its disk, and whoever waits for them is told.

        Where another process has published the key meanwhile, that entry counts, and this is true as well.  ``meta``: up to 32 short
        texts for people (``npgxctl cache show``).
        """
        digest = hashlib.sha256(data).hexdigest()
        facts = {
            printable(name, 64): printable(text, MAX_FACT) for name, text in [*(meta or {}).items()][: limits.MAX_ARTIFACT_FACTS]
        }
        head = Publish(key=key, digest=digest, size=len(data), label=printable(label, limits.MAX_NAME), meta=facts)
        until = time.monotonic() + deadline_s
        lost_at: float | None = None
        while True:
            try:
                self._send(head, data, until)
            except DaemonSilent as error:
                self._session.rest(error)
                return _not_told("publish", error)
            except DaemonUnavailable as error:  # another one may come; the entry is published whole, or not at all
                now = time.monotonic()
                first, lost_at = lost_at is None, now if lost_at is None else lost_at
                if first and isinstance(error, ConnectionLost):
                    continue
                if not self._session.trusted or now >= min(until, lost_at + self._session.patience.reconnect_s):
                    return _not_told("publish", error)
                time.sleep(PAUSE_S)
            except FAULTS as error:
                return _not_told("publish", error)
            else:
                return Told(ok=True)

    def not_cacheable(self, key: str, code: str, reason: str = "", *, label: str = "") -> Told:
        """Say that this cannot be cached: a stable ``code`` (letters, digits, ``_``) and why; later look-ups are told so at once.

        It is remembered until the key changes or an administrator clears it (``npgxctl cache rm``).  Ends this process's build.
        """
        return self._say(
            lambda: NotCacheable(
                key=key, code=code, reason=printable(reason, limits.MAX_TEXT), label=printable(label, limits.MAX_NAME)
            )
        )

    def release(self, key: str) -> Told:
        """Say that this process does not build the entry any more (it failed for a passing reason): one of those who wait takes over."""
        return self._say(lambda: Release(key=key))

    def proven(self, key: str, digest: str) -> Told:
        """Say that an entry with these bytes was loaded well; an entry that nobody proved goes to no other user."""
        return self._say(lambda: Proven(key=key, digest=digest))

    def bad_artifact(self, key: str, digest: str, reason: str) -> Told:
        """Say that an entry with these bytes could not be loaded. The second report sets it aside, and it is built once more."""
        return self._say(lambda: BadArtifact(key=key, digest=digest, reason=printable(reason, limits.MAX_TEXT)))

    def cache_note(self, key: str, label: str, outcome: str, reason: str = "") -> Told:
        """Say what became of one wrapped function here (``outcome``: a code such as MISFIT, COMPILED, HIT_FILE; ``reason``: for people).

        ``npgxctl cache why`` answers from this why something was compiled again. Best effort.
        """
        return self._say(
            lambda: CacheNote(
                key=key,
                label=printable(label, limits.MAX_NAME),
                outcome=outcome,
                reason=printable(reason, limits.MAX_TEXT),
            )
        )

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _send(self, head: Publish, data: bytes, until: float) -> None:
        view = memoryview(data)
        size = limits.ARTIFACT_PART_BYTES
        last = max(0, (len(data) - 1) // size)
        for part in range(last + 1):
            left = until - time.monotonic()
            if left <= 0:
                raise DaemonUnavailable("the entry could not be published in time", hint="see npgxctl status")
            message = Publish(key=head.key, digest=head.digest, size=head.size, part=part, label=head.label, meta=head.meta)
            piece = bytes(view[part * size : (part + 1) * size])
            patience = self._session.patience.silence_s
            if part == last:  # it is answered when the whole entry is on the disk
                patience += len(data) / _SLOW_DISK
            reply = self._session.request(message, [piece], timeout_s=min(left, patience))
            if isinstance(reply.message, Published):
                return
            if not isinstance(reply.message, PublishTaken):
                raise ProtocolError(f"the daemon answers publish with {reply.message.op!r}")

    def _say(self, make: Callable[[], Message]) -> Told:
        """Tell the daemon something, if there is one; what cannot be said is not."""
        try:
            message = make()
            try:
                self._session.request(message)
            except ConnectionLost:  # an earlier daemon's; each of these may be said twice
                self._session.request(message)
        except DaemonSilent as error:
            self._session.rest(error)
            return _not_told("a word", error)
        except FAULTS as error:
            return _not_told("a word", error)
        except Exception as error:  # as in lookup
            log.exception("npgxd: the client failed")
            return Told(ok=False, reason=str(error))
        return Told(ok=True)


def _not_told(what: str, error: BaseException) -> Told:
    log.debug("npgxd: %s: %s", what, error)
    return Told(ok=False, reason=str(error))
