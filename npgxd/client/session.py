"""This process's standing with whatever daemon runs on the node: connected on demand, rebuilt after a fork and after a restart.

Promise: nothing here blocks for longer than ``Patience`` says, and nothing of a parent process is ever used by its child.
Threads take turns in the order in which they ask, so that one that follows a round for minutes does not keep the others out.
"""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq

from npgxd import __version__
from npgxd.client.connection import Connection, ConnectionLost, Context, DaemonSilent, Reply
from npgxd.client.lease import held
from npgxd.client.rank import program, rank_info
from npgxd.errors import DaemonUnavailable, NoThreads, ProtocolError, RequestRefused
from npgxd.wire import limits
from npgxd.wire.endpoint import SILENT_HINT, find_socket, is_kept_by_manager
from npgxd.wire.messages import Hello, ToolchainIdentity, Welcome
from npgxd.wire.threads import check_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npgxd.wire.form import Event, Message


class Patience(NamedTuple):
    """How long the client waits, in seconds (docs/protocol.md, "Waiting")."""

    handshake_s: float = 1.5
    silence_s: float = limits.SILENCE_S
    reconnect_s: float = limits.RECONNECT_S
    remind_s: float = 2.5 * limits.PROGRESS_INTERVAL_S
    """Without an event for this long the daemon is asked again: one event may have been dropped."""
    rest_s: float = 30.0
    """After silence the daemon is not asked again for this long."""
    losses: int = 8
    """Daemons that may be lost during one round before it is given up."""


MAX_NAMED_LEASES: Final = 1024

_contexts: dict[int, Context] = {}
_inherited: list[object] = []
"""What a forked child got from its parent: kept, because closing it would reach into the parent's sockets."""


def context_of_process() -> Context:
    """The zmq context of this process, made anew after a fork. It is never terminated: that could block an exit.

    DaemonUnavailable where this process can have no more threads.
    """
    context = _contexts.get(os.getpid())
    if context is None:
        try:
            check_threads()
        except NoThreads as error:
            raise DaemonUnavailable(error.message, hint=error.hint) from error
        made: Context = zmq.Context()
        context = _contexts.setdefault(os.getpid(), made)
        if context is not made:  # another thread was faster
            made.term()
    return context


class NoTime(DaemonSilent):
    """The caller's own time was over before the daemon could be expected to answer; nothing is wrong with the daemon."""


class _Turns:
    """A lock that is given in the order of asking (two locks: whoever asks waits at the door, one at a time)."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._inside = threading.Lock()

    def take(self, left: Callable[[], float]) -> bool:
        """Wait for one's turn for as long as ``left`` says; whether it came."""
        if not self._door.acquire(timeout=_timeout(left())):
            return False
        try:
            return self._inside.acquire(timeout=_timeout(left()))
        finally:
            self._door.release()

    def give(self) -> None:
        """The turn is over."""
        self._inside.release()


def _timeout(seconds: float) -> float:
    return -1 if seconds == math.inf else min(max(0.0, seconds), threading.TIMEOUT_MAX)


class _Hurry(threading.local):
    """Until when the present thread has time for the daemon."""

    until = math.inf


