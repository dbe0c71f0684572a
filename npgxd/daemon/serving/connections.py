"""The open connections of ranks, also those that say nothing: counted for each user as libzmq accepts them, and ended where that is due.

Promise: a user has a bounded number of connections, whether they speak or not; one that is silent and has no session goes after a while; a
process that sends far more than it is answered is cut off for a while, alone.  What an honest client can do costs it a new connection at the
most: it is cut off for less than it would wait for a daemon that restarts.
"""

from __future__ import annotations

import logging
import math
import resource
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.daemon.serving import far_ends
from npgxd.oplib.users import started_s
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from npgxd.wire.credentials import PeerCredentials

log = logging.getLogger(__name__)

OPEN_FACTOR: Final = 2
OPEN_MORE: Final = 64
"""Connections of a user beside those that a hello may have, so that who is at the limit of those is told, and probes find a place."""
MAX_OPEN: Final = 10_000
"""Of all users, and no more than ``_PART`` of the descriptors that this process may have."""
_PART: Final = 1 / 3
"""Each session has a second descriptor, and as many are left over: libzmq accepts connections faster than they can be ended here, and
where it has no descriptor for one it ends the process (4.3.5, ``ipc_listener.cpp``: of ``EMFILE`` it asserts that it cannot be)."""
LOOK_S: Final = 10.0
LOOKS: Final = 4
"""A connection without a session that says nothing between so many looks is ended. Looks and not seconds: a daemon that was stopped for
an hour comes back with all hellos unread."""
CUT_OFF_S: Final = 5.0
"""A process that floods is let in again after so long, twice as long the next time: a client waits 10 s for a daemon that has gone."""
LONGEST_S: Final = 300.0
MAX_CUT_OFF: Final = 1024
TOLD_S: Final = 10.0
"""Between two lines of the log about the same kind of thing: who floods could else fill it."""


@dataclass(slots=True)
class _Open:
    """One connection. ``ended``: by us, and what comes of it does not count.

    Since the last message came whole: ``looks`` that found it silent, ``busy`` samples that found bytes of it; whether it was ``noted``.
    """

    peer: PeerCredentials
    looks: int = 0
    busy: int = 0
    noted: bool = False
    ended: bool = False


@dataclass(slots=True)
class _CutOff:
    """A process that flooded. ``started`` tells it from a later one with its pid; ``times``: how often it did."""

    started: float
    until: float
    times: int


