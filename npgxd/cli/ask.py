"""Asking the daemon: one connection, one question, within bounds."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import zmq

from npgxd.client.connection import Connection
from npgxd.errors import DaemonUnavailable, ProtocolError
from npgxd.wire import limits
from npgxd.wire.endpoint import START_HINT, find_socket, probe
from npgxd.wire.messages import Status, StatusDocument

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
"""The status document's schema that this npgxctl reads."""


def status_document(socket: Path | None) -> dict[str, object]:
    """The daemon's status document.

    Raises:
        DaemonUnavailable: nobody answers at ``socket`` (None: where daemons are). ProtocolError: what came is no such document.
    """
    path = _reachable(socket)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        connection = Connection(context, path, handshake_s=limits.SILENCE_S)
        try:
            reply = connection.request(Status(), timeout_s=limits.SILENCE_S)
        finally:
            connection.close()
    finally:
        context.destroy(linger=0)
    if not isinstance(reply.message, StatusDocument):
        raise ProtocolError(f"the daemon answers status with {reply.message.op!r}", hint="install the same npgxd on both sides")
    return _parse(reply.message.schema, b"".join(reply.frames))


def _reachable(socket: Path | None) -> Path:
    if socket is None:
        return find_socket(os.environ)
    path = socket.absolute()
    problem = probe(path)
    if problem:
        raise DaemonUnavailable(f"no daemon answers at {path} ({problem})", hint=START_HINT)
    return path


def _parse(schema: int, text: bytes) -> dict[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the daemon's status is not JSON: {error}", hint="see the daemon's log") from None
    if not isinstance(document, dict):
        raise ProtocolError("the daemon's status is not a JSON object", hint="see the daemon's log")
    if schema != SCHEMA:
        raise ProtocolError(
            f"the daemon's status has schema {schema}; this npgxctl reads {SCHEMA}", hint="install the daemon's npgxd here"
        )
    return document
