"""Workers that are only told to have worked: the dispatcher's pool without processes, for tests that play many histories."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING

from npgxd.compile import JobResult, MadeKernel, MadePackage
from npgxd.store.disk import Disk
from npgxd.store.index import IndexEntry
from npgxd.store.manifest import Making, ManifestEntry, Origin
from npgxd.store.staging import MadeFile, stage_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from npgxd.compile import Event, JobItem, JobSpec, KeyFailed


class QuickDisk(Disk):
    """Nothing here has to survive a power loss."""

    def fsync_file(self, path: Path) -> None:
        """Not waited for."""

    def fsync_directory(self, path: Path) -> None:
        """Not waited for."""

    def fsync_tree(self, root: Path) -> None:
        """Not waited for."""


class FakeJob:
    """A job whose end is decided by the test."""

    def __init__(self, spec: JobSpec, number: int) -> None:
        self.spec = spec
        self.pid = number
        self.ended = False
        self._number = number
        self._events: list[Event] = []
        self.unstuck: list[str] = []

    def fileno(self) -> int:
        return self._number

    def tell(self, *events: Event, ended: bool = True) -> None:
        self._events += events
        self.ended = ended

    def receive(self) -> list[Event]:
        told, self._events = self._events, []
        return told

    def cancel(self, reason: str = "") -> None:
        """It ends when the test says so."""

    def unstick(self, reason: str) -> None:
        """It goes on, or ends, when the test says so."""
        self.unstuck.append(reason)

    def close(self) -> None:
        """There is nothing to give back."""


class FakePool:
    """As ``npgxd.compile.Pool``; ``jobs`` are those that run."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1_000_000)
        self.limit = 1000
        self.jobs: dict[str, FakeJob] = {}

    @property
    def free(self) -> int:
        """There is always a worker: the dispatcher's own bounds count."""
        return 1

    def start(self, spec: JobSpec) -> FakeJob:
        job = self.jobs[spec.job_id] = FakeJob(spec, next(self._numbers))
        return job

    def enforce(self, now: float) -> None:
        """Nobody is late."""

    def next_check(self) -> float | None:
        return None

    def stop_all(self, _reason: str) -> list[tuple[FakeJob, list[Event]]]:
        ended, self.jobs = self.jobs, {}
        return [(job, []) for job in ended.values()]

    def end(self, name: str, made: Iterable[str], failed: Iterable[KeyFailed]) -> FakeJob:
        """A job ends with kernels for the keys ``made``, and the others failed."""
        job = self.jobs.pop(name)
        wanted = set(made)
        kernels = tuple(_stage(job.spec, item) for item in job.spec.items if item.key in wanted)
        package = None
        if kernels:
            content = name.encode()
            place = job.spec.staging_dir / name / "package.run"
            place.write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            package = MadePackage(digest, f"static_kernel_{name}.run", f"{name}/package.run")
        job.tell(JobResult(package, kernels, tuple(failed), 1.0))
        return job


def _stage(spec: JobSpec, item: JobItem) -> MadeKernel:
    place = spec.staging_dir / spec.job_id
    scratch = place / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    stem = f"static_kernel_{item.key[:16]}"
    content = item.key.encode()
    (scratch / f"{stem}.o").write_bytes(content)
    (scratch / f"{stem}.json").write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest(), "kernelName": stem}))
    entry = ManifestEntry(stem, IndexEntry((f"{item.op_type}/{item.key[:16]}",), 1, 20, stem, (32,)))
    origin = Origin(
        item.key,
        item.op_type,
        item.canonical.decode(),
        item.record_digest,
        item.fingerprint,
        spec.toolchain.soc,
        spec.toolchain.family,
        spec.toolchain.cann_version,
    )
    stage_kernel(
        place / item.key,
        origin,
        Making(package="0" * 64, cost_s=1.0, made_at=0.0),
        [MadeFile(entry, scratch / f"{stem}.o", scratch / f"{stem}.json", scratch)],
        durable=False,
    )
    return MadeKernel(item.key, f"{spec.job_id}/{item.key}", 1.0)
