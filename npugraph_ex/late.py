"""Kernels that come late (``static_kernel_wait="background"``): the graph runs with dynamic kernels until the call at which it changes.

Promise: nothing here waits for the daemon but one bounded look at it before a graph's first run; the change itself is made by the thread that
calls the graph, between two calls, and executes no collective.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from npgxd.client.changing import Calls, Change
from npgxd.wire.states import ClientState, Reason
from npugraph_ex import settling
from npugraph_ex.collectives import collectives_of, place_of, vote
from npugraph_ex.loading import LOADS
from npugraph_ex.telling import ProgressTeller

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.client import Client, Outcome
    from npgxd.wire.messages import CompileOptions
    from npugraph_ex.engines import Engine
    from npugraph_ex.program import Program
    from npugraph_ex.settling import Settled

T = TypeVar("T")
logger = logging.getLogger("npugraph_ex")

HELLO_S: Final = 1.0
"""How long a graph's first run waits for the daemon to say what its toolchain is."""


def answered(ask: Callable[[], T], otherwise: T, within_s: float = HELLO_S) -> T:
    """What ``ask`` returns in another thread, or ``otherwise`` if it has not in time; it then goes on, and nobody hears of it."""
    answers: list[T] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # the user's call must run whatever our side does
            logger.debug("npugraph_ex: before a graph's first run", exc_info=error)

    thread = threading.Thread(target=run, name="npgxd hello", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        logger.debug("npugraph_ex: before a graph's first run: %s", error)
        return otherwise
    thread.join(within_s)
    return answers[0] if answers else otherwise


@dataclass(slots=True)
class _Late:
    """One round that nobody waits for."""

    settled: Settled
    number: int = 0
    """Its place among the process's leases, once it has one."""
    problem: Outcome | None = None
    """What went wrong while its kernels were taken into use."""


class LateKernels:
    """One graph's calls, and the rounds whose kernels it changes to."""

    def __init__(self, engine: Engine, program: Program | None) -> None:
        self._engine = engine
        self._program = program
        self._calls = Calls()
        self._late: dict[Change, _Late] = {}

    def begin_call(self) -> bool:
        """Count a call that is about to run; True: other kernels are in use from this one on. Costs a comparison if nothing is due."""
        return self._calls.begin() and self._change()

    def _change(self) -> bool:
        changes = self._calls.take()
        for change in changes:
            late = self._late[change]
            outcome = settling.load(late.settled.outcome, late.number, self._engine)
            late.problem = outcome if outcome.reason is Reason.RESELECT_FAILED else None
            change.made()
        return bool(changes)

    def follow(self, client: Client, settled: Settled, *, options: CompileOptions, recompile: bool) -> None:
        """Submit what was recorded, and have this graph changed when its kernels are there; returns at once."""
        module = self._program.module() if self._program is not None else None
        place = place_of(collectives_of(module) if module is not None else None)
        change = Change(self._calls, vote=vote if place.partners else None)
        late = self._late[change] = _Late(settled)
        settling.note(settled)
        client.static_kernels_in_background(
            settled.recorded.selected(),
            graph=settled.label,
            change=change,
            place=place,
            on_ready=partial(self._ready, client, late),
            on_end=partial(self._end, client, change),
            options=options,
            recompile=recompile,
            on_progress=ProgressTeller(settled.label),
        )

    # ---- in the thread that follows ----------------------------------------------------------------------------------

    def _ready(self, client: Client, late: _Late, outcome: Outcome) -> None:
        late.settled = replace(late.settled, outcome=outcome)
        late.number = LOADS.add(outcome)
        settling.keep(client, outcome, late.settled.tree, late.settled.recorded.selected())
        pending = replace(outcome, state=ClientState.QUEUED, reason=Reason.CHANGE_PENDING)
        settling.note(replace(late.settled, outcome=pending))

    def _end(self, client: Client, change: Change, outcome: Outcome) -> Outcome:
        late = self._late.pop(change)
        outcome = late.problem or outcome
        settling.finish(client, replace(late.settled, outcome=outcome, changed_at=change.made_at))
        return outcome
