"""From a decoded envelope to a checked message, on either side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.errors import ProtocolError
from npgxd.wire import artifact_messages, explain_messages, limits, messages, observe_messages, switch_messages
from npgxd.wire.artifact_messages import CacheList
from npgxd.wire.explain_messages import Explain
from npgxd.wire.messages import Hello, Status
from npgxd.wire.observe_messages import Metrics, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.wire.codec import Envelope
    from npgxd.wire.form import Message


class UnknownOp(ProtocolError):
    """An op that this side does not know; a newer peer may send one."""

    code = "UNKNOWN_OP"


class UnsupportedVersion(ProtocolError):
    """A message of a protocol version that this side does not speak."""

    code = "UNSUPPORTED_VERSION"


_VOCABULARIES = (messages, artifact_messages, switch_messages, explain_messages, observe_messages)
REQUESTS: dict[str, type[Message]] = {op: kind for each in _VOCABULARIES for op, kind in each.REQUESTS.items()}
"""All that a rank may send to npgxd.sock."""
REPLIES: dict[str, type[Message]] = {op: kind for each in _VOCABULARIES for op, kind in each.REPLIES.items()}
"""All that it may get from there."""
_ANY_VERSION = frozenset({Hello.op, Status.op, CacheList.op, Explain.op, Metrics.op, Trace.op})
"""Hello carries the versions to choose from, and what npgxctl asks must work across all of them."""


def parse_request(envelope: Envelope) -> Message:
    """The request in ``envelope``; ProtocolError (or UnknownOp, UnsupportedVersion) if it is none."""
    return _parse(envelope, REQUESTS, _ANY_VERSION)


def parse_reply(envelope: Envelope) -> Message:
    """The reply or event in ``envelope``; ProtocolError (or UnknownOp, UnsupportedVersion) if it is none."""
    return _parse(envelope, REPLIES, frozenset())


def _parse(envelope: Envelope, kinds: Mapping[str, type[Message]], any_version: frozenset[str]) -> Message:
    kind = kinds.get(envelope.op)
    if kind is None:
        raise UnknownOp(f"unknown op {envelope.op[:64]!r}", hint=f"known: {', '.join(kinds)}")
    if envelope.version != limits.PROTOCOL_VERSION and envelope.op not in any_version:
        raise UnsupportedVersion(
            f"protocol version {envelope.version}; this side speaks {limits.PROTOCOL_VERSION}",
            hint="install the same npgxd on both sides",
        )
    return kind.parse(envelope.header)
