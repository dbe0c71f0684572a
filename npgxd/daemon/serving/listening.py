"""Where the daemon listens: at a path of its own, or at the listening socket that systemd made there and passes on.

Promise: a socket is never open to more users than its mode says, not even for a moment; one that was passed keeps the owner, the mode
and the waiting connections that systemd gave it.  Source: sd_listen_fds(3); ZMQ_USE_FD in zmq_setsockopt(3).
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from npgxd.daemon.serving.admission import DOMAIN, Admission
from npgxd.errors import ConfigError
from npgxd.wire import limits

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

READ_QUEUED = 8
"""Messages of one connection that libzmq reads before they are taken. Each has at most 16 MiB."""
SENT_QUEUED = 32
"""Messages for one connection that wait until it reads."""
LINGER_MS = 500
_MONITOR = "inproc://ranks"
FIRST_PASSED = 3
"""SD_LISTEN_FDS_START."""


def take_passed(environ: MutableMapping[str, str]) -> dict[Path, int]:
    """The listening sockets that systemd passed to this process, by path; the variables that tell of them are taken out.

    ConfigError if one of them is not a listening Unix stream socket with a path.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    environ.pop("LISTEN_PIDFDID", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    found: dict[Path, int] = {}
    for descriptor in range(FIRST_PASSED, FIRST_PASSED + int(count)):
        os.set_inheritable(descriptor, False)
        found[_path_of(descriptor)] = descriptor
    return found


def _check_passed(passed: Mapping[Path, int], wanted: tuple[Path, ...]) -> None:
    """ConfigError if systemd passed a socket at which npgxctl and the ranks would not look for this daemon."""
    for path in passed:
        if path not in wanted:
            raise ConfigError(
                f"systemd passed the socket {path}, but [daemon] runtime_dir has its sockets at {' and '.join(map(str, wanted))}",
                hint="give npgxd.socket the same paths in a drop-in, or leave runtime_dir out",
            )


class Doors:
    """The daemon's sockets, open: libzmq's own thread shakes hands with whoever connects from now on, also while the rest still starts."""

    def __init__(self, ranks: Path, admins: Path, passed: Mapping[Path, int]) -> None:
        """The instance lock is held: what lies at the paths is nobody's. ConfigError if they cannot be used."""
        _check_passed(passed, (ranks, admins))
        self.path = ranks
        self._own = [path for path in (ranks, admins) if path not in passed]
        self.context = zmq.Context()
        self.admission = Admission(self.context)
        self.ranks = self._router()
        self.ranks.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        self.ranks.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A client sends one request at a time: what one that does not keep to that has under way is bounded here.
        self.ranks.setsockopt(zmq.RCVHWM, READ_QUEUED)
        self.ranks.setsockopt(zmq.SNDHWM, SENT_QUEUED)
        self.events = self._monitor(self.ranks)
        self.admins = self._router()
        _listen(self.ranks, ranks, 0o660, passed)
        _listen(self.admins, admins, 0o600, passed)

    def close(self) -> None:
        """Close them; sockets that systemd passed stay where they are, for the next daemon. The instance lock is held still."""
        self.ranks.disable_monitor()
        self.events.close(linger=0)
        for path in self._own:
            path.unlink(missing_ok=True)
        self.ranks.close(linger=LINGER_MS)
        self.admins.close(linger=LINGER_MS)
        self.context.term()
        self.admission.join()

    def _router(self) -> zmq.Socket[bytes]:
        router = self.context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, LINGER_MS)
        router.setsockopt(zmq.MAXMSGSIZE, max(limits.MAX_HEADER_BYTES, limits.MAX_FRAME_BYTES))
        return router

    def _monitor(self, router: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """Tells which connections come and go. Without a bound: at one, libzmq's thread would stop until this one reads.

        It would stop with the monitor's lock held, so that closing it would never end (found by experiment with libzmq 4.3.5).
        """
        router.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        events = self.context.socket(zmq.PAIR)
        events.setsockopt(zmq.RCVHWM, 0)
        events.connect(_MONITOR)
        return events


def _listen(router: zmq.Socket[bytes], path: Path, mode: int, passed: Mapping[Path, int]) -> None:
    descriptor = passed.get(path)
    try:
        if descriptor is not None:
            router.setsockopt(zmq.USE_FD, descriptor)
            router.bind(f"ipc://{path}")
            return
        before = os.umask(0o777 & ~mode)  # a plain bind would make the socket open to all, for a moment
        try:
            router.bind(f"ipc://{path}")
        finally:
            os.umask(before)
        path.chmod(mode)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"cannot listen at {path}: {error.strerror}", hint="remove what lies there, or set another runtime_dir"
        ) from error


def _path_of(descriptor: int) -> Path:
    problem = f"systemd passed descriptor {descriptor}, which is not a listening Unix stream socket with a path"
    hint = "npgxd.socket needs ListenStream= with an absolute path, and Accept=no"
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ConfigError(problem, hint=hint)
        with socket.socket(fileno=os.dup(descriptor)) as passed:
            name = passed.getsockname()
            good = (passed.family, passed.type) == (socket.AF_UNIX, socket.SOCK_STREAM) and bool(
                passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            )
    except OSError as error:
        raise ConfigError(f"{problem}: {error}", hint=hint) from error
    if not good or not isinstance(name, str) or not name.startswith("/"):
        raise ConfigError(problem, hint=hint)
    return Path(name)
