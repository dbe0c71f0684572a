"""Groups: the rounds of one job's ranks that are compiled together, and how long their window stays open.

Pure decisions over times that are passed in.  A window closes as soon as all expected ranks have submitted; it never waits when the
number of ranks is not known, and each kind of waiting has its own bound, so that a late, missing or dead rank blocks nobody for long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npgxd.config import GroupSection


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known, at one moment, of the ranks of a job that are not in its open group."""

    connected: int
    """Live sessions of the job that have not submitted to the group."""
    recording_since: tuple[float, ...] = ()
    """For those of them that said they are recording: since when (monotonic seconds)."""


@dataclass(slots=True)
class Group:
    """One open or closed window. ``expected`` is None when the ranks do not say how many they are, or disagree."""

    id: str
    job: str
    opened_at: float
    expected: int | None
    last_arrival: float = 0.0
    rounds: list[str] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    closed: bool = False

    def add(self, round_id: str, session: str, now: float) -> None:
        """A rank has submitted."""
        self.rounds.append(round_id)
        self.sessions.add(session)
        self.last_arrival = now


def closes_at(group: Group, standing: Standing, bounds: GroupSection) -> float:
    """The monotonic time at which this group's window closes if nothing else happens; ``-inf`` means now.

    Ranks that said they are recording are waited for longest (``recording_s`` from when they said so), ranks never heard of for
    ``window_s`` from the first arrival, ranks that are connected and idle for ``quiet_s`` from the last one.
    """
    if group.expected is None or len(group.rounds) >= group.expected:
        return float("-inf")
    quiet = group.last_arrival + bounds.quiet_s
    waits = [since + bounds.recording_s for since in standing.recording_since]
    unheard = group.expected - len(group.rounds) - standing.connected
    if unheard > 0:
        waits.append(group.opened_at + bounds.window_s)
    return max([quiet, *waits])


def expected_size(stated: list[int | None], default: int) -> tuple[int | None, str]:
    """How many ranks a job has on this node, from what its ranks state, and a note for them when that cannot be told.

    A missing value, or ranks that disagree, means "do not wait for the others"; it never means "off".
    """
    values = {value for value in stated if value is not None}
    if len(values) > 1:
        return None, f"ranks disagree on LOCAL_WORLD_SIZE ({', '.join(map(str, sorted(values)))}): not waiting for each other"
    if values and None not in stated:
        return next(iter(values)) or None, ""
    if default:
        return default, ""
    if values:
        return None, "LOCAL_WORLD_SIZE is not set in every rank: not waiting for each other"
    return None, "LOCAL_WORLD_SIZE is not set: ranks do not wait for each other; every kernel is still compiled once"