class Connections:
    """``path``: where they were accepted; ``allowed``: sessions that one user may have; ``clock`` gives monotonic seconds."""

    def __init__(self, path: Path, allowed: Callable[[], int], *, clock: Callable[[], float]) -> None:
        self._path = path
        self._allowed = allowed
        self._clock = clock
        self._most = min(MAX_OPEN, int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _PART))
        self._open: dict[int, _Open] = {}
        self._left: set[int] = set()
        """Descriptors whose connections have closed, until they are another connection's."""
        self._users: Counter[int] = Counter()
        self._cut_off: OrderedDict[tuple[int, int], _CutOff] = OrderedDict()
        self._next_look = clock() + LOOK_S
        self._next_told: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of_user(self, uid: int) -> int:
        """How many connections a user has open."""
        return self._users[uid]

    # ---- what libzmq tells -------------------------------------------------------------------------------------------

    def accepted(self, descriptor: int) -> None:
        """A connection came; it is ended if its user has too many, or its process is cut off."""
        self.closed(descriptor)
        self._left.discard(descriptor)
        peer = far_ends.peer_at(descriptor, self._path)
        if peer is None:
            return  # it has gone already
        self._open[descriptor] = _Open(peer)
        self._users[peer.uid] += 1
        if self._is_cut_off(peer):
            self._end(descriptor)
        elif self._are_too_many(peer.uid):
            self._end(descriptor)
            if self._may_tell("too many"):
                has, all_of_them = counted(self._users[peer.uid], "open connection"), len(self._open)
                log.warning("uid %d has %s, of %d in all: a new one of pid %d is ended", peer.uid, has, all_of_them, peer.pid)

    def closed(self, descriptor: int) -> None:
        """A connection has ended."""
        self._left.add(descriptor)
        was = self._open.pop(descriptor, None)
        if was is not None:
            self._users[was.peer.uid] -= 1
            if not self._users[was.peer.uid]:
                del self._users[was.peer.uid]

    def has_closed(self, descriptor: int) -> bool:
        """Whether the connection that had this descriptor last has ended. It may be asked in another thread."""
        return descriptor in self._left

    def refuses(self, peer: PeerCredentials) -> bool:
        """Whether a connection of ``peer`` is not to be let in. It may be asked in another thread."""
        return self._is_cut_off(peer) or self._are_too_many(peer.uid)

    def heard(self, descriptor: int, peer: PeerCredentials) -> bool:
        """A message came; whether it counts, which it does not if its connection was ended or its process is cut off."""
        found = self._open.get(descriptor)
        if found is None:  # it has closed since, or was not told of yet
            return not self._is_cut_off(peer)
        found.looks = found.busy = 0
        found.noted = False
        return not found.ended

    # ---- ending ------------------------------------------------------------------------------------------------------

    def cut_off(self, descriptor: int, peer: PeerCredentials) -> None:
        """``peer`` floods this connection: its process loses all that it has, and gets no new one for a while.

        A process that cannot be told from others of its user (pid 0: it is in another pid namespace) loses this one.
        """
        if not peer.pid:
            self._end(descriptor, peer)
            if self._may_tell("invisible"):
                log.warning(
                    "a process of uid %d in a container sends far more than it is answered: its connection is ended", peer.uid
                )
            return
        now, started = self._clock(), started_s(peer.pid)
        if self._is_cut_off(peer):
            return
        before = self._cut_off.pop((peer.uid, peer.pid), None)
        times = before.times + 1 if before is not None and before.started == started else 1
        seconds = min(CUT_OFF_S * 2 ** (times - 1), LONGEST_S)
        self._cut_off[peer.uid, peer.pid] = _CutOff(started, now + seconds, times)
        if len(self._cut_off) > MAX_CUT_OFF:
            self._cut_off.popitem(last=False)
        its = [each for each, found in self._open.items() if found.peer == peer and not found.ended]
        for each in its:
            self._end(each)
        if self._may_tell("cut off"):
            log.warning(
                "pid %d of uid %d sends far more than it is answered: its %s ended, and it gets no new one for %.0f s",
                peer.pid,
                peer.uid,
                counted(len(its), "connection is", "connections are"),
                seconds,
            )

    def tick(self, now: float, has_session: Callable[[int], bool]) -> float:
        """End what is silent without a session; when to look again."""
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            for descriptor, found in self._open.items():
                if found.ended or has_session(descriptor):
                    continue
                found.looks += 1
                if found.looks >= LOOKS:
                    log.debug("pid %d of uid %d is connected and says nothing; it is ended", found.peer.pid, found.peer.uid)
                    self._end(descriptor)
            self._forget(now)
        return self._next_look if self._open or self._cut_off else math.inf

    # ---- messages that do not end (``memory_guard``) -----------------------------------------------------------------

    def note_all(self) -> None:
        """From now on it is known of which connections no whole message has come."""
        for found in self._open.values():
            found.noted, found.busy = True, 0

    def sample(self) -> None:
        """Note which connections have bytes that libzmq has not read. A number that is another file's by now is only asked."""
        for descriptor, found in self._open.items():
            found.busy += far_ends.unread(descriptor) > 0

    def take_busy(self, least: int) -> list[tuple[int, int]]:
        """How often the connections of each process were busy without a whole message, and one of them, where that is ``least`` or more.

        All begin anew.  Processes that cannot be told from others of their user count as one for each connection.
        """
        busy: dict[tuple[int, int], tuple[int, int]] = {}
        for descriptor, found in self._open.items():
            if found.busy and not found.ended:
                process = found.peer.uid, found.peer.pid or -descriptor
                busy[process] = busy.get(process, (0, 0))[0] + found.busy, descriptor
            found.busy = 0
        return [each for each in busy.values() if each[0] >= least]

    def cut_off_each(self, descriptors: Iterable[int]) -> None:
        """Cut off the processes behind these connections."""
        for descriptor in descriptors:
            self.cut_off(descriptor, self._open[descriptor].peer)

    def end_noted(self) -> int:
        """End the connections of which no whole message has come since ``note_all``; how many they are."""
        noted = [descriptor for descriptor, found in self._open.items() if found.noted and not found.ended]
        for descriptor in noted:
            self._end(descriptor)
        return len(noted)

    def _end(self, descriptor: int, peer: PeerCredentials | None = None) -> None:
        found = self._open.get(descriptor)
        whose = peer or (found.peer if found is not None else None)
        if whose is not None and far_ends.end(descriptor, self._path, whose) and found is not None:
            found.ended = True

    def _are_too_many(self, uid: int) -> bool:
        return self._users[uid] > OPEN_FACTOR * self._allowed() + OPEN_MORE or len(self._open) > self._most

    def _is_cut_off(self, peer: PeerCredentials) -> bool:
        found = self._cut_off.get((peer.uid, peer.pid))
        return found is not None and self._clock() < found.until and started_s(peer.pid) == found.started

    def _forget(self, now: float) -> None:
        """A process that has not flooded for a long time begins anew."""
        while self._cut_off:
            whose, oldest = next(iter(self._cut_off.items()))
            if now < oldest.until + LONGEST_S:
                return
            del self._cut_off[whose]

    def _may_tell(self, kind: str) -> bool:
        now = self._clock()
        if now < self._next_told.get(kind, -math.inf):
            return False
        self._next_told[kind] = now + TOLD_S
        return True
