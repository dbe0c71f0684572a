"""What ranks and workers did lately, in a ring of bounded size: enough for a picture of a start-up (``tracing_document`` draws it).

Nothing of it is kept over a restart, and nothing depends on it.  Times are monotonic seconds, passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.sessions import Session

MAX_ROUNDS: Final = 4000
MAX_JOBS: Final = 2000
MAX_OPS: Final = 8
"""Operators of a run that are named."""

T = TypeVar("T")


class Mark(StrEnum):
    """A moment in the life of a round, or of a run of op_compiler."""

    QUEUED = "queued"  # the group's window has closed
    COMPILING = "compiling"  # a worker has some of its keys
    SETTLED = "settled"
    LEASED = "leased"
    PUBLISHING = "publishing"  # op_compiler has ended
    ENDED = "ended"


@dataclass(slots=True)
class Line:
    """What is known of one round or run: when it began, and the first time of each mark."""

    began: float
    marks: dict[Mark, float] = field(default_factory=dict)


@dataclass(slots=True)
class RoundLine(Line):
    """One round. ``recording``: since when its rank was recording; None: it did not say so."""

    round: str = ""
    job: str = ""
    pid: int = 0
    rank: int | None = None
    graph: str = ""
    keys: int = 0
    recording: float | None = None


@dataclass(slots=True)
class RunLine(Line):
    """One run of op_compiler."""

    job: str = ""
    ops: tuple[str, ...] = ()
    keys: int = 0
    processes: int = 0


class Tracing:
    """The ring of one daemon: the newest rounds and runs; the oldest go first."""

    def __init__(self) -> None:
        self.rounds: OrderedDict[str, RoundLine] = OrderedDict()
        self.runs: OrderedDict[str, RunLine] = OrderedDict()

    def submitted(self, taken: Round, session: Session, now: float) -> None:
        """A rank's round was accepted."""
        recording = session.state_since if session.state is ClientState.RECORDING else None
        line = RoundLine(
            began=now,
            round=taken.id,
            job=taken.job,
            pid=session.peer.pid or session.hello.pid,
            rank=taken.rank.rank,
            graph=taken.graph,
            keys=len(taken.needs),
            recording=recording,
        )
        _put(self.rounds, taken.id, line, MAX_ROUNDS)

    def job(self, job: str, ops: Sequence[str], processes: int, now: float) -> None:
        """op_compiler was started for kernels of these operators."""
        named = tuple(dict.fromkeys(ops))[:MAX_OPS]
        _put(self.runs, job, RunLine(began=now, job=job, ops=named, keys=len(ops), processes=processes), MAX_JOBS)

    def mark(self, mark: Mark, name: str, now: float) -> None:
        """Something happened to a round or a run; the first time counts, and what is not known any more is not missed."""
        line = self.rounds.get(name) or self.runs.get(name)
        if line is not None:
            line.marks.setdefault(mark, now)

    def leased(self, rounds: Iterable[str], now: float) -> None:
        """A process holds the lease of what was made for these rounds."""
        for name in rounds:
            self.mark(Mark.LEASED, name, now)


def _put(lines: OrderedDict[str, T], name: str, line: T, most: int) -> None:
    lines[name] = line
    lines.move_to_end(name)
    while len(lines) > most:
        lines.popitem(last=False)
