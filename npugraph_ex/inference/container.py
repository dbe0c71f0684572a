"""The form of a ``compiled_module``: named sections of bytes behind a preamble with a format version and a digest.

Promise: equal sections give equal bytes, in every process; ``unpack`` returns exactly what ``pack`` was given, or raises
EntryDamaged or EntryOutdated before it has looked at any section.  Nothing here gives a section a meaning, imports torch,
or runs anything.  The form is written down in docs/file-formats.md.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Final

from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC: Final = b"\x89NPGXCM\n"
FORMAT: Final = 1
"""Changes whenever an older reader would not understand, or misunderstand, what a newer writer wrote."""
ALIGNMENT: Final = 64
"""Sections begin at multiples of this, so that tensor data can be used where it lies."""
_PREAMBLE: Final = struct.Struct("<8sIIQ32s8x")  # magic, format, length of the directory, length of the file, digest
_DIGEST: Final = slice(24, 56)
"""Where the digest lies: the sha256 of all other bytes of the file."""
_MAX_SECTIONS: Final = 64


class EntryDamaged(NpgxError):
    """These bytes are not a whole compile-cache entry."""

    code = "ENTRY_DAMAGED"
    exit_code = 65


class EntryOutdated(NpgxError):
    """An entry of another format version: whole, perhaps, but not for this npugraph_ex."""

    code = "ENTRY_OUTDATED"
    exit_code = 65


def pack(sections: Mapping[str, bytes]) -> bytes:
    """One entry's bytes; sections keep their order."""
    names = list(sections)
    at = 0
    directory: list[tuple[str, int, int]] = []
    for name in names:
        directory.append((name, at, len(sections[name])))
        at = _aligned(at + len(sections[name]))
    told = json.dumps(directory, separators=(",", ":")).encode()
    told += b" " * (_aligned(_PREAMBLE.size + len(told)) - _PREAMBLE.size - len(told))
    body = bytearray(at)
    for name, begin, length in directory:
        body[begin : begin + length] = sections[name]
    whole = bytearray(_PREAMBLE.pack(MAGIC, FORMAT, len(told), _PREAMBLE.size + len(told) + at, b"") + told + body)
    whole[_DIGEST] = _digest(memoryview(whole))
    return bytes(whole)


def unpack(data: bytes) -> dict[str, memoryview]:
    """The sections of ``data``, as views of it, in order; the digest is checked first."""
    if len(data) < _PREAMBLE.size or data[: len(MAGIC)] != MAGIC:
        raise EntryDamaged("this is not a compile-cache entry of npugraph_ex", hint=_AGAIN)
    _, version, told, length, digest = _PREAMBLE.unpack_from(data)
    if version != FORMAT:
        raise EntryOutdated(
            f"the entry has format {version}, and this npugraph_ex reads format {FORMAT}", hint=_AGAIN, version=version
        )
    view = memoryview(data)
    if length != len(data) or told > length - _PREAMBLE.size:
        raise EntryDamaged(f"the entry should be {length} bytes long and is {len(data)}", hint=_AGAIN)
    if _digest(view) != digest:
        raise EntryDamaged("the entry's bytes are not those of its digest", hint=_AGAIN)
    directory = json.loads(bytes(view[_PREAMBLE.size : _PREAMBLE.size + told]))
    return _sections(directory, view[_PREAMBLE.size + told :])


_AGAIN: Final = "It is made again at the next start"


def _sections(directory: object, body: memoryview) -> dict[str, memoryview]:
    """A digest proves that nothing changed on the way, not that the writer was right: the directory is checked as well."""
    if not isinstance(directory, list) or len(directory) > _MAX_SECTIONS:
        raise EntryDamaged("the entry's directory is not a list of sections", hint=_AGAIN)
    found: dict[str, memoryview] = {}
    for item in directory:
        match item:
            case [str(name), int(begin), int(length)] if begin >= 0 and length >= 0 and begin + length <= len(body):
                found[name] = body[begin : begin + length]
            case _:
                raise EntryDamaged(f"the entry's directory has a bad section: {item!r}", hint=_AGAIN)
    return found


def _digest(whole: memoryview) -> bytes:
    digest = hashlib.sha256(whole[: _DIGEST.start])
    digest.update(whole[_DIGEST.stop :])
    return digest.digest()


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
