"""Reading the records that CANN dumped: plain files of one directory, within bounds, the bad ones named and left out.

What a record's JSON says is the daemon's to judge; here only what cannot be a record at all is found.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.wire import limits
from npgxd.wire.messages import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.wire.codec import Record

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_dump(path: Path | str) -> tuple[list[Record], list[Rejected]]:
    """The records in a directory, sorted by name, as (file name, raw bytes), and what was skipped with the reason.

    Never raises for what it finds: a link, a pipe, a directory, a file that is too large, unreadable or half written is skipped.
    """
    records: list[Record] = []
    rejected: list[Rejected] = []
    directory = Path(path)
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return [], [Rejected(_label(directory.name), f"cannot read the directory: {error.strerror}")]
    try:
        total = 0
        for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 -- of the open directory, whatever its path means now
            raw, problem = _read(descriptor, name)
            total += len(raw)
            if not problem and (len(records) >= limits.MAX_ROUND_RECORDS or total > limits.MAX_ROUND_BYTES):
                problem = f"more than {limits.MAX_ROUND_RECORDS} records or {limits.MAX_ROUND_BYTES} bytes in one directory"
            if problem:
                rejected.append(Rejected(_label(name), problem))
            else:
                records.append((name, raw))
    finally:
        os.close(descriptor)
    return records, rejected


def usable(records: Iterable[Record]) -> tuple[list[Record], list[Rejected]]:
    """The records that can be sent, and the others with the reason; for records that did not come from ``read_dump``."""
    kept: list[Record] = []
    rejected: list[Rejected] = []
    for name, raw in records:
        problem = _name_problem(name) or _size_problem(len(raw))
        if problem:
            rejected.append(Rejected(_label(name), problem))
        else:
            kept.append((name, raw))
    return kept, rejected


def _read(directory: int, name: str) -> tuple[bytes, str]:
    problem = _name_problem(name)
    if problem:
        return b"", problem
    try:
        descriptor = os.open(name, _FILE, dir_fd=directory)
    except OSError as error:
        return b"", "it is a link" if _is_link(directory, name) else f"cannot be opened: {error.strerror}"
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return b"", "it is not a plain file"
        problem = _size_problem(found.st_size)
        if problem:
            return b"", problem
        with open(descriptor, "rb", closefd=False) as file:
            raw = file.read(limits.MAX_RECORD_BYTES + 1)  # it may have grown meanwhile
    except OSError as error:
        return b"", f"cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)
    return raw, _size_problem(len(raw)) or _form_problem(raw)


def _name_problem(name: str) -> str:
    if not 0 < len(name) <= limits.MAX_NAME or "\0" in name:
        return f"its name has not 1 to {limits.MAX_NAME} characters"
    if name != _label(name):
        return "its name is not valid Unicode"
    return ""


def _size_problem(size: int) -> str:
    if not size:
        return "it is empty"
    return f"it has {size} bytes; at most {limits.MAX_RECORD_BYTES} are allowed" if size > limits.MAX_RECORD_BYTES else ""


def _form_problem(raw: bytes) -> str:
    text = raw.strip(b" \t\r\n\0")
    if text[:1] + text[-1:] in {b"{}", b"[]"}:
        return ""
    return "it does not begin and end as a JSON object does (half written?)"


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _label(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "")[: limits.MAX_NAME]
