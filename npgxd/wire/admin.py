"""The messages of the socket for administrators: another vocabulary on the same framing (docs/protocol.md, "Administration").

A request is answered by any number of ``progress`` messages and then one ``answer`` or ``refusal``, all with the request's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from npgxd.errors import ProtocolError
from npgxd.wire import limits
from npgxd.wire._fields import flag, integer, pattern, sequence, text
from npgxd.wire.explain_messages import Explain
from npgxd.wire.form import COUNT, ROUND_ID, Message, bounded
from npgxd.wire.messages import Refusal
from npgxd.wire.parsing import UnknownOp, UnsupportedVersion
from npgxd.wire.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.wire.codec import Envelope

PROGRESS_S = 0.5
"""The daemon says how far a long act is at least this often."""
_WHAT = pattern(
    r"[0-9a-f]{4,64}|[0-9a-zA-Z_-]{1,64}/[0-9a-f]{4,32}|view:[0-9a-f]{4,64}", "a key's first digits, job/round or view:digits"
)


@plain
class Verify(Message):
    """Look at every digest; with ``repair``, mend what can be mended."""

    op: ClassVar[str] = "verify"
    repair: bool = bounded(flag, default=False)


@plain
class Gc(Message):
    """A pass of removal now; with ``dry_run``, only what it would do."""

    op: ClassVar[str] = "gc"
    dry_run: bool = bounded(flag, default=False)


@plain
class PinKernels(Message):
    """Keep these kernels: a key's first digits, ``job/round``, or ``view:`` and a view's first digits."""

    op: ClassVar[str] = "pin"
    what: str = bounded(_WHAT)


@plain
class Unpin(Message):
    """End a pin, by the name it was given under."""

    op: ClassVar[str] = "unpin"
    what: str = bounded(_WHAT)


@plain
class ListPins(Message):
    """All pins."""

    op: ClassVar[str] = "pins"


@plain
class ImportPart(Message):
    """A piece of what is to be imported, by value: records (frames as in submit), or a run package's bytes."""

    op: ClassVar[str] = "import_part"
    upload: str = bounded(ROUND_ID)
    kind: str = bounded(pattern(r"records|package", "records or package"))
    name: str = bounded(text(limits.MAX_NAME), "")
    part: int = bounded(integer(0, 1_000_000), 0)


@plain
class ImportRun(Message):
    """All parts are there: take the kernels of the packages (only with ``trust_toolchain``), and queue the records that have none."""

    op: ClassVar[str] = "import"
    upload: str = bounded(ROUND_ID)
    label: str = bounded(text(limits.MAX_NAME), "")
    trust_toolchain: bool = bounded(flag, default=False)


@plain
class CacheRemove(Message):
    """Remove the compile-cache entries whose keys begin so (empty: all), and forget which of these keys cannot be cached."""

    op: ClassVar[str] = "cache_remove"
    key: str = bounded(pattern(r"([0-9a-f]{4,64})?", "a key's first digits (4 or more), or empty"))


@plain
class Logs(Message):
    """What runs of op_compiler that failed have left: of all in brief, or of the one whose id begins so."""

    op: ClassVar[str] = "logs"
    job: str = bounded(pattern(r"([0-9a-f]{4,32})?", "the first digits (4 or more) of a run of op_compiler"), "")


@plain
class Retry(Message):
    """Forget what is remembered as failed: of keys that begin so, of one operator, or all; of the latter two also what keeps changing."""

    op: ClassVar[str] = "retry"
    keys: tuple[str, ...] = bounded(sequence(pattern(r"[0-9a-f]{4,64}", "a key's first digits (4 or more)"), 1000), tuple)
    op_type: str = bounded(pattern(r"([A-Za-z][A-Za-z0-9_]{0,127})?", "an operator's name"), "")
    all: bool = bounded(flag, default=False)


@plain
class Drain(Message):
    """Let running compiles finish, start nothing new, and end: as SIGTERM."""

    op: ClassVar[str] = "drain"


@plain
class Shutdown(Message):
    """End now; what was compiling is compiled at the next start."""

    op: ClassVar[str] = "shutdown"


@plain
class Progress(Message):
    """How far a long act is; ``total`` 0: not known."""

    op: ClassVar[str] = "progress"
    what: str = bounded(text())
    done: int = bounded(COUNT, 0)
    total: int = bounded(COUNT, 0)


@plain
class Answer(Message):
    """The act's outcome: one JSON document in the payload frames."""

    op: ClassVar[str] = "answer"
    schema: int = bounded(integer(1, 1000), 1)


REQUESTS: dict[str, type[Message]] = {
    kind.op: kind
    for kind in (
        Verify,
        Gc,
        PinKernels,
        Unpin,
        ListPins,
        ImportPart,
        ImportRun,
        CacheRemove,
        Explain,
        Logs,
        Retry,
        Drain,
        Shutdown,
    )
}
REPLIES: dict[str, type[Message]] = {kind.op: kind for kind in (Progress, Answer, Refusal)}


def parse(envelope: Envelope, kinds: Mapping[str, type[Message]]) -> Message:
    """The message in ``envelope``; ProtocolError (or UnknownOp, UnsupportedVersion) if it is none of ``kinds``."""
    kind = kinds.get(envelope.op)
    if kind is None:
        raise UnknownOp(f"unknown op {envelope.op[:64]!r}", hint=f"known: {', '.join(kinds)}")
    if envelope.version != limits.PROTOCOL_VERSION:
        raise UnsupportedVersion(
            f"protocol version {envelope.version}; this side speaks {limits.PROTOCOL_VERSION}",
            hint="install the same npgxd on both sides",
        )
    return kind.parse(envelope.header)


def check_answer(schema: int, known: int) -> None:
    """ProtocolError if an answer has a schema that this side does not read."""
    if schema != known:
        raise ProtocolError(
            f"the daemon's answer has schema {schema}; this side reads {known}", hint="install the same npgxd on both sides"
        )
