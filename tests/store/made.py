"""Kernels made up for tests: real files with the facts that a compiler would have given them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from npgxd.store.artifacts import ArtifactStore
from npgxd.store.catalog import Catalog
from npgxd.store.disk import DISK, Disk
from npgxd.store.index import IndexEntry
from npgxd.store.kernels import KernelStore, scan
from npgxd.store.manifest import KernelManifest, Making, ManifestEntry, Origin
from npgxd.store.packages import PackageStore
from npgxd.store.rounds import RoundEntry, RoundJournal
from npgxd.store.staging import MadeFile, stage_kernel
from npgxd.store.state import StateDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FAMILY = "ascend910b"
SOC = "Ascend910B3"


def names(path: Path) -> list[str]:
    """What is in a directory."""
    return sorted(entry.name for entry in path.iterdir())


@contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """This process may open ``left`` files more, and then none, as the system has it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.dup(0) for _ in range(left + 1)]
    for descriptor in spare:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def refused(part: str, number: int = errno.EMFILE) -> Iterator[None]:
    """Each opening of a file with ``part`` in its path is refused for this reason."""
    opened = os.open

    def refuse(path: str | os.PathLike[str], *rest: int, **more: int | None) -> int:
        if part in os.fspath(path):
            raise OSError(number, os.strerror(number))
        return opened(path, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def origin(name: str, **facts: str) -> Origin:
    """Where a kernel for the record ``name`` comes from; its key depends on the name alone."""
    record = json.dumps({"op_type": "MatMulV2", "name": name})
    told = {
        "op_type": "MatMulV2",
        "fingerprint": digest("toolchain"),
        "soc": SOC,
        "family": FAMILY,
        "cann_version": "9.1.0",
        **facts,
    }
    return Origin(key=digest(name), record=record, record_digest=digest(record), options=(("stream-fusion", "1"),), **told)


def making(made_at: float = 1000.0) -> Making:
    return Making(package=digest("package"), cost_s=0.5, made_at=made_at, package_name="static_kernel_20260101.run")


def files(
    scratch: Path, name: str, content: bytes, *, keys: Sequence[str] = (), suffixes: Sequence[str] = ("d0",)
) -> list[MadeFile]:
    """What a compiler left for one record, in a directory of its own below ``scratch``."""
    scratch.mkdir(parents=True, exist_ok=True)
    made: list[MadeFile] = []
    for suffix in suffixes:
        stem = f"static_kernel_MatMulV2_{digest(name)[:12]}_{suffix}"
        bytes_ = content + suffix.encode()
        described = {"sha256": hashlib.sha256(bytes_).hexdigest(), "platformInfo": {"vector_core_cnt": 40}, "kernelName": stem}
        (scratch / f"{stem}.o").write_bytes(bytes_)
        (scratch / f"{stem}.json").write_text(json.dumps(described))
        facts = IndexEntry(tuple(keys) or (f"MatMulV2/{suffix}/{name}",), 1, 20, stem, (32,), single=len(keys) <= 1)
        made.append(MadeFile(ManifestEntry(stem, facts), scratch / f"{stem}.o", scratch / f"{stem}.json", scratch))
    return made


@dataclass(slots=True)
class House:
    """An opened state directory with its stores, and a scratch directory where a compiler would have worked."""

    path: Path
    scratch: Path
    disk: Disk = DISK
    state: StateDirectory = field(init=False)
    catalog: Catalog = field(init=False)
    kernels: KernelStore = field(init=False)
    packages: PackageStore = field(init=False)
    rounds: RoundJournal = field(init=False)
    artifacts: ArtifactStore = field(init=False)
    staged: int = 0

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> House:
        self.state = StateDirectory.open(self.path, disk=self.disk)
        self.catalog = Catalog(self.state.catalog, rebuild=lambda: scan(self.state), disk=self.disk)
        self.kernels = KernelStore(self.state, self.catalog)
        self.packages = PackageStore(self.state, self.catalog)
        self.rounds = RoundJournal(self.state)
        self.artifacts = ArtifactStore(self.state, self.catalog)
        return self

    def close(self) -> None:
        self.catalog.close()
        self.state.close()

    def reopen(self) -> House:
        self.close()
        return self.open()

    def stage(
        self, name: str, content: bytes = b"object", *, keys: Sequence[str] = (), suffixes: Sequence[str] = ("d0",)
    ) -> Path:
        """A kernel as a worker stages it."""
        self.staged += 1
        target = self.state.staging / f"job-{self.staged}-{digest(name)[:8]}"
        made = files(self.scratch / f"job-{self.staged}", name, content, keys=keys, suffixes=suffixes)
        stage_kernel(target, origin(name), making(), made)
        return target

    def publish(
        self, name: str, content: bytes = b"object", *, keys: Sequence[str] = (), suffixes: Sequence[str] = ("d0",)
    ) -> KernelManifest:
        return self.kernels.publish([self.stage(name, content, keys=keys, suffixes=suffixes)])[0]


def round_entry(number: int = 1, **facts: object) -> RoundEntry:
    told: dict[str, object] = {
        "round": f"{number:032x}",
        "uid": 1000,
        "gid": 1000,
        "pid": 4242,
        "job": "job",
        "rank": {"rank": 0, "local_rank": 0},
        "graph": "decode",
        "options": {},
        "recompile": False,
        "records": (("MatMulV2_1.json", b'{"op_type":"MatMulV2"}'), ("Add_2.json", b"{}")),
        "accepted_at": 1000.0 + number,
        **facts,
    }
    return RoundEntry(**told)  # type: ignore[arg-type]
