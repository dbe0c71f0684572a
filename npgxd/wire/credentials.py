"""Who is at the other end of a connection, by the kernel's word.

libzmq notes SO_PEERCRED of an ipc connection in the message property ``Peer-Address``, as ``localhost:<uid>:<gid>:<pid>``
(found by experiment with pyzmq 27 and libzmq 4.3.5; it is not documented).  A peer can claim any other property, ``User-Id``
too, but not this one.  Because that is a finding and not a promise, parsing fails closed and the daemon runs ``self_test`` at
each start.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import zmq

from npgxd.errors import NpgxError, ProtocolError
from npgxd.wire.endpoint import check_socket_path

_ADDRESS: Final = re.compile(r"localhost:(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9})")
_NOBODY: Final = 2**32 - 1
"""(uid_t)-1: the kernel's "not set"; never a user."""
_SELF_TEST_MS: Final = 5000


class CredentialsUnusable(NpgxError):
    """This libzmq does not tell who a peer is, or lets the peer say it. A daemon must not serve with it."""

    code = "CREDENTIALS"
    exit_code = 78


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """A peer's uid, gid and pid when it connected. ``pid`` 0: the process is not visible here (another pid namespace)."""

    uid: int
    gid: int
    pid: int


def peer_of(frame: zmq.Frame) -> PeerCredentials:
    """Who sent this received frame; ProtocolError if the kernel's word is missing or in an unknown form.

    Receive with ``copy=False``; every frame of a message has the property.
    """
    try:
        address = frame.get("Peer-Address")
    except (zmq.ZMQError, UnicodeDecodeError):
        address = None
    return parse_peer_address(address)


@lru_cache(maxsize=1024)
def parse_peer_address(address: object) -> PeerCredentials:
    """Read ``localhost:<uid>:<gid>:<pid>``; ProtocolError on anything else."""
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None:
        raise ProtocolError("this connection has no peer credentials", hint="connect through the daemon's ipc socket")
    uid, gid, pid = (int(text) for text in found.groups())
    if uid >= _NOBODY or gid >= _NOBODY or pid >= 2**31:
        raise ProtocolError("this connection has no valid peer credentials", hint="connect through the daemon's ipc socket")
    return PeerCredentials(uid, gid, pid)


def self_test(context: zmq.Context[zmq.Socket[bytes]], directory: Path | None = None) -> None:
    """Check that credentials come from the kernel here; CredentialsUnusable says what came instead.

    Binds a socket of its own in a private directory (below ``directory``, or the system's temporary one), connects to it as an
    honest peer and as one that claims to be somebody else, and expects its own uid and pid from both.
    """
    private = Path(tempfile.mkdtemp(prefix="npgxd-", dir=directory))  # mode 0700
    path = private / "t"
    check_socket_path(path)
    me = PeerCredentials(os.geteuid(), os.getegid(), os.getpid())
    try:
        with context.socket(zmq.ROUTER) as router:
            router.linger = 0
            router.bind(f"ipc://{path}")
            with context.socket(zmq.DEALER) as honest:
                honest.linger = 0
                honest.connect(f"ipc://{path}")
                honest.send(b"honest", zmq.DONTWAIT)
                _expect(router, me, "an honest peer")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as forger:
                forger.connect(str(path))
                send_as(forger, PeerCredentials(me.uid + 1, me.gid + 1, me.pid + 1), b"forged")
                _expect(router, me, "a peer that claims to be another user")
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _expect(router: zmq.Socket[bytes], me: PeerCredentials, who: str) -> None:
    if not router.poll(_SELF_TEST_MS):
        raise CredentialsUnusable(f"the self-test of peer credentials heard nothing from {who}", hint=_hint())
    frames = router.recv_multipart(copy=False)
    try:
        found = peer_of(frames[-1])
    except ProtocolError as error:
        raise CredentialsUnusable(f"libzmq does not tell the credentials of {who}", hint=_hint()) from error
    if found != me:
        raise CredentialsUnusable(f"libzmq tells wrong credentials of {who}: {found} instead of {me}", hint=_hint())


def _hint() -> str:
    return f"use another libzmq (this is {zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}) built with SO_PEERCRED"


def send_as(connected: socket.socket, claim: PeerCredentials, payload: bytes) -> None:
    """Speak ZMTP 3.0 (NULL mechanism; ZeroMQ RFC 23) as a peer that claims to be ``claim``, and send one message.

    For the self-test, and for tests that play a hostile client.
    """
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
    address = f"localhost:{claim.uid}:{claim.gid}:{claim.pid}".encode()
    properties = {b"Socket-Type": b"DEALER", b"Identity": b"", b"User-Id": b"%d" % claim.uid, b"Peer-Address": address}
    ready = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value for name, value in properties.items()
    )
    connected.settimeout(_SELF_TEST_MS / 1000)
    connected.sendall(greeting)
    _receive(
        connected, len(greeting)
    )  # libzmq drops what comes before its own greeting has gone out, which it does in two pieces
    connected.sendall(b"\x04" + bytes([len(ready)]) + ready)
    _receive(connected, _receive(connected, 2)[1])
    connected.sendall(b"\x00" + bytes([len(payload)]) + payload)


def _receive(connected: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes; ConnectionError if the peer ends before."""
    received = b""
    while len(received) < count:
        piece = connected.recv(count - len(received))
        if not piece:
            raise ConnectionError(f"the peer ended after {len(received)} of {count} bytes")
        received += piece
    return received
