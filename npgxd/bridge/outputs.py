"""The documented ``static_kernel_compile_outputs`` of one round, as the bundled flow leaves them. No failure here reaches the model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from npgxd.client import rank_info, read_dump
from npgxd.client.notice import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npgxd.client import Outcome
    from npgxd.wire.codec import Record
    from npgxd.wire.messages import Rejected

OUTPUTS: Final = "static_kernel_compile_outputs"


def is_dumped(directory: Path) -> bool:
    """Whether this process's dump wrote anything there: it tells of every operator in one of its folders at least."""
    return any((directory / f"{os.getpid()}{suffix}").is_dir() for suffix in ("", "_debug", "_opcompile"))


def read_records(directory: Path) -> tuple[list[Record], list[Rejected]]:
    """What the dump left for static compilation, and what cannot be read of it; nothing where the graph launched nothing."""
    folder = directory / f"{os.getpid()}_opcompile"
    return read_dump(folder) if folder.is_dir() else ([], [])


def write_selected(directory: Path, records: Iterable[Record], earlier: set[bytes]) -> None:
    """What is submitted and was not for an earlier graph of this process, each record once: the bundled choice. ``earlier`` grows."""
    folder = directory / f"{os.getpid()}_opcompile_selected"
    try:
        folder.mkdir(mode=0o700)
        for name, raw in records:
            digest = hashlib.sha256(raw).digest()
            if digest not in earlier:
                (folder / name).write_bytes(raw)
                earlier.add(digest)
    except OSError as error:
        warn_once("bridge outputs", f"{folder} could not be written: {error}")


@dataclass(frozen=True, slots=True)
class Kept:
    """What only one tree of a job on a node holds: that of the rank that speaks for it. ``module`` is the bundled one."""

    module: Any
    directory: Path
    folder: str
    """Which of this process's folders holds what was asked for."""
    config: Any
    is_mapped: bool
    """Whether the round is entered in ``static_kernel_cache``, which ``disable_static_kernel_compile_cache`` forbids."""

    def write(self, outcome: Outcome, gathered: Callable[[str], list[Record]]) -> None:
        """The gathered records of several ranks, the run packages, and the map from the one to the other, by the bundled functions."""
        try:
            folder = self.directory / f"{os.getpid()}{self.folder}"
            several = (rank_info(os.environ).local_world_size or 1) > 1 or outcome.gathered > outcome.unique
            if outcome.round and several and (records := gathered(outcome.round)):
                folder = _write_gathered(self.directory, records)
            keep_packages(self.directory, outcome.packages)
            if outcome.installed and len(outcome.packages) == 1:
                self._enter(folder, self.directory / Path(outcome.packages[0][0]).name)
        except Exception as error:  # noqa: BLE001 -- only a record of what was
            warn_once("bridge outputs", f"{self.directory} is not complete: {type(error).__name__}: {error}")

    def _enter(self, folder: Path, package: Path) -> None:
        """Map the records in ``folder`` to the one package that has all of their kernels, and none that has been replaced since.

        The bundled flow runs what it finds there, and fails the model if it cannot: so that is a copy that its user may run.
        """
        if not self.is_mapped or self.directory.parent.name != OUTPUTS or not hasattr(self.module, "_update_static_kernel_cache"):
            return  # torchair's copy has no map
        key = self.module._get_static_kernel_cache_key(folder, self.config)  # noqa: SLF001 -- so that the bundled flow finds it
        if key is None:
            return
        path = self.module._get_cache_path(self.directory)  # noqa: SLF001 -- same
        known = self.module._query_static_kernel_cache(path, key)  # noqa: SLF001 -- same
        if known is not None and os.access(known / package.name, os.X_OK):
            return
        runnable = package.with_suffix(".copy")
        shutil.copyfile(package, runnable)
        runnable.chmod(0o700)
        runnable.replace(package)
        self.module._update_static_kernel_cache(path, key, self.directory)  # noqa: SLF001 -- same


def keep_packages(directory: Path, packages: Iterable[tuple[str, Path]]) -> None:
    """The run packages that served the round, linked where the file system allows it, else copied."""
    for name, source in packages:
        target = directory / Path(name).name
        if not target.exists():
            _link_or_copy(source, target)


def _write_gathered(directory: Path, records: Iterable[Record]) -> Path:
    """The records of all ranks, under names made distinct: two ranks reuse names."""
    folder = directory / f"{os.getpid()}_opcompile_gathered"
    folder.mkdir(mode=0o700)
    for name, raw in records:
        stem, number, path = Path(name).stem, 0, folder / Path(name).name
        while path.exists():
            number += 1
            path = folder / f"{stem}_{number}.json"
        path.write_text(json.dumps(json.loads(raw), indent=2, sort_keys=True))  # as CANN dumps them
    return folder


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one that lets nobody link what is not theirs
        shutil.copyfile(source, target, follow_symlinks=False)
