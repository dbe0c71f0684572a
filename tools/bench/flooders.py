"""Processes of another user that flood a daemon in one way each, for ``tools.bench flood``.

``python -m tools.bench.flooders KIND UID SOCKET`` prints "on" when it has begun, and goes on until it is ended.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import time
from typing import TYPE_CHECKING

import msgpack
import zmq

from npgxd.wire.credentials import PeerCredentials, send_as
from tools.bench import lookups

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTIONS = 200
SILENT = 4000
LARGE = b"x" * 1_000_000
TRIES_S = 0.05
HELLO = msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": [1]})


def messages(path: str) -> None:
    """200 connections that send messages of up to 1 MB as fast as they can, and read nothing."""
    sockets = _dealers(path)
    turn = 1
    while True:
        turn += 1
        for number, dealer in enumerate(sockets):
            op = ("status", "submit", "publish", "nothing")[(turn + number) % 4]
            head = msgpack.packb({"v": 1, "id": turn, "op": op, "round": os.urandom(16).hex()})
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart([head, *([LARGE] if op == "submit" else [])], zmq.NOBLOCK)


def requests(path: str) -> None:
    """200 connections, each with one valid request under way at any time: a look-up, or the status of the node."""
    sockets = _dealers(path)
    poller = zmq.Poller()
    for dealer in sockets:
        poller.register(dealer, zmq.POLLIN)
    asked = [
        msgpack.packb({"v": 1, "id": 2, "op": "lookup", "key": lookups.LARGE_KEY, "wait_s": 0.0}),
        msgpack.packb({"v": 1, "id": 2, "op": "status"}),
    ]
    turn = 0
    while True:
        for dealer, _ in poller.poll():
            dealer.recv_multipart()
            turn += 1
            dealer.send(asked[turn % 8 == 0])


def reconnects(path: str) -> None:
    """One connection after another, each closed at once, as fast as they are taken."""
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one, contextlib.suppress(OSError):
            one.connect(path)


def silence(path: str) -> None:
    """4000 connections that never say hello, each made again when it is ended."""
    _allow_descriptors()
    held: list[socket.socket] = []
    while True:
        while len(held) < SILENT:
            one = _connected(path)
            if one is None:
                break
            held.append(one)
        time.sleep(TRIES_S)
        held = [each for each in held if not _has_ended(each)]


def halves(path: str) -> None:
    """200 connections that send the first 900 kB of a message, and wait."""
    held = [_greeted(path) for _ in range(CONNECTIONS)]
    for one in held:
        one.sendall(_frame(len(LARGE), more=False) + LARGE[:900_000])
    while True:
        time.sleep(TRIES_S)
        for at, one in enumerate(held):
            if _has_ended(one):
                held[at] = _greeted(path)


def endless(path: str) -> None:
    """One connection whose message has no last frame."""
    while True:
        one = _greeted(path)
        with contextlib.suppress(OSError):
            while True:
                one.sendall(_frame(len(LARGE), more=True) + LARGE)
        one.close()


KINDS: dict[str, Callable[[str], None]] = {
    "messages": messages,
    "requests": requests,
    "reconnects": reconnects,
    "silence": silence,
    "halves": halves,
    "endless": endless,
}


def _dealers(path: str) -> list[zmq.Socket[bytes]]:
    """Connected, each with its hello under way; libzmq connects again, ten times a second, where the daemon ends one."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * CONNECTIONS)
    sockets = [context.socket(zmq.DEALER) for _ in range(CONNECTIONS)]
    for dealer in sockets:
        dealer.linger = 0
        dealer.connect(f"ipc://{path}")
        dealer.send(HELLO)
    return sockets


def _connected(path: str) -> socket.socket | None:
    """None if nobody takes connections now."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.settimeout(1)
    try:
        one.connect(path)
    except OSError:
        one.close()
        return None
    one.settimeout(None)  # with one, also a look without waiting would wait
    return one


def _greeted(path: str) -> socket.socket:
    """A connection that has said hello, in ZMTP by hand."""
    while True:
        one = _connected(path)
        if one is not None:
            with contextlib.suppress(OSError):
                send_as(one, PeerCredentials(0, 0, 0), HELLO)
                one.settimeout(None)
                return one
            one.close()
        time.sleep(TRIES_S)


def _frame(size: int, *, more: bool) -> bytes:
    return bytes([2 | more]) + size.to_bytes(8, "big")


def _has_ended(one: socket.socket) -> bool:
    """Whether the daemon ended it; it is closed then."""
    try:
        ended = not one.recv(65_536, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        ended = True
    if ended:
        one.close()
    return ended


def _allow_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * SILENT), hard))


def main(kind: str, uid: int, path: str) -> None:
    """One flooder."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    print("on", flush=True)
    KINDS[kind](path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
