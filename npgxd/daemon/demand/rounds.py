"""Rounds: what one rank submitted, what became of each of its keys, and how that is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from npgxd.daemon.demand.lines import Waiter
from npgxd.wire.form import Part
from npgxd.wire.messages import CompileOptions, Failure, Package, RankInfo, Rejected, RoundProgress, RoundResult
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState, Strategy

T = TypeVar("T", bound=Part)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npgxd.daemon.demand.flights import Need
    from npgxd.errors import StoreError
    from npgxd.store.rounds import RoundEntry

MAX_NAMED = 200
"""Failures, shadowed keys and rejected records that one message names, at most; of failures the full number is always told."""
IMPORT = "import"
"""The job of rounds that an administrator imports; the jobs of ranks are named by digests."""
NAMED_BYTES = 40 * 1024
"""What the named things of each of the four kinds may take of a header, which a peer refuses whole when it is too large."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of one key: a kernel (its store id), or the reason why there is none."""

    outcome: KeyOutcome
    kernel: str = ""
    reason: str = ""
    why: Reason = Reason.COMPILE_FAILED
    """In one word, where there is no kernel."""


@dataclass(slots=True)
class Round:
    """One round, from accepted to settled. Times are monotonic seconds."""

    id: str
    uid: int
    session: str
    job: str
    rank: RankInfo
    graph: str
    options: CompileOptions
    recompile: bool
    records: int
    rejected: tuple[Rejected, ...]
    needs: dict[str, Need]
    """key -> what compiling it takes; the record bears the name that the rank gave its first record of that key."""
    accepted_at: float
    group: str = ""
    state: RoundState = RoundState.WAITING
    settlements: dict[str, Settlement] = field(default_factory=dict)
    current: tuple[str, ...] = ()
    result: RoundResult | None = None
    settled_at: float = 0.0
    durable: bool = False
    entry: RoundEntry | None = None
    """As the journal keeps it."""
    renewals: int = 0
    left_at: float | None = None
    """Since when no process waits for it; None: one does."""
    given_up: bool = False
    """Whether its process has said that it waits no more for it."""
    background: bool = False
    """Whether every round that a process waits for comes first."""
    size: int = 0
    """Bytes of its records: most of what it takes of the daemon's memory."""

    @property
    def imported(self) -> bool:
        """Whether an administrator brought it: no process ever waits for it."""
        return self.job == IMPORT

    @property
    def waiter(self) -> Waiter:
        """As it waits for its keys."""
        return Waiter(self.id, self.job, self.uid, self.background)

    @property
    def open_keys(self) -> list[str]:
        """Keys whose outcome is not known yet."""
        return [key for key in self.needs if key not in self.settlements]

    def settle_key(self, key: str, settlement: Settlement) -> None:
        """The first outcome of a key counts."""
        if key in self.needs:
            self.settlements.setdefault(key, settlement)

    def progress(self, now: float, eta_s: float | None = None) -> RoundProgress:
        """How far this round is."""
        return RoundProgress(
            round=self.id,
            state=self.state,
            records=self.records,
            unique=len(self.needs),
            done=len(self.settlements),
            total=len(self.needs),
            group=self.group,
            current=self.current if self.state is RoundState.COMPILING else (),
            elapsed_s=max(0.0, (self.settled_at or now) - self.accepted_at),
            eta_s=eta_s,
            rejected=self.rejected,
            result=self.result,
        )

    def failures(self) -> list[Failure]:
        """The keys that have no kernel."""
        return [
            Failure(key=key, op_type=self.needs[key].record.op_type, outcome=done.outcome, reason=done.reason[:500])
            for key, done in self.settlements.items()
            if not done.kernel
        ]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The view that was made for a round: its digest (None: nothing new to load) and the keys that cannot take effect."""

    view: str | None
    kernels: int
    shadowed: Mapping[str, Reason]
    packages: Sequence[Package] = ()
    problem: str = ""
    """Why there is no view although there are kernels, or why not all of them could be brought to the process."""
    hint: str = ""
    why: Reason = Reason.STORE_FAILED
    """``problem`` in one word."""
    strategy: Strategy = Strategy.VIEW
    root: str = ""
    """The marker of the shared root that the kernels are in."""


def why_store(error: StoreError) -> Reason:
    """What a round is told when the state cannot be read or written."""
    return Reason.NO_SPACE if error.no_space else Reason.STORE_FAILED


def result_of(settled: Round, assembled: Assembled, gathered: int) -> RoundResult:
    """The honest summary: INSTALLED only when every key of the round is covered and loadable, else DEGRADED with the reason."""
    outcomes = Counter(done.outcome for done in settled.settlements.values())
    failures = settled.failures()
    hits, compiled = outcomes[KeyOutcome.HIT], outcomes[KeyOutcome.COMPILED]
    if failures:
        whys = {done.why for done in settled.settlements.values() if not done.kernel}
        state, reason = ClientState.DEGRADED, whys.pop() if len(whys) == 1 else Reason.COMPILE_FAILED
    elif assembled.problem:
        state, reason = ClientState.DEGRADED, assembled.why
    elif assembled.shadowed:
        first = next(iter(assembled.shadowed.values()))
        state, reason = ClientState.DEGRADED, first
    elif settled.rejected:
        state, reason = ClientState.DEGRADED, Reason.BAD_RECORDS
    elif not settled.needs:
        state, reason = ClientState.DISABLED, Reason.NOTHING_TO_COMPILE
    else:
        state, reason = ClientState.INSTALLED, Reason.COMPILED if compiled else Reason.HIT
    return RoundResult(
        state=state,
        reason=reason,
        hits=hits,
        compiled=compiled,
        view=assembled.view,
        view_kernels=assembled.kernels,
        failures=named(failures),
        failed=len(failures),
        shadowed=named(
            Failure(key=key, op_type=settled.needs[key].record.op_type, outcome=settled.settlements[key].outcome, reason=str(why))
            for key, why in assembled.shadowed.items()
        ),
        packages=named(assembled.packages),
        gathered=gathered,
        detail=(assembled.problem or _common(settled))[:1000],
        hint=assembled.hint[:500],
        strategy=assembled.strategy,
        root=assembled.root,
    )


def _common(settled: Round) -> str:
    """What kept all the keys without a kernel from having one, where that is one thing and not the compiler's word on each."""
    said = {(done.why, done.reason) for done in settled.settlements.values() if not done.kernel}
    return next(iter(said))[1] if len(said) == 1 and Reason.COMPILE_FAILED not in {why for why, _ in said} else ""


def named(items: Iterable[T]) -> tuple[T, ...]:
    """As many of ``items``, from the first on, as one message can name: names and reasons come from clients and compilers."""
    taken: list[T] = []
    left = NAMED_BYTES
    for item in islice(items, MAX_NAMED):
        left -= sum(len(str(value).encode(errors="replace")) + 16 for value in vars(item).values())
        if left < 0:
            break
        taken.append(item)
    return tuple(taken)
