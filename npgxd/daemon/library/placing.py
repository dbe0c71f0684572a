"""Rounds whose kernels are on their way into a shared op library: all their keys have an outcome, and they are not settled yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npgxd.oplib.shared_root_place import NotWritable
from npgxd.wire.states import Reason, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npgxd.daemon.demand.rounds import Assembled, Round
    from npgxd.daemon.library.roots import OpLibrary
    from npgxd.daemon.sessions import Sessions
    from npgxd.oplib.leases import Leases
    from npgxd.oplib.shared_root_place import LibraryError


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of a round's kernels: ready to be loaded, but for those named."""

    strategy: Strategy = Strategy.VIEW
    root: str = ""
    shadowed: Mapping[str, Reason] = field(default_factory=dict)
    """key -> why its kernel takes no effect."""
    problem: str = ""
    hint: str = ""
    why: Reason = Reason.OP_LIBRARY
    usable: bool = True
    """Whether anything is in place that the process may load."""

    @property
    def incomplete(self) -> bool:
        """Whether some kernels could not be brought in although others were."""
        return self.usable and bool(self.problem)

    def into(self, assembled: Assembled) -> Assembled:
        """What a round is told of the view that was made for it."""
        if self.strategy is Strategy.VIEW:
            return assembled
        return replace(
            assembled,
            view=assembled.view if self.usable else None,
            kernels=assembled.kernels if self.usable else 0,
            shadowed={**assembled.shadowed, **self.shadowed},
            problem=assembled.problem or self.problem,
            hint=self.hint,
            why=assembled.why if assembled.problem else self.why,
            strategy=self.strategy,
            root=self.root if assembled.view is not None else "",
        )


class Placing:
    """The rounds that wait for the op library; without one, or with views alone, none ever does."""

    def __init__(self, library: OpLibrary | None) -> None:
        self._library = library
        self._waiting: dict[str, Assembled] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def check(self) -> None:
        """LibraryError if nothing that is compiled now could be brought to the processes that wait for it."""
        if self._library is not None:
            self._library.check()

    @property
    def views(self) -> set[str]:
        """The views of rounds that wait."""
        return {assembled.view for assembled in self._waiting.values() if assembled.view is not None}

    def begin(self, done: Round, assembled: Assembled, now: float) -> Assembled | None:
        """What the round is told; None: not before ``ended``."""
        if self._library is None:
            return assembled
        # Also kernels that the process has leased before: it may have been told of them that it runs others.
        kernels = tuple(dict.fromkeys(settled.kernel for settled in done.settlements.values() if settled.kernel))
        placed = self._library.place(done.id, kernels, done.session, now)
        if placed is None:
            self._waiting[done.id] = assembled
            return None
        return placed.into(assembled)

    def ended(self, name: str, placed: Placed) -> Assembled | None:
        """What a round that waited is told; None if it did not wait."""
        assembled = self._waiting.pop(name, None)
        return None if assembled is None else placed.into(assembled)


def reason_of(error: LibraryError) -> Reason:
    """What is wrong with the op library, in one word."""
    return Reason.NOT_WRITABLE if isinstance(error, NotWritable) else Reason.OP_LIBRARY


def settled_at(rounds: Mapping[str, Round], name: str) -> float:
    """When a round was settled; ``-inf`` if it is not, or is not known."""
    found = rounds.get(name)
    return float("-inf") if found is None or found.result is None else found.settled_at


def awaited(rounds: Iterable[Round], sessions: Sessions, since: float) -> set[str]:
    """Views that were told at ``since`` or later to processes that are still here, and may be about to lease them."""
    here = {session.id for session in sessions}
    return {
        r.result.view
        for r in rounds
        if r.result is not None and r.result.view is not None and r.session in here and r.settled_at >= since
    }


def unleased(rounds: Iterable[Round], sessions: Sessions, leases: Leases, since: float) -> bool:
    """Whether a process that is still here was told of a view at ``since`` or later, and holds no lease on it yet."""
    told = {
        (r.session, r.result.view) for r in rounds if r.result is not None and r.result.view is not None and r.settled_at >= since
    }
    if not told:
        return False
    here = {session.id: session for session in sessions}
    return any(
        view not in {facts.view for facts in map(leases.facts_of, here[name].leases) if facts is not None}
        for name, view in told
        if name in here
    )
