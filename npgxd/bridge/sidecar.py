"""The sidecar of a bundled ``compiled_module``: what that file was made from, in a file of ours beside it.

Promise: a sidecar is for exactly one entry, by the entry's digest; ``parse`` returns what ``encoded`` was given, or raises
SidecarDamaged; nothing in it is ever run or unpickled. In the daemon the two are one artifact, the sidecar first, and the bundled
format stays as it is. The form is written down in docs/file-formats.md.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = 1
"""Of the form and of what the facts mean: a change makes every older sidecar say nothing, and its entry is made again."""
_MAGIC: Final = b"npgxd-sidecar"


class SidecarDamaged(NpgxError):
    """These bytes are no whole sidecar of this format."""

    code = "SIDECAR_DAMAGED"
    exit_code = 65


@dataclass(frozen=True, slots=True)
class Sidecar:
    """``digest`` is the sha256 of the entry, ``size`` its bytes; ``facts`` what must still hold (``made_from``), as plain data."""

    digest: str
    size: int
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, entry: bytes, facts: Mapping[str, Any]) -> Sidecar:
        """The sidecar of an entry that was made from ``facts``."""
        return cls(digest_of(entry), len(entry), facts)

    def encoded(self) -> bytes:
        """Two lines: the format with the sha256 of the second, and one JSON object."""
        told = {"digest": self.digest, "size": self.size, "facts": self.facts}
        body = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
        return b"%s %d %s\n%s\n" % (_MAGIC, FORMAT, digest_of(body).encode(), body)

    @classmethod
    def parse(cls, text: bytes) -> Sidecar:
        """The opposite of ``encoded``."""
        sidecar, rest = _split(text)
        if rest:
            raise SidecarDamaged("something follows the sidecar")
        return sidecar


def digest_of(data: bytes) -> str:
    """The sha256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def pack(sidecar: Sidecar, entry: bytes) -> bytes:
    """What the daemon keeps: the sidecar's two lines, then the entry's bytes."""
    return sidecar.encoded() + entry


def unpack(data: bytes) -> tuple[Sidecar, bytes]:
    """The opposite of ``pack``; SidecarDamaged also if the entry is not the sidecar's."""
    sidecar, entry = _split(data)
    if len(entry) != sidecar.size or digest_of(entry) != sidecar.digest:
        raise SidecarDamaged("the entry is not the one that its sidecar is of")
    return sidecar, entry


def _split(data: bytes) -> tuple[Sidecar, bytes]:
    head, _, behind = data.partition(b"\n")
    body, _, rest = behind.partition(b"\n")
    if head != b"%s %d %s" % (_MAGIC, FORMAT, digest_of(body).encode()):
        raise SidecarDamaged("it is damaged, or of another format")
    match json.loads(body):  # its digest was right, so it is what some npgxd wrote
        case {"digest": str(digest), "size": int(size), "facts": dict(facts)}:
            return Sidecar(digest, size, facts), rest
    raise SidecarDamaged("it lacks what a sidecar has")
