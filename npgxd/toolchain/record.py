"""The record model: one operator call with concrete dtypes, formats, shapes and attributes, and the bytes that identify it.

Identity is the content, never the file name: CANN counts its dump files, and two ranks reuse names. The canonical form is
compact JSON in UTF-8 with sorted keys; it is itself a valid record, and what op_compiler is given.

**In it**, because it can decide a kernel's bytes: op type, all tensors with their order, dtypes, formats, shapes, strides and
offsets; ``const_data`` (another value is another kernel); attributes; ``impl_mode``; ``deterministic`` and its level;
``tune_mode``; ``platform_info`` (core limits); ``extra_params``; and every key that this version does not know.
**Not in it**, because it cannot: the file's name, the order of keys, white space and the spelling of numbers and escapes, and
``bin_type`` and ``bin_info``, which say where a kernel was found when the debug folder was written.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.errors import RecordError
from npgxd.toolchain._schema import UnusableError, compact, normalise, read_json
from npgxd.toolchain.trace import coarse_trace, trace_of_record, trace_of_support_info
from npgxd.wire import limits
from npgxd.wire.messages import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Record", "RecordParser", "coarse_trace", "parse_record", "parse_records", "trace_of_support_info"]

_HINT: Final = "the other records of the round are used; the operator of this one runs with a dynamic kernel"
_MEMO_RECORDS: Final = 8192
_MEMO_BYTES: Final = 24 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One operator call. ``name`` is a label, ``digest`` is sha256 of ``canonical``; for ``trace`` see the module so called."""

    name: str
    op_type: str
    canonical: bytes
    digest: str
    trace: str


def parse_record(name: str, raw: bytes) -> Record:
    """The record in ``raw``; RecordError names the file and the reason, and nothing else is ever raised."""
    if len(raw) > limits.MAX_RECORD_BYTES:
        raise _refused(name, f"{len(raw)} bytes; at most {limits.MAX_RECORD_BYTES} are allowed")
    try:
        fields = normalise(read_json(raw))
        canonical = compact(fields)
        trace = trace_of_record(fields)
    except UnusableError as error:
        raise _refused(name, str(error)) from None
    return Record(name, fields["op_type"], canonical, hashlib.sha256(canonical).hexdigest(), trace)


def parse_records(items: Iterable[tuple[str, bytes]]) -> tuple[list[Record], list[Rejected]]:
    """All records of a round, in order; a bad one is named with its reason and the rest goes on."""
    return RecordParser().parse(items)


class RecordParser:
    """Parses records, and remembers by their raw bytes those that were seen before, within bounds on number and memory."""

    def __init__(self, *, max_records: int = _MEMO_RECORDS, max_bytes: int = _MEMO_BYTES) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._seen: OrderedDict[bytes, Record] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._seen)

    def record(self, name: str, raw: bytes) -> Record:
        """As ``parse_record``."""
        key = hashlib.sha256(raw).digest()
        known = self._seen.get(key)
        if known is not None:
            self._seen.move_to_end(key)
            return Record(name, known.op_type, known.canonical, known.digest, known.trace)
        made = parse_record(name, raw)
        self._remember(key, made)
        return made

    def parse(self, items: Iterable[tuple[str, bytes]]) -> tuple[list[Record], list[Rejected]]:
        """As ``parse_records``."""
        records: list[Record] = []
        rejected: list[Rejected] = []
        for name, raw in items:
            try:
                records.append(self.record(name, raw))
            except RecordError as error:
                reason = str(error.data["reason"])[: limits.MAX_TEXT]
                rejected.append(Rejected(name=name[: limits.MAX_NAME], reason=reason))
        return records, rejected

    def _remember(self, key: bytes, record: Record) -> None:
        self._seen[key] = record
        self._bytes += _weight(record)
        while self._seen and (len(self._seen) > self._max_records or self._bytes > self._max_bytes):
            _, oldest = self._seen.popitem(last=False)
            self._bytes -= _weight(oldest)


def _weight(record: Record) -> int:
    return len(record.canonical) + len(record.trace) + 512


def _refused(name: str, reason: str) -> RecordError:
    return RecordError(f"record {name!r}: {reason}", hint=_HINT, name=name, reason=reason)
