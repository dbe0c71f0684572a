"""What npgxctl asks about one kernel, process, round or job: why it is as it is (docs/protocol.md, "Explaining")."""

from __future__ import annotations

from typing import ClassVar

from npgxd.wire._fields import integer, pattern
from npgxd.wire.form import Message, bounded
from npgxd.wire.plain import plain

WHAT_HELP = (
    "the first digits (4 or more) of a kernel key, a round or a job, or a pid, as npgxctl status and the log have them; "
    "key:, round:, job: or pid: before it says which"
)
_WHAT = pattern(r"(key:|round:|job:)?[0-9a-f]{4,64}|(pid:)?[0-9]{1,10}", WHAT_HELP)


@plain
class Explain(Message):
    """Anyone who may open the socket, without a hello: what is known of this. Of rounds and logs, users see their own alone."""

    op: ClassVar[str] = "explain"
    what: str = bounded(_WHAT)


@plain
class Explained(Message):
    """Answer to explain: one payload per frame, together the JSON document of docs/file-formats.md."""

    op: ClassVar[str] = "explained"
    schema: int = bounded(integer(1, 1000))


REQUESTS: dict[str, type[Message]] = {Explain.op: Explain}
REPLIES: dict[str, type[Message]] = {Explained.op: Explained}
