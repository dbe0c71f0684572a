"""What op_compiler's compile log tells: how far it is, while it runs; why a kernel is missing, after it has ended.

``*_compile_log/`` holds one log a kernel.  A log is named ``..._compile_error.log`` as long as its kernel is being compiled, and
``..._compile_succ.log`` when that has succeeded (docs/cann.md, op_compiler).  So the first name means nothing while op_compiler
runs, and after that only what the log says counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npgxd.compile.job import JobItem, JobProgress
from npgxd.compile.narrowing import Seen
from npgxd.compile.outcome import outcome_of_signal, passing_cause
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_WORKING = "_compile_error.log"
_SUCCEEDED = "_compile_succ.log"
_TAIL_BYTES = 16384
_MAX_REASON = 500
_KEPT_LOGS = 20
_NAMED = 16
_SAYS_ERROR = re.compile(r"\bERROR\b|\bE\d{5}\b|\b[Ee]rror:|Traceback|[Ff]ailed")
_KILLED = re.compile(r"killed by signal (\d+)", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"no implementation|no ops? for|not implemented|op(?:erator)? .{0,80}not support|unsupported op", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a kernel was not compiled, by its own log. ``transient``: memory, space or a signal, which may pass."""

    log: Path
    reason: str
    transient: bool
    outcome: KeyOutcome = KeyOutcome.FAILED