class Session:
    """A connection to the daemon with its welcome; every method may be called from any thread and after a fork."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        patience: Patience,
        identify: Callable[[], ToolchainIdentity],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._environ = environ
        self._identify = identify
        self._clock = clock
        self.patience = patience
        self._hurry = _Hurry()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._turns = _Turns()
        self._connection: Connection | None = None
        self._welcome: Welcome | None = None
        self.generation = 0
        """Grows with every new connection: what was followed on an earlier one must be followed again."""
        self.trusted = False
        """A daemon answered here and was not given up since, so a missing one is taken for restarting and waited for."""
        self._given_up = False
        self._rests_until = 0.0
        self._silent = DaemonSilent("the daemon was silent", hint=SILENT_HINT)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._pid != os.getpid():
            _inherited.append((self._connection, self._turns))
            self._begin()
        turns = self._turns
        if not turns.take(self._left):
            raise NoTime("another thread of this process waits for the daemon", hint="see npgxctl status")
        try:
            yield
        finally:
            turns.give()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What this thread asks of the daemon here takes so long in all, at most; then it gets NoTime."""
        before = self._hurry.until
        self._hurry.until = min(before, self._clock() + seconds)
        try:
            yield
        finally:
            self._hurry.until = before

    def _left(self) -> float:
        return self._hurry.until - self._clock()

    @contextmanager
    def _in_time(self, wanted_s: float) -> Iterator[float]:
        """The time that a wait of ``wanted_s`` may take here; a silence that was cut short by it is no silence of the daemon's."""
        allowed = max(0.0, min(wanted_s, self._left()))
        try:
            yield allowed
        except DaemonSilent as silent:
            if allowed >= wanted_s:
                raise
            raise NoTime(f"the daemon had not answered in {allowed:.1f} s", hint=silent.hint) from silent

    def welcome(self) -> Welcome:
        """The current daemon's welcome; connects if needed. Raises as ``request`` does."""
        with self._turn():
            return self._connected()[1]

    def last_welcome(self) -> Welcome | None:
        """What the current connection's daemon said; None without a connection. Never connects."""
        return self._welcome if self._pid == os.getpid() and self._connection is not None else None

    def request(self, message: Message, frames: Sequence[bytes] = (), *, timeout_s: float | None = None) -> Reply:
        """One request of the daemon.

        Raises:
            RequestRefused: it refused.
            DaemonUnavailable: it is not there (ConnectionLost: it was; DaemonSilent: it says nothing).
            ProtocolError: it answers what is not of this protocol.
        """
        with self._turn():
            connection = self._connected()[0]
            wanted = self.patience.silence_s if timeout_s is None else timeout_s
            with self._dropping(), self._in_time(wanted) as allowed:
                return connection.request(message, frames, timeout_s=allowed)

    def event(self, topic: str, generation: int, *, timeout_s: float) -> Event | None:
        """The next event of what is followed on this generation's connection; None if there is none in time."""
        with self._turn():
            if generation != self.generation or self._connection is None:
                raise ConnectionLost("the connection was made anew", hint="follow it again")
            with self._dropping():
                return self._connection.event(topic, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection, at once."""
        with self._turn():
            self._drop()

    def give_up(self) -> None:
        """From now on a daemon that fails us is not waited for, until one has settled a round.

        A process with many graphs would else wait for each of them.
        """
        self._given_up, self.trusted = True, False

    def settled(self) -> None:
        """A daemon served a round to its end."""
        self._given_up, self.trusted = False, True

    def rest(self, silent: DaemonSilent) -> None:
        """The daemon was silent: do not ask again for a while, and say of it what ``silent`` says."""
        if self._clock() >= self._rests_until:
            self._rests_until, self._silent = self._clock() + self.patience.rest_s, silent

    # ---- in turn only ------------------------------------------------------------------------------------------------

    def _connected(self) -> tuple[Connection, Welcome]:
        if self._connection is not None and self._welcome is not None:
            return self._connection, self._welcome
        if self._clock() < self._rests_until:
            raise DaemonSilent(self._silent.message, hint=self._silent.hint)
        path = find_socket(self._environ)
        # Where systemd keeps the socket, the daemon may be starting, perhaps because of us.
        patience = self.patience.silence_s if is_kept_by_manager(path) else self.patience.handshake_s
        with self._in_time(patience) as allowed:
            connection = Connection(context_of_process(), path, handshake_s=allowed, clock=self._clock)
        try:
            hello = self._hello()
            with self._in_time(self.patience.silence_s) as allowed:
                welcome = connection.request(hello, timeout_s=allowed).message
            if not isinstance(welcome, Welcome):
                raise ProtocolError(f"the daemon answers hello with {welcome.op!r}")
        except BaseException:
            connection.close()
            raise
        self._connection, self._welcome = connection, welcome
        self.generation += 1
        self.trusted = not self._given_up
        return connection, welcome

    def _hello(self) -> Hello:
        """Only for a daemon that is there: reading what this process has of CANN can take seconds the first time."""
        return Hello(
            versions=(limits.PROTOCOL_VERSION,),
            client=f"npgxd {__version__}",
            pid=os.getpid(),
            program=program(),
            rank=rank_info(self._environ),
            toolchain=self._identify(),
            leases=tuple(lease.lease for lease in held()[-MAX_NAMED_LEASES:]),
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._welcome = None

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """A connection whose daemon has gone, is silent, does not know us or talks nonsense is of no more use."""
        try:
            yield
        except NoTime:
            raise
        except (DaemonUnavailable, ProtocolError):
            self._drop()
            raise
        except RequestRefused as refused:
            if refused.refusal == "NEED_HELLO":
                self._drop()
                raise ConnectionLost("the daemon was restarted", hint="say hello again") from refused
            raise
