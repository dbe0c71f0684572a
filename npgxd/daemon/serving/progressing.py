"""How far rounds are, as their ranks are told: with who is to show it to people, and whether nothing has moved for too long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from npgxd.daemon.compiling.stuck_runs import STALL_FACTOR
from npgxd.wire.states import ClientState, RoundState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.wire.messages import RankInfo, RoundProgress

STALL_S: Final = 60.0
"""A compile that gives no sign for so long may be stuck, if that is also longer than can be expected of its kernels."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """What was seen of a round when something about it last changed, and when that was."""

    seen: tuple[object, ...]
    at: float


class Progresses:
    """Says how far each round is. Times are monotonic seconds, passed in."""

    def __init__(self, sessions: Sessions, coordinator: Coordinator) -> None:
        self._sessions = sessions
        self._coordinator = coordinator
        self._signs: dict[str, _Sign] = {}
        self._speakers: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    def of(self, asked: Round, now: float) -> RoundProgress:
        """How far a round is at this moment."""
        told = asked.progress(now)
        done = told.done + (self._coordinator.prospects.finished(asked.open_keys) if asked.result is None else 0)
        stalled = self._stalled_s(asked, (done, told.current), now)
        left = (
            None if stalled else self._coordinator.eta(asked, now)
        )  # of what does not move nobody can tell when it will be done
        return replace(told, done=done, speaks=self._speaks(asked, now), stalled_s=stalled, eta_s=left)

    def _speaks(self, asked: Round, now: float) -> bool:
        if self._speakers[0] != now:
            self._speakers = now, speakers(self._sessions)
        return asked.session in self._speakers[1]

    def _stalled_s(self, asked: Round, seen: tuple[object, ...], now: float) -> float:
        """For how long neither a kernel was finished nor op_compiler told of anything; 0 as long as that can be expected."""
        if asked.state is not RoundState.COMPILING:
            self._signs.pop(asked.id, None)
            return 0.0
        known = self._signs.get(asked.id)
        if known is None or known.seen != seen:
            self._signs[asked.id] = _Sign(seen, now)
            return 0.0
        quiet = now - known.at
        if quiet < STALL_S:
            return 0.0
        longest = max((self._coordinator.flights.cost_of(asked.needs[key]) for key in asked.open_keys), default=0.0)
        return quiet if quiet >= STALL_FACTOR * longest else 0.0

    def forget(self, name: str) -> None:
        """Nobody follows this round any more."""
        self._signs.pop(name, None)


def speakers(sessions: Iterable[Session]) -> frozenset[str]:
    """The sessions that tell people of a job on this node: of each job its lowest rank that is here.

    LOCAL_RANK is no identity, since launchers can set it to 0 everywhere.  A process without rank variables speaks for itself.
    """
    lowest: dict[str, Session] = {}
    alone: list[str] = []
    for session in sessions:
        if session.rank.rank is None and session.rank.local_rank is None:
            alone.append(session.id)
        elif session.state is ClientState.DISABLED:
            continue  # it has nothing to show
        elif session.job not in lowest or _order(session) < _order(lowest[session.job]):
            lowest[session.job] = session
    return frozenset(alone) | {session.id for session in lowest.values()}


def _order(session: Session) -> tuple[float, float, float, str]:
    rank: RankInfo = session.rank
    far = float("inf")
    return (
        far if rank.rank is None else rank.rank,
        far if rank.local_rank is None else rank.local_rank,
        session.connected_at,
        session.id,
    )