@dataclass(slots=True)
class LogWatch:
    """Follows the compile log of a running op_compiler, and measures what each kernel takes, as finely as it is asked."""

    places: tuple[Path, ...]
    items: Sequence[JobItem]
    kernels_each: int = 1
    _first_seen: dict[str, float] = field(default_factory=dict)
    _took: dict[str, float] = field(default_factory=dict)
    _ended_unseen: list[float] = field(default_factory=list)
    """When kernels were found to have ended that nobody had seen at work."""

    def progress(self, now: float) -> JobProgress:
        """How many of the items are done, and the op types at work. ``now`` is monotonic seconds."""
        working: list[str] = []
        for directory in log_directories(self.places):
            for name in _names(directory):
                if name.endswith(_WORKING):
                    kernel = name.removesuffix(_WORKING)
                    working.append(kernel)
                    self._first_seen.setdefault(kernel, now)
                elif name.endswith(_SUCCEEDED):
                    kernel = name.removesuffix(_SUCCEEDED)
                    if kernel not in self._took and kernel not in self._first_seen:
                        self._ended_unseen.append(now)
                    self._took.setdefault(kernel, now - self._first_seen.get(kernel, now))
        done = min(len(self._took) // self.kernels_each, len(self.items))
        current = {kind for kernel in working if (kind := op_type_in(kernel, (item.op_type for item in self.items)))}
        return JobProgress(done, len(self.items), tuple(sorted(current))[:_NAMED], self.begun)

    @property
    def begun(self) -> int:
        """How many kernels were seen to be begun, among them those that have ended."""
        return len(self._first_seen.keys() | self._took.keys())

    @property
    def began(self) -> float | None:
        """When the first kernel's log was seen (monotonic seconds); None: none was seen yet."""
        return min((*self._first_seen.values(), *self._ended_unseen), default=None)

    def seen(self) -> dict[str, Seen]:
        """Where op_compiler was with each item when it was last looked at."""
        working = assign(self.items, [kernel for kernel in self._first_seen if kernel not in self._took])
        rest = [item for item in self.items if item.key not in working]
        finished = assign(rest, list(self._took))
        return {
            item.key: Seen.WORKING if item.key in working else Seen.FINISHED if item.key in finished else Seen.UNTOUCHED
            for item in self.items
        }

    def cost_of(self, kernel: str, otherwise: float) -> float:
        """Seconds that this kernel took, by its log; ``otherwise`` where that was too short to be seen."""
        return self._took.get(kernel) or otherwise


def log_directories(places: Iterable[Path]) -> list[Path]:
    """The compile log directories below ``places``."""
    found: list[Path] = []
    for place in places:
        found.extend(place / name for name in _names(place) if name.endswith("_compile_log"))
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def complaints(places: Iterable[Path], *, out_of_memory: bool | None = None) -> list[Complaint]:
    """What the logs of kernels that did not succeed say. Only meaningful after op_compiler has ended by itself.

    ``out_of_memory``: whether the kernel has killed for want of memory meanwhile; None: that cannot be told.
    """
    logs = [directory / name for directory in log_directories(places) for name in _names(directory) if name.endswith(_WORKING)]
    return [said for log in logs if (said := _complaint(log, out_of_memory=out_of_memory)) is not None]


def match(missing: Sequence[JobItem], said: Sequence[Complaint]) -> dict[str, Complaint]:
    """Which complaint is about which missing key.

    A log's name begins with the op type and the first tensor's dtype, format and dimensions, as a dump's file name does; the
    rest is op_compiler's own.  So the best fitting log is taken, each for one key, and none that is about another op type.
    """
    names = [one.log.name.removesuffix(_WORKING) for one in said]
    return {key: said[number] for key, number in assign(missing, names).items()}


def assign(items: Sequence[JobItem], names: Sequence[str]) -> dict[str, int]:
    """Which of the logs' ``names``, by its place, is each key's: the best fitting first, each for one key, none of another op type."""
    words = [(item.key, _telling(item)) for item in items]
    spelled = [f"_{name}_" for name in names]
    scored = [
        (-score, at, number)
        for at, (_, telling) in enumerate(words)
        for number, name in enumerate(spelled)
        if (score := _fit(telling, name))
    ]
    chosen: dict[str, int] = {}
    used: set[int] = set()
    for _, at, number in sorted(scored):
        key = words[at][0]
        if key not in chosen and number not in used:
            chosen[key] = number
            used.add(number)
    return chosen


def op_type_in(name: str, op_types: Iterable[str]) -> str:
    """The longest of ``op_types`` that stands in ``name`` as a word; empty if none does."""
    return max((kind for kind in set(op_types) if f"_{kind}_" in f"_{name}_"), key=len, default="")


def keep_logs(places: Iterable[Path], target: Path) -> None:
    """Copy the ends of a few failed kernels' logs to where they are kept with the job."""
    said = complaints(places)[:_KEPT_LOGS]
    if said:
        target.mkdir(mode=0o700, exist_ok=True)
    for one in said:
        (target / one.log.name).write_bytes(_tail(one.log))


def _telling(item: JobItem) -> list[str]:
    """The words by which an item's log is known: its op type, and what ``_first_tensor`` gives."""
    return [f"_{word}_" for word in (item.op_type, *_first_tensor(item.canonical))]


def _fit(telling: Sequence[str], name: str) -> int:
    if telling[0] not in name:
        return 0
    return 1 + sum(word in name for word in telling[1:]) * 2


def _first_tensor(canonical: bytes) -> list[str]:
    """``[dtype_format_dims, dtype, dims]`` of a record's first tensor, as far as it has one."""
    try:
        record: dict[str, Any] = json.loads(canonical)
        flat = [tensor for side in ("inputs", "outputs") for element in record[side] for tensor in _listed(element)]
        first = flat[0]
        shape = "_".join(str(size) for size in first["shape"])
        return [f"{first['dtype']}_{first['format']}_{shape}", str(first["dtype"]), shape]
    except (ValueError, KeyError, IndexError, TypeError):
        return []


def _listed(element: object) -> list[dict[str, Any]]:
    if isinstance(element, list):
        return element
    return [element] if isinstance(element, dict) else []


def _complaint(path: Path, *, out_of_memory: bool | None) -> Complaint | None:
    lines = [line.strip() for line in _tail(path).decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if _SAYS_ERROR.search(line)]
    if not telling:
        return None
    reason = telling[0][:_MAX_REASON]
    if passing := next(filter(None, map(passing_cause, telling)), None):
        return Complaint(path, reason, transient=True, outcome=passing[1])
    if killed := next(filter(None, map(_KILLED.search, telling)), None):
        return Complaint(path, reason, transient=True, outcome=outcome_of_signal(int(killed[1]), out_of_memory=out_of_memory))
    outcome = KeyOutcome.UNSUPPORTED if _UNSUPPORTED.search(reason) else KeyOutcome.FAILED
    return Complaint(path, reason, transient=False, outcome=outcome)


def _tail(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with contextlib.closing(os.fdopen(fd, "rb")) as stream:
        size = os.fstat(fd).st_size
        stream.seek(max(0, size - _TAIL_BYTES))
        return stream.read(_TAIL_BYTES)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError:
        return []
