"""The documented ``static_kernel_compile_outputs`` of one round, as the bundled flow leaves them. No failure here reaches the model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.client import read_dump
from npgxd.client.notice import warn_once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.wire.codec import Record
    from npgxd.wire.messages import Rejected


def is_dumped(directory: Path) -> bool:
    """Whether this process's dump wrote anything there: it tells of every operator in one of its folders at least."""
    return any((directory / f"{os.getpid()}{suffix}").is_dir() for suffix in ("", "_debug", "_opcompile"))


def read_records(directory: Path) -> tuple[list[Record], list[Rejected]]:
    """What the dump left for static compilation, and what cannot be read of it; nothing where the graph launched nothing."""
    folder = directory / f"{os.getpid()}_opcompile"
    return read_dump(folder) if folder.is_dir() else ([], [])


def write_selected(directory: Path, records: Iterable[Record]) -> None:
    """What is submitted, beside what was dumped."""
    folder = directory / f"{os.getpid()}_opcompile_selected"
    try:
        folder.mkdir(mode=0o700)
        for name, raw in records:
            (folder / name).write_bytes(raw)
    except OSError as error:
        warn_once("bridge outputs", f"{folder} could not be written: {error}")


def keep_packages(directory: Path, packages: Iterable[tuple[str, Path]]) -> None:
    """The run packages that served the round, linked where the file system allows it, else copied."""
    for name, source in packages:
        target = directory / Path(name).name
        try:
            if not target.exists():
                _link_or_copy(source, target)
        except OSError as error:
            warn_once("bridge outputs", f"{target} could not be written: {error}")


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one that lets nobody link what is not theirs
        shutil.copyfile(source, target, follow_symlinks=False)
