"""A memo's directory: one file for each tree that was looked at, and one for single files.

Promise: what is read is what was written, by this user and by no one else, or nothing; nothing fails when it cannot be read or
written; and the directory stays bounded: what lay in a tree that is no longer there is forgotten, and beyond the bounds what was
used longest ago. A start that finds its trees unchanged reads the first line of a file each, however much is remembered.

A file is a line ``npgxd-memo 2 <sha256 of the JSON> <JSON>`` and what the JSON counts and seals: names, separated by NUL, and for
each name the signature of the file and the sha256 of its bytes.
"""

# Paths are plain strings here, as in the rest of the memo.
# ruff: noqa: PTH103, PTH105, PTH108, PTH116

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from typing import Final, NamedTuple

from npgxd.wire.file_facts import SIGNATURE_BYTES

ENTRY_BYTES: Final = SIGNATURE_BYTES + 32
"""An entry is the signature of a file and the sha256 of its bytes."""
MAX_NAMES: Final = 200_000
"""So many entries one file has, at most."""
MAX_TREES: Final = 256
MAX_BYTES: Final = 128 * 1024 * 1024
"""What all files of trees may have together; and each, to be read."""
USED_NS: Final = 24 * 3600 * 10**9
"""That a tree was used is noted once in so long."""
LEFTOVER_NS: Final = 3600 * 10**9
"""What a process that was killed left behind goes after so long."""

_MAGIC: Final = b"npgxd-memo 2 "
_SINGLE: Final = "files"
_TREE: Final = ".tree"
_LOCK: Final = ".lock"
_MAX_HEADER: Final = 64 * 1024
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Told(NamedTuple):
    """The first line of a tree's file. ``sign`` is empty where only its files are known."""

    root: str
    device: int
    sign: str
    digest: str


class MemoFiles:
    """The files in ``directory``, which is made when something is written."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def told(self, root: str, now: int) -> Told | None:
        """What is remembered of the whole tree ``root``; that it was used at the time ``now`` is noted."""
        path = self._path(_name(root) + _TREE)
        told = _read_header(path, now)
        return told if told is not None and told.root == root else None

    def files_of(self, root: str) -> dict[str, bytes]:
        """The entries of the files in the tree ``root``, by their names within it."""
        header, entries = _read(self._path(_name(root) + _TREE))
        return entries if header is not None and header.root == root else {}

    def single_files(self) -> dict[str, bytes]:
        """The entries of single files by path, the oldest first."""
        return _read(self._path(_SINGLE))[1]

    def keep_tree(self, told: Told, entries: dict[str, bytes]) -> None:
        """Write a tree's file, in place of what it was."""
        self._write(_name(told.root) + _TREE, told, entries)

    def keep_single_files(self, learned: dict[str, bytes]) -> None:
        """Add entries to what others wrote meanwhile, without the files that have gone, and the oldest where they are too many."""
        kept = {path: entry for path, entry in self.single_files().items() if path not in learned and _is_there(path)}
        kept.update(learned)
        self._write(_SINGLE, Told("", 0, "", ""), dict(list(kept.items())[-MAX_NAMES:]))

    def forget(self, now: int) -> None:
        """Remove what can be of no more use, and the trees used longest ago where there are too many."""
        with contextlib.suppress(OSError, ValueError):
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(self._directory)]
            room, names = MAX_BYTES, {name for name, _ in found}
            trees = [(name, facts) for name, facts in found if name.endswith(_TREE)]
            trees.sort(key=lambda tree: tree[1].st_mtime_ns, reverse=True)
            for number, (name, facts) in enumerate(trees):
                room -= facts.st_size
                if number >= MAX_TREES or room < 0 or self._has_gone(name):
                    self._remove(name)
                    self._remove(name.removesuffix(_TREE) + _LOCK)
            for name, facts in found:
                passing = name.startswith(".") or (name.endswith(_LOCK) and name.removesuffix(_LOCK) + _TREE not in names)
                if passing and facts.st_mtime_ns + LEFTOVER_NS < now:
                    self._remove(name)

    def lock_path(self, root: str) -> str:
        """Where whoever digests the tree ``root`` says so; its directory is there, if it can be made."""
        with contextlib.suppress(OSError, ValueError):
            self._make()
        return self._path(_name(root) + _LOCK)

    def _make(self) -> None:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _has_gone(self, name: str) -> bool:
        told = _read_header(self._path(name), None)
        return told is not None and _has_gone(told.root, told.device)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def _write(self, name: str, told: Told, entries: dict[str, bytes]) -> None:
        """By one rename. Nothing is synced: a file that a crash left half written is known by its seal."""
        names = list(entries)[:MAX_NAMES]
        blob = "\0".join(names).encode(errors="surrogateescape")
        body = b"".join([blob, *[entries[at] for at in names]])
        header = {**told._asdict(), "count": len(names), "names": len(blob), "seal": hashlib.sha256(body).hexdigest()}
        line = json.dumps(header, separators=(",", ":")).encode()
        temporary = self._path(f".{name}.{os.urandom(8).hex()}")
        with contextlib.suppress(OSError, ValueError):  # without it, the next process computes again
            self._make()
            fd = os.open(temporary, _CREATE, 0o600)
            try:
                with os.fdopen(fd, "wb") as opened:
                    opened.write(_MAGIC + hashlib.sha256(line).hexdigest().encode() + b" " + line + b"\n" + body)
                os.replace(temporary, self._path(name))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise


