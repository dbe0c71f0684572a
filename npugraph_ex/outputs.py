"""The documented ``static_kernel_compile_outputs`` tree, for whoever looks for it there.

Promise: the tree has the documented names; only local rank 0's holds run packages and gathered records; and no failure to write
any of it reaches the model: it is said once, and the round goes on.  Nothing is ever read back from here to decide anything.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npugraph_ex import _notices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from npugraph_ex.recording.recorded import Recorded, RecordFile

ROOT: Final = "static_kernel_compile_outputs"
UNDESCRIBED: Final = "undescribed_operators.json"


@dataclass(frozen=True, slots=True)
class Tree:
    """One round's folder, ``ts<time>_pid<pid>_outputs``, under ``root``."""

    root: Path
    directory: Path
    pid: int
    beside_cache: bool

    def write_dump(self, recorded: Recorded) -> None:
        """The dump's three folders, unless the device has written them itself, and the names of what is in none of them."""
        if not recorded.written:
            for suffix, files in (("", recorded.target), ("_debug", recorded.debug), ("_opcompile", recorded.compilable)):
                self._folder(suffix, files)
        if recorded.undescribed:
            debug = self.directory / f"{self.pid}_debug"
            debug.mkdir(mode=0o700, exist_ok=True)
            told = [{"operator": name, "times": times, "reason": why} for name, times, why in recorded.undescribed]
            _write(debug / UNDESCRIBED, json.dumps(told, indent=2).encode())

    def write_selected(self, files: Iterable[RecordFile]) -> None:
        """What was submitted. Beside a compile cache there is no such folder: there it is ``_opcompile``, as documented."""
        if not self.beside_cache:
            self._folder("_opcompile_selected", files)

    def write_gathered(self, files: Iterable[RecordFile]) -> None:
        """The records of all ranks of the group; for local rank 0 of several."""
        self._folder("_opcompile_gathered", files)

    def keep_packages(self, packages: Iterable[tuple[str, Path]]) -> list[Path]:
        """The run packages that served the round, linked where the file system allows it, else copied; for local rank 0."""
        kept = []
        for name, source in packages:
            target = self.directory / Path(name).name
            if not target.exists():
                _link_or_copy(source, target)
            kept.append(target)
        return kept

    def discard_if_empty(self) -> None:
        """Take the folder away again if nothing came of the round."""
        with suppress(OSError):
            self.directory.rmdir()

    def _folder(self, suffix: str, files: Iterable[RecordFile]) -> None:
        folder = self.directory / f"{self.pid}{suffix}"
        folder.mkdir(mode=0o700)
        for name, raw in _distinct(files):
            _write(folder / name, raw)


def open_tree(build_dir: Path | None = None, *, now: Callable[[], datetime] = datetime.now) -> Tree | None:
    """A new folder for one round: in ``build_dir``, else beside the running script, else in the working directory.

    None where none of them can be written, which is said once.
    """
    for base in _bases(build_dir):
        for _ in range(3):  # two rounds of one microsecond
            try:
                return _make(base, beside_cache=build_dir is not None, stamp=now().strftime("%Y%m%d%H%M%S%f"))
            except FileExistsError:
                continue
            except OSError as error:
                _notices.once(("outputs", base), logging.WARNING, f"{ROOT} cannot be written in {base}: {error.strerror}")
                break
    _notices.once(
        "no outputs",
        logging.WARNING,
        f"{ROOT} is not written; static kernels are not affected. To have it, make the script's or the working directory writable",
    )
    return None


def guarded(what: str, write: Callable[[], None]) -> None:
    """Do ``write``; if that fails, say so once."""
    try:
        write()
    except OSError as error:
        _notices.once(("outputs", what), logging.WARNING, f"{what} could not be written to {ROOT}: {error}")


def _bases(build_dir: Path | None) -> Sequence[Path]:
    if build_dir is not None:
        return (build_dir,)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script and Path(script).exists():
        return (Path(script).absolute().parent, Path.cwd())
    _notices.once("no script", logging.INFO, f"there is no running script; {ROOT} is in the working directory, {Path.cwd()}")
    return (Path.cwd(),)


def _make(base: Path, *, beside_cache: bool, stamp: str) -> Tree:
    root = base / ROOT
    try:
        root.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root)) from error
    pid = os.getpid()
    directory = root / f"ts{stamp}_pid{pid}_outputs"
    directory.mkdir(mode=0o700)
    return Tree(root, directory, pid, beside_cache)


def _distinct(files: Iterable[RecordFile]) -> Iterable[RecordFile]:
    """Names made distinct and plain: two ranks, and two dumps, reuse names."""
    used: set[str] = set()
    for name, raw in files:
        plain = Path(name).name
        plain = plain if plain.endswith(".json") else "record.json"
        stem, number = plain.removesuffix(".json"), 0
        while plain in used:
            number += 1
            plain = f"{stem}_{number}.json"
        used.add(plain)
        yield plain, raw


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or a system that lets nobody link what is not theirs
        shutil.copyfile(source, target, follow_symlinks=False)
