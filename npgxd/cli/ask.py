"""Asking the daemon: one connection, one question, within bounds."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, TypeVar

import zmq

from npgxd.client.connection import Connection
from npgxd.errors import DaemonUnavailable, ProtocolError
from npgxd.wire import limits
from npgxd.wire.artifact_messages import CacheDocument, CacheList
from npgxd.wire.endpoint import find_socket, probe, remedy
from npgxd.wire.explain_messages import Explain, Explained
from npgxd.wire.form import Message
from npgxd.wire.messages import Status, StatusDocument
from npgxd.wire.observe_messages import Metrics, MetricsText, Trace, TraceDocument
from npgxd.wire.threads import check_threads

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
"""The schema of the documents that this npgxctl reads."""


def status_document(socket: Path | None) -> dict[str, object]:
    """The daemon's status document.

    Raises:
        DaemonUnavailable: nobody answers at ``socket`` (None: where daemons are). ProtocolError: what came is no such document.
    """
    return _document(socket, Status(), StatusDocument)


def cache_document(socket: Path | None, match: str = "") -> dict[str, object]:
    """What the compile cache has under keys that begin with ``match``, or labels that hold it. Raises as ``status_document`` does."""
    return _document(socket, CacheList(match=match), CacheDocument)


def explained_document(socket: Path | None, question: Explain) -> dict[str, object]:
    """What is known of one kernel, process or round. Raises as ``status_document`` does, and RequestRefused."""
    return _document(socket, question, Explained)


def trace_document(socket: Path | None, job: str = "") -> dict[str, object]:
    """What ranks and workers did lately, of jobs whose names begin with ``job``. Raises as ``status_document`` does."""
    return _document(socket, Trace(job=job), TraceDocument)


def metrics_text(socket: Path | None) -> str:
    """The metrics in Prometheus' text format. Raises as ``status_document`` does."""
    return _answer(socket, Metrics(), MetricsText)[1].decode(errors="replace")


T = TypeVar("T", bound=Message)


def _document(
    socket: Path | None, question: Message, kind: type[StatusDocument | CacheDocument | Explained | TraceDocument]
) -> dict[str, object]:
    message, payload = _answer(socket, question, kind)
    return _parse(question.op, message.schema, payload)


def _answer(socket: Path | None, question: Message, kind: type[T]) -> tuple[T, bytes]:
    path = _reachable(socket)
    check_threads()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        connection = Connection(context, path, handshake_s=limits.SILENCE_S)
        try:
            reply = connection.request(question, timeout_s=limits.SILENCE_S)
        finally:
            connection.close()
    finally:
        context.destroy(linger=0)
    if not isinstance(reply.message, kind):
        told = f"the daemon answers {question.op} with {reply.message.op!r}"
        raise ProtocolError(told, hint="install the same npgxd on both sides")
    return reply.message, b"".join(reply.frames)


def _reachable(socket: Path | None) -> Path:
    if socket is None:
        return find_socket(os.environ)
    path = socket.absolute()
    problem = probe(path)
    if problem:
        raise DaemonUnavailable(f"no daemon answers at {path} ({problem})", hint=remedy(problem))
    return path


def _parse(what: str, schema: int, text: bytes) -> dict[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the daemon's {what} is not JSON: {error}", hint="see the daemon's log") from None
    if not isinstance(document, dict):
        raise ProtocolError(f"the daemon's {what} is not a JSON object", hint="see the daemon's log")
    if schema != SCHEMA:
        raise ProtocolError(
            f"the daemon's {what} has schema {schema}; this npgxctl reads {SCHEMA}", hint="install the daemon's npgxd here"
        )
    return document
