"""Lines: in which order jobs get their turns at the compiler. One line for each job and user, one more for what nobody waits for.

Pure state.  A line that has nothing running waits since its first key came, or since its last batch ended, whichever was later; so
lines take turns, and who has waited longest is next (``compile.plan``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Waiter:
    """A round that waits for keys: its job and user, and whether no process is left that waits for it."""

    round: str
    job: str
    uid: int
    background: bool = False


@dataclass(slots=True)
class Line:
    """What one job waits for. Times are monotonic seconds."""

    job: str
    uid: int
    background: bool
    since: float
    keys: dict[str, int] = field(default_factory=dict)
    """key -> how many of the job's rounds wait for it."""
    cost_s: float = 0.0
    running: int = 0

    @property
    def name(self) -> str:
        """For the planner, and for people."""
        return f"{self.job}/{self.uid}" + (" (nobody waits)" if self.background else "")


class Lines:
    """All lines of a node that have keys or batches."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int, bool], Line] = {}
        self._by_name: dict[str, Line] = {}
        self._served: dict[str, tuple[str, ...]] = {}
        """compile job -> the lines whose turn it is."""
        self.changes = 0
        """Goes up whenever a plan could come out differently."""

    def __iter__(self) -> Iterator[Line]:
        return iter([line for line in self._lines.values() if line.keys])

    def of(self, waiter: Waiter) -> Line | None:
        """The line that a round's keys are in; None if none of them waits."""
        return self._lines.get((waiter.job, waiter.uid, waiter.background))

    def join(self, key: str, cost_s: float, waiter: Waiter, now: float) -> None:
        """A round waits for a key."""
        at = (waiter.job, waiter.uid, waiter.background)
        line = self._lines.get(at)
        if line is None:
            line = self._lines[at] = Line(*at, since=now)
            self._by_name[line.name] = line
        if not line.keys and not line.running:
            line.since = now
        if key not in line.keys:
            line.cost_s += cost_s
        line.keys[key] = line.keys.get(key, 0) + 1
        self.changes += 1

    def leave(self, key: str, cost_s: float, waiter: Waiter) -> None:
        """It does not wait for it any more, or a worker has it."""
        line = self._lines[waiter.job, waiter.uid, waiter.background]
        self.changes += 1
        line.keys[key] -= 1
        if not line.keys[key]:
            del line.keys[key]
            line.cost_s = max(0.0, line.cost_s - cost_s) if line.keys else 0.0
        self._tidy(line)

    def begin(self, job: str, names: tuple[str, ...]) -> None:
        """A batch was started in the turns of these lines."""
        self._served[job] = names
        for name in names:
            line = self._by_name.get(name)
            if line is not None:
                line.running += 1

    def end(self, job: str, now: float) -> None:
        """It has ended: whoever it was for waits from now on."""
        self.changes += 1
        for name in self._served.pop(job, ()):
            line = self._by_name.get(name)
            if line is not None and line.running:
                line.running -= 1
                line.since = now if not line.running else line.since
                self._tidy(line)

    def _tidy(self, line: Line) -> None:
        if not line.keys and not line.running:
            self._lines.pop((line.job, line.uid, line.background), None)
            self._by_name.pop(line.name, None)
