"""One compile job as data: what a worker is asked to do, and what it tells. It travels as msgpack of plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgpack

from npgxd.compile.costs import RunSeen
from npgxd.compile.narrowing import Seen
from npgxd.compile.priority import NICE
from npgxd.toolchain.flags import CompilerFlags
from npgxd.wire.printable import one_line
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_REASON = 1000
"""Characters of a reason or a note: they quote what compilers and packages chose."""
MAX_NOTES = 20


@dataclass(frozen=True, slots=True)
class JobItem:
    """One kernel to compile. ``canonical`` is the record's canonical JSON, ``trace`` what a kernel's own json can tell of it."""

    key: str
    record_digest: str
    op_type: str
    trace: str
    canonical: bytes
    fingerprint: str


@dataclass(frozen=True, slots=True)
class CompilerFacts:
    """What a worker needs to know of the toolchain; ``environment`` is the toolchain's, and is filtered once more."""

    op_compiler: str
    soc: str
    family: str
    cann_version: str
    environment: dict[str, str]
    install_path: bool
    """Whether this version's run packages take ``--install-path`` (CANN >= 9.1.0)."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One op_compiler run. No two items have one trace (``plan`` sees to that)."""

    job_id: str
    items: tuple[JobItem, ...]
    toolchain: CompilerFacts
    flags: CompilerFlags
    job_dir: Path
    staging_dir: Path
    jobs: int = 16
    deadline_s: float = 3600.0
    super_kernel: tuple[tuple[str, str], ...] = ()
    nice: int = NICE
    grace_s: float = 2.0
    log_bytes: int = 1024 * 1024
    package: str = ""
    """A run package that is there already and trusted: its kernels are taken, and nothing is compiled."""
    package_name: str = ""

    def pack(self) -> bytes:
        """As bytes, for :meth:`unpack`."""
        return _pack(
            {
                "job_id": self.job_id,
                "items": [[i.key, i.record_digest, i.op_type, i.trace, i.canonical, i.fingerprint] for i in self.items],
                "toolchain": [
                    self.toolchain.op_compiler,
                    self.toolchain.soc,
                    self.toolchain.family,
                    self.toolchain.cann_version,
                    self.toolchain.environment,
                    self.toolchain.install_path,
                ],
                "follow": self.flags.follow_op_params_jit,
                "job_dir": str(self.job_dir),
                "staging_dir": str(self.staging_dir),
                "super_kernel": [list(pair) for pair in self.super_kernel],
                **{name: getattr(self, name) for name in _PLAIN},
            }
        )

    @classmethod
    def unpack(cls, raw: bytes) -> JobSpec:
        """The spec that ``pack`` gave these bytes for."""
        facts = _unpack(raw)
        return cls(
            job_id=facts["job_id"],
            items=tuple(JobItem(*item) for item in facts["items"]),
            toolchain=CompilerFacts(*facts["toolchain"]),
            flags=CompilerFlags(facts["follow"]),
            job_dir=Path(facts["job_dir"]),
            staging_dir=Path(facts["staging_dir"]),
            super_kernel=tuple((name, value) for name, value in facts["super_kernel"]),
            **{name: facts[name] for name in _PLAIN},
        )


_PLAIN = ("jobs", "deadline_s", "nice", "grace_s", "log_bytes", "package", "package_name")


# ---- what a job tells ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobStarted:
    """op_compiler runs."""

    pid: int
    pgid: int
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """``done`` of the job's kernels have been compiled, as far as the compile log shows; ``current`` names op types at work.

    ``begun`` is how many were begun: that, too, is a sign of life.
    """

    done: int
    total: int
    current: tuple[str, ...]
    begun: int = 0


@dataclass(frozen=True, slots=True)
class JobEnding:
    """op_compiler has ended: its processes are free, and what it made is being installed and verified."""


@dataclass(frozen=True, slots=True)
class MadeKernel:
    """A verified kernel, staged as a directory ready to be published; ``staged`` is relative to the staging directory."""

    key: str
    staged: str
    cost_s: float


@dataclass(frozen=True, slots=True)
class MadePackage:
    """The run package that the kernels came from, staged; ``name`` is the vendor's file name."""

    digest: str
    name: str
    staged: str


