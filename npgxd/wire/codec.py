"""Bytes to messages and back: one msgpack header, then payload frames.

No pickle, no msgpack extension types, and a limit on every length, so that decoding is total: any bytes give a message or a
``ProtocolError``, in bounded time and memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgpack

from npgxd.errors import ProtocolError
from npgxd.wire import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.wire.form import Message

_NESTED = frozenset({list, dict})
"""What msgpack gives that has something within."""
Record = tuple[str, bytes]
"""A record on the wire: its file name (a label) and its JSON bytes."""


class Envelope(NamedTuple):
    """One received message: protocol version, request id, op, the header's fields and the payload frames."""

    version: int
    id: int
    op: str
    header: dict[str, object]
    frames: tuple[bytes, ...]


def encode(message: Message, request_id: int, frames: Sequence[bytes] = ()) -> list[bytes]:
    """The parts to send. ``request_id`` 0 marks an event that nobody asked for."""
    header = {"v": limits.PROTOCOL_VERSION, "id": request_id, **message.header()}
    packed = msgpack.packb(header, use_bin_type=True)
    if len(packed) > limits.MAX_HEADER_BYTES:
        raise ProtocolError(
            f"the header of {message.op!r} has {len(packed)} bytes; at most {limits.MAX_HEADER_BYTES} are allowed"
        )
    _check_frames(frames)
    return [packed, *frames]


def decode(parts: Sequence[bytes]) -> Envelope:
    """Read one message; ProtocolError if it is not one."""
    if not parts:
        raise ProtocolError("an empty message")
    if len(parts[0]) > limits.MAX_HEADER_BYTES:
        raise ProtocolError(f"a header of {len(parts[0])} bytes; at most {limits.MAX_HEADER_BYTES} are allowed")
    _check_frames(parts[1:])
    header = _unpack(parts[0], "header")
    if not isinstance(header, dict):
        raise ProtocolError("the header is not a map")
    version, request_id, op = header.get("v"), header.get("id"), header.get("op")
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= 1000:  # noqa: PLR2004 -- as hello's versions
        raise ProtocolError("the header has no protocol version 'v'")
    if not isinstance(request_id, int) or isinstance(request_id, bool) or not 0 <= request_id < 2**53:
        raise ProtocolError("the header has no request 'id'")
    if not isinstance(op, str) or len(op) > limits.MAX_NAME:
        raise ProtocolError("the header has no 'op'")
    return Envelope(version, request_id, op, header, tuple(parts[1:]))


def pack_records(records: Iterable[Record]) -> list[bytes]:
    """Records as payload frames, each at most MAX_FRAME_BYTES; ProtocolError names a record that is too large."""
    frames: list[bytes] = []
    batch: list[Record] = []
    size = 0
    for name, raw in records:
        if len(raw) > limits.MAX_RECORD_BYTES:
            raise ProtocolError(f"record {name!r} has {len(raw)} bytes; at most {limits.MAX_RECORD_BYTES} are allowed")
        need = len(raw) + len(name.encode()) + 16
        if batch and size + need > limits.MAX_FRAME_BYTES - 16:
            frames.append(msgpack.packb(batch, use_bin_type=True))
            batch, size = [], 0
        batch.append((name, raw))
        size += need
    if batch:
        frames.append(msgpack.packb(batch, use_bin_type=True))
    return frames


def unpack_records(frames: Iterable[bytes]) -> list[Record]:
    """The records of payload frames, their sizes and forms checked; what the JSON says is not looked at here."""
    records: list[Record] = []
    for frame in frames:
        items = _unpack(frame, "records")
        if not isinstance(items, list):
            raise ProtocolError("a records frame is not a list")
        for item in items:
            if not isinstance(item, list) or len(item) != 2:  # noqa: PLR2004 -- a pair
                raise ProtocolError("a records frame holds something that is not a pair of name and bytes")
            name, raw = item
            if not isinstance(name, str) or not 0 < len(name) <= limits.MAX_NAME or "\0" in name:
                raise ProtocolError(f"a record's name must be text of 1 to {limits.MAX_NAME} characters")
            if not isinstance(raw, bytes) or len(raw) > limits.MAX_RECORD_BYTES:
                raise ProtocolError(f"record {name!r} is not bytes of at most {limits.MAX_RECORD_BYTES}")
            records.append((name, raw))
    return records


def _check_frames(frames: Sequence[bytes]) -> None:
    if len(frames) > limits.MAX_FRAMES:
        raise ProtocolError(f"{len(frames)} payload frames; at most {limits.MAX_FRAMES} are allowed")
    for frame in frames:
        if len(frame) > limits.MAX_FRAME_BYTES:
            raise ProtocolError(f"a payload frame of {len(frame)} bytes; at most {limits.MAX_FRAME_BYTES} are allowed")


def _refuse_extension(code: int, data: bytes) -> None:
    raise ProtocolError(f"msgpack extension type {code} with {len(data)} bytes")


def _unpack(data: bytes, what: str) -> object:
    size = len(data)
    try:
        value: object = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            use_list=True,
            ext_hook=_refuse_extension,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=min(size, 100_000),
            max_map_len=min(size, 10_000),
            max_ext_len=0,
        )
    except ProtocolError:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError) as error:  # msgpack's own errors are ValueErrors
        raise ProtocolError(f"{what}: not valid msgpack: {error}") from None
    _bound_depth(value, limits.MAX_DEPTH, what)
    return value


def _bound_depth(value: object, left: int, what: str) -> None:
    if not left:
        raise ProtocolError(f"{what}: nested deeper than {limits.MAX_DEPTH}")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        if type(item) in _NESTED:
            _bound_depth(item, left - 1, what)
