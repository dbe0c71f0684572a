"""What a rank learns about a round: how far it is, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.wire.plain import Plain, plain
from npgxd.wire.states import ClientState, Reason, RoundState, Strategy

if TYPE_CHECKING:
    from pathlib import Path

    from npgxd.wire.messages import Failure, Rejected, RoundProgress, ToolchainInfo


@plain
class Progress(Plain):
    """How far a round is: ``done`` of ``total`` keys have their outcome, or are compiled. Times in seconds; ``eta_s`` None: not known."""

    round: str
    state: RoundState
    records: int
    unique: int
    done: int
    total: int
    group: str = ""
    current: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    eta_s: float | None = None
    speaks: bool | None = None
    """Whether this process is the one of its job on this node that shows it to people; None: nobody says."""
    stalled_s: float = 0.0
    """For how long nothing has moved, where that is longer than can be expected."""
    simulated: bool = False

    @property
    def at(self) -> str:
        """What it is at, in words: the operators that are compiled, or what comes before or after them."""
        finished = self.total > 0 and self.done >= self.total
        return ", ".join(self.current[:3]) or ("the daemon's disk or installer: all is compiled" if finished else "op_compiler")

    def __str__(self) -> str:
        what = f"simulated {self.state}" if self.simulated else str(self.state)
        if self.state is not RoundState.COMPILING:
            return what
        now = f" {', '.join(self.current[:3])}" if self.current else ""
        left = f", about {self.eta_s:.0f} s left" if self.eta_s is not None else ""
        stalled = f", nothing has moved for {self.stalled_s:.0f} s" if self.stalled_s else ""
        return f"{what}({self.done}/{self.total}){now}{left}{stalled}"

    @classmethod
    def of(cls, told: RoundProgress, *, simulated: bool = False) -> Progress:
        """The part of the daemon's message that a caller needs."""
        return cls(
            round=told.round,
            state=told.state,
            records=told.records,
            unique=told.unique,
            done=told.done,
            total=told.total,
            group=told.group,
            current=told.current,
            elapsed_s=told.elapsed_s,
            eta_s=told.eta_s,
            speaks=told.speaks,
            stalled_s=told.stalled_s,
            simulated=simulated,
        )


@plain
class Outcome(Plain):
    """How a request for static kernels ended; every way that it can end is one of these, never an exception.

    ``view`` is the leased op-library root to reselect (absolute; None: nothing new to load); with ``strategy`` shared_root (CANN before
    9.1.0) there is none, and ``root`` is this process's default root, to be reselected without a path.  ``round`` is the id under which the
    daemon took it (empty: it never did).  ``packages`` are the run packages that served it, with their vendor names.
    """

    state: ClientState
    reason: Reason
    detail: str = ""
    hint: str = ""
    round: str = ""
    records: int = 0
    unique: int = 0
    hits: int = 0
    compiled: int = 0
    rejected: tuple[Rejected, ...] = ()
    failures: tuple[Failure, ...] = ()
    shadowed: tuple[Failure, ...] = ()
    view: Path | None = None
    root: Path | None = None
    strategy: Strategy = Strategy.VIEW
    packages: tuple[tuple[str, Path], ...] = ()
    gathered: int = 0
    simulated: bool = False
    speaks: bool | None = None
    """As in ``Progress``."""
    toolchain: ToolchainInfo | None = None

    @property
    def installed(self) -> bool:
        """Every key asked for is in this process's views."""
        return self.state is ClientState.INSTALLED
