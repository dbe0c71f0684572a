"""Import: records of existing output trees, queued in the background; and their run packages' kernels, where an administrator trusts them.

Everything comes by value.  The records become rounds in the journal, durable before the answer, and are taken up one small round at a
time, so that they never keep more than one worker from the ranks.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from npgxd.compile import JobDirectory, JobResult, PlanItem, Pool, apart
from npgxd.daemon.demand.rounds import IMPORT
from npgxd.daemon.refusals import Refused
from npgxd.daemon.slices import Task
from npgxd.errors import NpgxError
from npgxd.oplib.sweeping import Step
from npgxd.store.rounds import RoundEntry
from npgxd.store.waits import at_once
from npgxd.wire.codec import unpack_records
from npgxd.wire.messages import CompileOptions, RankInfo
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from npgxd.compile import Job, JobSpec
    from npgxd.config import Config
    from npgxd.daemon.compiling.dispatch import Dispatcher
    from npgxd.daemon.demand.flights import Need
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.wire.admin import ImportPart, ImportRun
    from npgxd.wire.credentials import PeerCredentials

log = logging.getLogger(__name__)

MAX_RECORDS: Final = 200_000
MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
MAX_PACKAGE_BYTES: Final = 8 * 1024 * 1024 * 1024
MAX_NAMED: Final = 200
ROUND: Final = 64
"""Records in one background round."""
_CHUNK: Final = 50
_WAIT_S: Final = 0.05
_VENDOR_NAME: Final = re.compile(r"static_kernel_[A-Za-z0-9_-]{1,100}\.run")


@dataclass(slots=True)
class _Upload:
    records: list[tuple[str, bytes]] = field(default_factory=list)
    size: int = 0
    packages: dict[str, Path] = field(default_factory=dict)
    package_bytes: int = 0


class Importer:
    """Imports, one at a time."""

    def __init__(self, config: Config, stores: Stores, keyer: Keyer, coordinator: Coordinator, dispatcher: Dispatcher) -> None:
        self._config = config
        self._stores = stores
        self._keyer = keyer
        self._coordinator = coordinator
        self._dispatcher = dispatcher
        self._pool = Pool(1)
        self._uploads: dict[str, _Upload] = {}
        self._task: Task[dict[str, Any]] | None = None
        self._queue: deque[RoundEntry] = deque()
        self._current = ""
        self._now = 0.0
        self._waiting = False

    def take(self, part: ImportPart, frames: tuple[bytes, ...]) -> dict[str, Any]:
        """One piece of an upload; another upload's pieces are dropped, for only one is under way."""
        if part.upload not in self._uploads:
            self._drop_uploads()
        upload = self._uploads.setdefault(part.upload, _Upload())
        size = sum(map(len, frames))
        if part.kind == "records":
            upload.size += size
            upload.records += unpack_records(frames)
            if len(upload.records) > MAX_RECORDS or upload.size > MAX_RECORD_BYTES:
                self._drop_uploads()
                raise Refused("TOO_LARGE", f"more than {MAX_RECORDS} records in one import", hint="import fewer trees at once")
            return {"records": len(upload.records)}
        if not _VENDOR_NAME.fullmatch(part.name):
            raise Refused(
                "BAD_REQUEST", f"{part.name!r} is no run package's name", hint="they are named static_kernel_<digits>.run"
            )
        upload.package_bytes += size
        if upload.package_bytes > MAX_PACKAGE_BYTES:
            self._drop_uploads()
            raise Refused("TOO_LARGE", f"more than {MAX_PACKAGE_BYTES} bytes of packages", hint="import fewer trees at once")
        place = self._stores.state.staging / f"import-{part.upload}"
        place.mkdir(mode=0o700, exist_ok=True)
        name = f"{part.name}#{len(upload.packages) if part.part == 0 else len(upload.packages) - 1}"
        path = upload.packages.setdefault(name, place / f"{len(upload.packages)}.run")
        with path.open("ab") as file:
            file.writelines(frames)
        return {"packages": len(upload.packages)}

    def run(self, asked: ImportRun, peer: PeerCredentials, now: float) -> Task[dict[str, Any]]:
        """Begin with what was uploaded."""
        if self._task is not None:
            raise Refused("BUSY", "an import is under way", hint="wait for it")
        if asked.upload not in self._uploads:
            raise Refused("NOTHING_FOUND", "nothing was uploaded", hint="name a directory with static_kernel_compile_outputs")
        if self._keyer.toolchain is None:
            raise Refused("NO_TOOLCHAIN", self._keyer.problem)
        self._now = now
        self._task = Task(self._import(self._uploads[asked.upload], asked, peer))
        return self._task

    def tick(self, now: float) -> float:
        """Go on with an import, and with the rounds that earlier ones queued; when to come back."""
        self._now = now
        following = self._feed(now)
        if self._task is None:
            return following
        self._waiting = False
        if self._task.run(0.0, at_least_once=True):
            self._task = None
            self._drop_uploads()
            return following
        return now + _WAIT_S if self._waiting else now

    def close(self) -> None:
        """The daemon ends; queued rounds are in the journal."""
        if self._task is not None:
            self._task.stop()
            self._task = None
        self._pool.stop_all("the daemon stops")
        self._drop_uploads()

    # ---- one import --------------------------------------------------------------------------------------------------

    def _import(self, upload: _Upload, asked: ImportRun, peer: PeerCredentials) -> Generator[Step, None, dict[str, Any]]:
        needs: dict[str, Need] = {}
        rejected: list[dict[str, str]] = []
        self._keyer.refresh(self._now)
        for start in range(0, len(upload.records), _CHUNK):
            parsed, refused = self._keyer.parse(upload.records[start : start + _CHUNK])
            needs.update((need.key, need) for need in self._keyer.needs(parsed, CompileOptions(), peer.uid))
            rejected += [{"name": item.name, "reason": item.reason[:300]} for item in refused]
            yield Step("records", start, len(upload.records))
        known = self._present(list(needs))
        before = len(known)
        notes: list[str] = []
        for at, (name, path) in enumerate(upload.packages.items() if asked.trust_toolchain else ()):
            yield Step("packages", at, len(upload.packages))
            yield from self._adopt(name.partition("#")[0], path, [n for key, n in needs.items() if key not in known], notes)
            known = self._present(list(needs))
        missing = [need for key, need in needs.items() if key not in known]
        for start in range(0, len(missing), ROUND):
            self._accept(missing[start : start + ROUND], asked.label, peer)
            yield Step("queueing", start, len(missing))
        log.info(
            "import %s: %s, %d present, %s taken, %d queued, %d rejected",
            asked.label or "(no name)",
            counted(len(upload.records), "record"),
            before,
            counted(len(known) - before, "kernel"),
            len(missing),
            len(rejected),
        )
        return {
            "records": len(upload.records),
            "unique": len(needs),
            "present": before,
            "trusted": len(known) - before,
            "queued": len(missing),
            "packages": len(upload.packages),
            "rejected": len(rejected),
            "named": rejected[:MAX_NAMED],
            "notes": notes[:MAX_NAMED],
        }

    def _present(self, keys: list[str]) -> set[str]:
        return set(self._stores.catalog.kernel_ids(keys))

    def _accept(self, needs: Sequence[Need], label: str, peer: PeerCredentials) -> None:
        """One background round, durable on return."""
        entry = RoundEntry(
            round=secrets.token_hex(16),
            uid=peer.uid,
            gid=peer.gid,
            pid=peer.pid,
            job=IMPORT,
            rank=asdict(RankInfo()),
            graph=f"import {label}"[:200],
            options=asdict(CompileOptions()),
            recompile=False,
            records=tuple((need.record.name, need.record.canonical) for need in needs),
            accepted_at=time.time(),
        )
        self._stores.rounds.accept(entry)
        self._queue.append(entry)

    def _feed(self, now: float) -> float:
        """Take up the next background round when the one before is settled."""
        if not self._queue:
            return float("inf")
        current = self._coordinator.rounds.get(self._current)
        if (current is None or current.result is not None) and not self._dispatcher.draining:
            entry = self._queue.popleft()
            self._current = entry.round
            self._coordinator.resume([entry], now)
        return now + 1.0

    # ---- trusted packages --------------------------------------------------------------------------------------------

    def _adopt(self, name: str, path: Path, needs: Sequence[Need], notes: list[str]) -> Generator[Step, None, None]:
        """Take a package's kernels through a worker; the package's digest, index and kernels are checked as those of a compile."""
        toolchain = self._keyer.toolchain
        if not needs or toolchain is None:
            return
        left = {need.key: need for need in needs}
        items = (PlanItem(key, need.record.op_type, need.record.trace, 1.0) for key, need in left.items())
        for batch in apart(items):
            spec = self._dispatcher.spec_of(toolchain, [left[key] for key in batch.keys], processes=1)
            yield from self._work(replace(spec, package=str(path), package_name=name), name, notes)

    def _work(self, spec: JobSpec, name: str, notes: list[str]) -> Generator[Step, None, None]:
        job: Job = self._pool.start(spec)
        try:
            while not job.ended:
                self._pool.enforce(self._now)
                for event in job.receive():
                    if isinstance(event, JobResult):
                        self._publish(event, name, notes)
                    elif hasattr(event, "reason"):
                        notes.append(f"{name}: {event.reason}")
                self._waiting = True
                yield Step(f"taking kernels from {name}", 0, len(spec.items))
        finally:
            job.close()
            JobDirectory(spec.job_dir).remove()
            self._stores.discard_staged(spec.job_id)

    def _publish(self, result: JobResult, name: str, notes: list[str]) -> None:
        notes += [f"{name}: {note}" for note in result.notes[:3]]
        if result.package is None or not result.kernels:
            reasons = sorted({failed.reason for failed in result.failed})
            notes.append(f"{name}: no kernel taken ({'; '.join(reasons[:2]) or 'none of the records is its'})")
            return
        try:
            at_once(self._stores.publishing_package(result.package))
            ready = [self._stores.number_kernel(kernel) for kernel in result.kernels]
            self._stores.kernels.make_durable(ready)
            published = at_once(self._stores.publishing_kernels(ready))
        except NpgxError as error:
            notes.append(f"{name}: {error}")
            return
        log.info("import: %s taken from %s, as trusted by an administrator", counted(len(published), "kernel"), name)
        self._coordinator.landed([kernel for kernel in published if kernel.key in self._coordinator.flights])

    def _drop_uploads(self) -> None:
        for upload in self._uploads:
            self._stores.state.disk.remove_tree(self._stores.state.staging / f"import-{upload}")
        self._uploads.clear()
