"""The compile cache's vocabulary: look-ups, single flight, publishing, what ranks tell of entries (docs/protocol.md, "The compile cache").

An entry is bytes under a key; the daemon never reads them.  Whose they are is the kernel's word for the peer, so no message names a user.
"""

from __future__ import annotations

from typing import ClassVar, Final

from npgxd.wire import limits
from npgxd.wire._fields import flag, integer, mapping, number, optional, pattern, text, word
from npgxd.wire.form import COUNT, DIGEST, SECONDS, Event, Message, bounded
from npgxd.wire.plain import plain
from npgxd.wire.states import ArtifactState

MAX_PARTS: Final = limits.MAX_ARTIFACT_BYTES // limits.ARTIFACT_PART_BYTES
MAX_WAIT_S: Final = 86_400.0
MAX_FACT: Final = 1024
LABEL = text()
REASON = text(limits.MAX_TEXT)
CODE = pattern(r"[A-Za-z][A-Za-z0-9_]{0,63}", "a code of letters, digits and '_'")
_PART = integer(0, MAX_PARTS - 1)
_SIZE = integer(1, limits.MAX_ARTIFACT_BYTES)


@plain
class Lookup(Message):
    """Client to daemon: the entry of this key, or who builds it. With ``wait_s``, events follow a BUILDING until the build ends."""

    op: ClassVar[str] = "lookup"
    key: str = bounded(DIGEST)
    label: str = bounded(LABEL, "")
    wait_s: float = bounded(number(0, MAX_WAIT_S), 0.0)
    ticket: int = bounded(COUNT, 0)
    """Repeated in the events, so that those of a wait that was given up are told from those of this one."""


@plain
class Artifact(Event):
    """Answer to lookup, and the event that those who wait get.

    A HIT that answers a lookup carries the entry's first part; as an event it carries nothing: look up again.  A MISS makes its reader the
    builder.
    """

    op: ClassVar[str] = "artifact"
    key: str = bounded(DIGEST)
    state: ArtifactState = bounded(word(ArtifactState))
    digest: str | None = bounded(optional(DIGEST), None)
    size: int = bounded(COUNT, 0)
    proven: bool = bounded(flag, default=False)
    """Somebody has loaded it well."""
    publisher: int | None = bounded(optional(integer(0, 2**32 - 1)), None)
    """The uid that made it; another than one's own only where an administrator trusts it."""
    code: str = bounded(text(64), "")
    reason: str = bounded(REASON, "")
    elapsed_s: float = bounded(SECONDS, 0.0)
    """For how long it has been built."""
    ticket: int = bounded(COUNT, 0)

    @property
    def topic(self) -> str:
        """One key is followed at a time."""
        return self.key


@plain
class Fetch(Message):
    """Client to daemon: a later part of the entry that a HIT told of."""

    op: ClassVar[str] = "fetch"
    key: str = bounded(DIGEST)
    digest: str = bounded(DIGEST)
    part: int = bounded(_PART)


@plain
class ArtifactPart(Message):
    """Answer to fetch: one payload frame."""

    op: ClassVar[str] = "artifact_part"
    key: str = bounded(DIGEST)
    part: int = bounded(_PART)


@plain
class Publish(Message):
    """Client to daemon: one part of an entry, in one payload frame; all but the last have exactly ``ARTIFACT_PART_BYTES``."""

    op: ClassVar[str] = "publish"
    key: str = bounded(DIGEST)
    digest: str = bounded(DIGEST)
    size: int = bounded(_SIZE)
    part: int = bounded(_PART, 0)
    label: str = bounded(LABEL, "")
    meta: dict[str, str] = bounded(mapping(text(MAX_FACT), limits.MAX_ARTIFACT_FACTS, key=text(64, empty=False)), dict)
    """For people, in ``npgxctl cache show``."""


@plain
class PublishTaken(Message):
    """Answer to every part of a publication but the last. Nothing is durable yet."""

    op: ClassVar[str] = "publish_taken"
    key: str = bounded(DIGEST)
    part: int = bounded(_PART)


@plain
class Published(Message):
    """Answer to the last part: the entry is durable. ``digest`` is that of the entry that counts, which came first."""

    op: ClassVar[str] = "published"
    key: str = bounded(DIGEST)
    digest: str = bounded(DIGEST)


@plain
class NotCacheable(Message):
    """Client to daemon: this cannot be cached, and why; remembered, so that no later start tries again."""

    op: ClassVar[str] = "not_cacheable"
    key: str = bounded(DIGEST)
    code: str = bounded(CODE)
    reason: str = bounded(REASON, "")
    label: str = bounded(LABEL, "")


@plain
class Release(Message):
    """Client to daemon: I neither build this any more nor wait for it."""

    op: ClassVar[str] = "release"
    key: str = bounded(DIGEST)


@plain
class Proven(Message):
    """Client to daemon: the entry with these bytes was loaded well."""

    op: ClassVar[str] = "proven"
    key: str = bounded(DIGEST)
    digest: str = bounded(DIGEST)


@plain
class BadArtifact(Message):
    """Client to daemon: the entry with these bytes could not be loaded. The second such report sets it aside."""

    op: ClassVar[str] = "bad_artifact"
    key: str = bounded(DIGEST)
    digest: str = bounded(DIGEST)
    reason: str = bounded(REASON, "")


@plain
class CacheNote(Message):
    """Client to daemon: what became of one wrapped function in this process, for whoever asks why it was compiled again."""

    op: ClassVar[str] = "cache_note"
    key: str = bounded(DIGEST)
    label: str = bounded(LABEL)
    outcome: str = bounded(CODE)
    reason: str = bounded(REASON, "")


@plain
class CacheList(Message):
    """Anyone who may open the socket: what is cached for this user (an administrator: for all), without a hello.

    ``match``: the first digits of keys, or a part of labels; empty: all.
    """

    op: ClassVar[str] = "cache_list"
    match: str = bounded(LABEL, "")


@plain
class CacheDocument(Message):
    """Answer to cache_list: payload frames, together the JSON document of docs/file-formats.md."""

    op: ClassVar[str] = "cache_document"
    schema: int = bounded(integer(1, 1000))


REQUESTS: dict[str, type[Message]] = {
    kind.op: kind for kind in (Lookup, Fetch, Publish, NotCacheable, Release, Proven, BadArtifact, CacheNote, CacheList)
}
REPLIES: dict[str, type[Message]] = {kind.op: kind for kind in (Artifact, ArtifactPart, PublishTaken, Published, CacheDocument)}
