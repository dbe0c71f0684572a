"""Asking the daemon as an administrator: one connection to admin.sock, requests, and how far they are."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import zmq

from npgxd.cli.page import show
from npgxd.errors import DaemonUnavailable, ProtocolError, RequestRefused
from npgxd.wire import admin, limits
from npgxd.wire.codec import decode, encode
from npgxd.wire.endpoint import ADMIN_SOCKET_NAME, DENIED, SILENT_HINT, candidates, probe, remedy
from npgxd.wire.messages import Refusal
from npgxd.wire.threads import check_threads

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from npgxd.cli.page import Line
    from npgxd.wire.form import Message

SCHEMA = 1
"""The answers' schema that this npgxctl reads."""
_SLICE_MS = 200


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every administrator's command has."""
    parser.add_argument(
        "--json", action="store_true", help="print the daemon's answer as JSON (docs/protocol.md, Administration)"
    )
    parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this admin.sock")


def find_admin_socket(given: Path | None) -> Path:
    """Where administrators are heard: beside the socket that ranks use. DaemonUnavailable says what was tried."""
    paths = [given.absolute()] if given is not None else [path.with_name(ADMIN_SOCKET_NAME) for path in candidates(os.environ)]
    tried: list[str] = []
    for path in paths:
        problem = probe(path)
        if not problem:
            return path
        tried.append(f"{path} ({problem})")
    hint = remedy()
    if any(DENIED in text for text in tried):
        hint = "Administration is for root and the daemon's own user: run it as one of them"
    raise DaemonUnavailable(f"no daemon can be asked; looked at {', '.join(tried)}", hint=hint)


class DaemonGone(DaemonUnavailable):
    """The daemon that was asked has ended before it answered."""


class Admin:
    """A connection to admin.sock."""

    def __init__(self, socket: Path | None) -> None:
        self.path = find_admin_socket(socket)
        check_threads()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{self.path}")
        self._ids = itertools.count(1)
        self._told = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._clear()
        self._context.destroy(linger=0)

    def ask(self, message: Message, frames: Sequence[bytes] = ()) -> dict[str, Any]:
        """The answer's document; progress goes to stderr, if that is a terminal.

        Raises:
            RequestRefused: the daemon's refusal. DaemonUnavailable: it has gone, or said nothing for a while.
        """
        number = next(self._ids)
        self._socket.send_multipart(encode(message, number, frames))
        silent_at = time.monotonic() + limits.RECONNECT_S
        while True:
            if not self._socket.poll(_SLICE_MS):
                if time.monotonic() > silent_at:
                    raise DaemonUnavailable(f"the daemon at {self.path} says nothing", hint=SILENT_HINT)
                if probe(self.path) and not self._socket.poll(_SLICE_MS):  # its last words may have come meanwhile
                    raise DaemonGone(f"the daemon at {self.path} has gone", hint="see its log; run it again")
                continue
            envelope = decode(self._socket.recv_multipart())
            reply = admin.parse(envelope, admin.REPLIES)
            silent_at = time.monotonic() + limits.RECONNECT_S
            if envelope.id not in {number, 0}:
                continue
            if isinstance(reply, Refusal):
                self._clear()
                raise RequestRefused(reply.message, hint=reply.hint, refusal=reply.code)
            if isinstance(reply, admin.Progress):
                self._tell(reply)
            elif isinstance(reply, admin.Answer):
                self._clear()
                return _document(reply.schema, b"".join(envelope.frames))

    def _tell(self, progress: admin.Progress) -> None:
        if sys.stderr.isatty():
            of = f" {progress.done} of {progress.total}" if progress.total else f" {progress.done}" if progress.done else ""
            text = f"{progress.what}{of} ..."
            sys.stderr.write("\r" + text.ljust(self._told))
            sys.stderr.flush()
            self._told = len(text)

    def _clear(self) -> None:
        if self._told:
            sys.stderr.write("\r" + " " * self._told + "\r")
            sys.stderr.flush()
            self._told = 0


def _document(schema: int, text: bytes) -> dict[str, Any]:
    admin.check_answer(schema, SCHEMA)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"the daemon's answer is not JSON: {error}", hint="see the daemon's log") from None
    if not isinstance(document, dict):
        raise ProtocolError("the daemon's answer is not a JSON object", hint="see the daemon's log")
    return document


def tell(options: argparse.Namespace, document: dict[str, Any], page: Callable[[], list[Line]]) -> None:
    """An answer: as JSON for scripts, if that was asked for, else as the lines that ``page`` makes of it."""
    if options.json:
        json.dump({"schema": SCHEMA, **document}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(page())