def forget_former(directory: str) -> None:
    """Remove the two files beside ``directory`` that the first form of this memo was kept in; nothing reads them any more.

    Only plain files of this user; what is anything else, or cannot be removed, stays.
    """
    for path in (f"{directory}.json", f"{directory}.json.files"):
        with contextlib.suppress(OSError, ValueError):
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid():
                os.unlink(path)


def _name(root: str) -> str:
    return hashlib.sha256(root.encode(errors="surrogateescape")).hexdigest()[:32]


def _is_there(path: str) -> bool:
    """Whether the file is there, as far as can be told."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _has_gone(root: str, device: int) -> bool:
    """Whether a tree that lay on ``device`` was removed.

    A home directory can be seen from several containers, and a path of one leads nowhere in the others. So what is above the
    tree must be on the device that the tree was on: then this process would see it, if it were there.
    """
    if not root.startswith("/") or _is_there(root):
        return False
    above = root
    while above:
        above = above.rpartition("/")[0]
        try:
            return os.stat(above or "/").st_dev == device
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return False
    return False


def _open(path: str) -> int | None:
    """A descriptor of a file that this user alone can write and read; None if there is none such."""
    try:
        fd = os.open(path, _READ)
    except (OSError, ValueError):
        return None
    facts = os.fstat(fd)
    if (
        stat.S_ISREG(facts.st_mode)
        and facts.st_uid == os.geteuid()
        and not facts.st_mode & 0o077
        and facts.st_size <= MAX_BYTES + _MAX_HEADER
    ):
        return fd
    os.close(fd)
    return None


def _read_header(path: str, now: int | None) -> Told | None:
    fd = _open(path)
    if fd is None:
        return None
    try:
        header = _parse(os.read(fd, _MAX_HEADER).partition(b"\n")[0])
        if header is not None and now is not None and os.fstat(fd).st_mtime_ns + USED_NS < now:
            os.utime(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    return header[0] if header is not None else None


def _read(path: str) -> tuple[Told | None, dict[str, bytes]]:
    """All of a file; nothing if it is absent, foreign, damaged or of another form."""
    fd = _open(path)
    if fd is None:
        return None, {}
    try:
        with os.fdopen(fd, "rb") as opened:
            header = _parse(opened.readline(_MAX_HEADER).rstrip(b"\n"))
            body = opened.read(MAX_BYTES) if header is not None else b""
    except OSError:
        return None, {}
    if header is None:
        return None, {}
    told, count, length, seal = header
    if len(body) != length + count * ENTRY_BYTES or hashlib.sha256(body).hexdigest() != seal or not count:
        return told, {}
    names = body[:length].decode(errors="surrogateescape").split("\0")
    starts = range(length, len(body), ENTRY_BYTES)
    return told, {name: body[at : at + ENTRY_BYTES] for name, at in zip(names, starts, strict=True)}


def _parse(line: bytes) -> tuple[Told, int, int, str] | None:
    digest, _, text = line.removeprefix(_MAGIC).partition(b" ")
    if not line.startswith(_MAGIC) or hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    header = json.loads(text)  # its digest is right, so it is what one of us wrote
    told = Told(header["root"], header["device"], header["sign"], header["digest"])
    return told, header["count"], header["names"], header["seal"]
