"""What npgxctl asks to see the daemon over time: its metrics, and the trace of what ranks and workers did (docs/protocol.md)."""

from __future__ import annotations

from typing import ClassVar

from npgxd.wire._fields import integer, pattern
from npgxd.wire.form import Message, bounded
from npgxd.wire.plain import plain

JOB_HELP = "a job's name, or its first letters"
_JOB = pattern(r"[0-9a-zA-Z_-]{0,64}", JOB_HELP)


@plain
class Metrics(Message):
    """Anyone who may open the socket, without a hello."""

    op: ClassVar[str] = "metrics"


@plain
class MetricsText(Message):
    """Answer to metrics: one payload per frame, together text in the Prometheus exposition format 0.0.4."""

    op: ClassVar[str] = "metrics_text"


@plain
class Trace(Message):
    """Anyone who may open the socket, without a hello: what happened lately, of one job (``job``: its first letters) or of all."""

    op: ClassVar[str] = "trace"
    job: str = bounded(_JOB, "")


@plain
class TraceDocument(Message):
    """Answer to trace: one payload per frame, together a JSON document in the Trace Event Format."""

    op: ClassVar[str] = "trace_document"
    schema: int = bounded(integer(1, 1000))


REQUESTS: dict[str, type[Message]] = {kind.op: kind for kind in (Metrics, Trace)}
REPLIES: dict[str, type[Message]] = {kind.op: kind for kind in (MetricsText, TraceDocument)}
