"""The open and closed windows of all jobs: which group a round joins, and which windows' time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.daemon.scheduling.groups import Group, Standing, closes_at, expected_size
from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from npgxd.config import GroupSection
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.sessions import Session, Sessions


class Windows:
    """Groups by id, and at most one open window for each job. Times are monotonic seconds."""

    def __init__(self, sessions: Sessions, bounds: GroupSection) -> None:
        self._sessions = sessions
        self._bounds = bounds
        self._groups: dict[str, Group] = {}
        self._open: dict[str, Group] = {}

    def join(self, taken: Round, session: Session, now: float) -> Group | None:
        """Put a round into its job's open window; a window that has a round of this session already is given back, to be closed."""
        group = self._open.get(taken.job)
        full = group if group is not None and session.id in group.sessions else None
        if group is None or full is not None:
            group = self._open[taken.job] = self._new(taken, now)
        group.add(taken.id, session.id, now)
        taken.group = group.id
        group.expected = self.expected(taken.job)[0]
        return full

    def alone(self, taken: Round, now: float) -> Group:
        """A group for a round that waits for no other."""
        group = self._new(taken, now)
        group.add(taken.id, "", now)
        taken.group = group.id
        return group

    def close(self, group: Group) -> None:
        """Nobody joins this one any more."""
        group.closed = True
        if self._open.get(group.job) is group:
            del self._open[group.job]

    def due(self, now: float) -> Iterator[Group]:
        """The windows whose time has come."""
        for group in list(self._open.values()):
            if self._closes(group) <= now:
                yield group

    def next_close(self) -> float:
        """When the next window closes; ``inf``: none is open."""
        return min(map(self._closes, self._open.values()), default=float("inf"))

    def members(self, taken: Round) -> list[str]:
        """The rounds of a round's group, itself among them."""
        group = self._groups.get(taken.group)
        return group.rounds if group is not None else [taken.id]

    def forget(self, old: Round, rounds: Container[str]) -> None:
        """A round is no longer kept; its group goes with its last one."""
        if not any(member in rounds for member in self.members(old)):
            self._groups.pop(old.group, None)

    def expected(self, job: str) -> tuple[int | None, str]:
        """How many ranks a job has on this node, and a note for them when that cannot be told."""
        members = self._sessions.of_job(job)
        stated = [session.rank.local_world_size for session in members]
        size, note = expected_size(stated, self._bounds.local_world_size)
        alone = len(members) <= 1 and all((session.rank.world_size or 1) <= 1 for session in members)
        return size, "" if alone else note

    def _new(self, first: Round, now: float) -> Group:
        name = f"{first.job}-{first.id[:8]}"
        if name in self._groups:  # clients choose the ids of rounds
            name = f"{first.job}-{first.id}"
        group = Group(id=name, job=first.job, opened_at=now, expected=None)
        self._groups[group.id] = group
        return group

    def _closes(self, group: Group) -> float:
        others = [session for session in self._sessions.of_job(group.job) if session.id not in group.sessions]
        recording = tuple(session.state_since for session in others if session.state is ClientState.RECORDING)
        return closes_at(group, Standing(connected=len(others), recording_since=recording), self._bounds)