@dataclass(frozen=True, slots=True)
class KeyFailed:
    """One key without a kernel. ``transient``: the reason is about this run (memory, time, a signal), not about the record.

    ``narrow``: the run failed as a whole, and one of its keys may be the cause; ``seen`` is where op_compiler was with this one.
    """

    key: str
    outcome: KeyOutcome
    reason: str
    transient: bool
    narrow: bool = False
    seen: Seen = Seen.UNTOUCHED


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: every key of the spec is in ``kernels`` or in ``failed``.

    ``exit_code`` is op_compiler's; None: it was not started, or was ended by us.  ``notes`` are for people; ``stuck`` names
    processes that the kernel does not let go.  ``measured`` is what the run tells of later ones.
    """

    package: MadePackage | None
    kernels: tuple[MadeKernel, ...]
    failed: tuple[KeyFailed, ...]
    wall_s: float
    exit_code: int | None = None
    log_tail: str = ""
    notes: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    measured: RunSeen = field(default_factory=RunSeen)


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The worker ended, or was ended, without a result: every key failed, for a reason that is about the run."""

    reason: str
    failed: tuple[KeyFailed, ...]
    wall_s: float
    transient: bool = True
    stuck: tuple[str, ...] = ()


Event = JobStarted | JobProgress | JobEnding | JobResult | JobFailed
WorkerEvent = JobStarted | JobProgress | JobEnding | JobResult


def all_failed(
    items: Iterable[JobItem], reason: str, *, transient: bool, outcome: KeyOutcome = KeyOutcome.FAILED
) -> tuple[KeyFailed, ...]:
    """Every key failed for one reason."""
    return tuple(KeyFailed(item.key, outcome, reason, transient) for item in items)


def pack_event(event: WorkerEvent) -> bytes:
    """One event as bytes, without its length."""
    match event:
        case JobStarted():
            return _pack({"event": "started", "pid": event.pid, "pgid": event.pgid, "argv": list(event.argv)})
        case JobProgress():
            return _pack(
                {
                    "event": "progress",
                    "done": event.done,
                    "total": event.total,
                    "current": list(event.current),
                    "begun": event.begun,
                }
            )
        case JobEnding():
            return _pack({"event": "ending"})
        case JobResult():
            made = event.package
            return _pack(
                {
                    "event": "result",
                    "package": None if made is None else [made.digest, made.name, made.staged],
                    "kernels": [[kernel.key, kernel.staged, kernel.cost_s] for kernel in event.kernels],
                    "failed": [
                        [one.key, str(one.outcome), one_line(one.reason, MAX_REASON), one.transient, one.narrow, str(one.seen)]
                        for one in event.failed
                    ],
                    "wall_s": event.wall_s,
                    "exit_code": event.exit_code,
                    "log_tail": event.log_tail,
                    "notes": [one_line(note, MAX_REASON) for note in event.notes[:MAX_NOTES]],
                    "stuck": list(event.stuck),
                    "measured": [event.measured.start_up_s, event.measured.ending_s, event.measured.peak_bytes],
                }
            )


def unpack_event(raw: bytes) -> WorkerEvent:
    """The event that ``pack_event`` gave these bytes for; ValueError if there is none."""
    facts = _unpack(raw)
    kind: Literal["started", "progress", "ending", "result"] = facts["event"]
    match kind:
        case "started":
            return JobStarted(facts["pid"], facts["pgid"], tuple(facts["argv"]))
        case "progress":
            return JobProgress(facts["done"], facts["total"], tuple(facts["current"]), facts["begun"])
        case "ending":
            return JobEnding()
        case "result":
            return JobResult(
                package=None if facts["package"] is None else MadePackage(*facts["package"]),
                kernels=tuple(MadeKernel(*kernel) for kernel in facts["kernels"]),
                failed=tuple(
                    KeyFailed(key, KeyOutcome(word), why, passing, narrow, Seen(seen))
                    for key, word, why, passing, narrow, seen in facts["failed"]
                ),
                wall_s=facts["wall_s"],
                exit_code=facts["exit_code"],
                log_tail=facts["log_tail"],
                notes=tuple(facts["notes"]),
                stuck=tuple(facts["stuck"]),
                measured=RunSeen(*facts["measured"]),
            )
    raise ValueError(f"unknown event {kind!r}")


def _pack(value: Mapping[str, object]) -> bytes:
    return cast("bytes", msgpack.packb(value, use_bin_type=True))


def _unpack(raw: bytes) -> dict[str, Any]:
    value = msgpack.unpackb(raw, raw=False)
    if not isinstance(value, dict):
        raise TypeError("not a map")
    return value
