"""``static_kernel_cache/CANN-<version>_<device>.json``: which run packages served which set of records.

The documented file, kept for people and tools that look there.  The daemon decides by kernels, not by this map, so a lost or
stale entry costs nothing.  Written whole by rename, under the documented lock file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from npugraph_ex.outputs import Tree
    from npugraph_ex.recording.recorded import RecordFile

FOLDER: Final = "static_kernel_cache"
_LOCK_ATTEMPTS: Final = 100
_LOCK_PAUSE_S: Final = 0.02


def digest_of(records: Iterable[RecordFile]) -> str:
    """The identity of a set of records: their contents, in any order, under any names."""
    return hashlib.sha256("".join(sorted({hashlib.sha256(raw).hexdigest() for _, raw in records})).encode()).hexdigest()


def remember(tree: Tree, *, cann_version: str, device: str, records: Iterable[RecordFile], packages: Iterable[Path]) -> None:
    """Enter ``packages`` for ``records``; entries whose packages are gone leave the map. OSError if it cannot be written."""
    folder = tree.root / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"CANN-{_plain(cann_version)}_{_plain(device)}.json"
    with _locked(path.with_suffix(".lock")):
        known = {key: names for key, names in _read(path).items() if all((tree.root / name).exists() for name in names)}
        known[digest_of(records)] = [str(package.relative_to(tree.root)) for package in packages]
        temporary = folder / f".{path.name}.{os.getpid()}"
        temporary.write_text(json.dumps(known, indent=2, sort_keys=True))
        temporary.replace(path)


def _read(path: Path) -> dict[str, list[str]]:
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # not there, or damaged: the map is only a record of what was, and starts again
    if not isinstance(known, dict):
        return {}
    return {
        key: names for key, names in known.items() if isinstance(names, list) and all(isinstance(name, str) for name in names)
    }


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == _LOCK_ATTEMPTS - 1:
                    raise
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _plain(word: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in word) or "unknown"
