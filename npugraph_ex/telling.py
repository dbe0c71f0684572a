"""What the people who run the process are told: how far a round is, and one line for each graph's end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from npgxd.wire.states import ClientState, Reason
from npugraph_ex import _notices, ranks

if TYPE_CHECKING:
    from npgxd.client import Outcome, Progress

logger = logging.getLogger("npugraph_ex")

_TELL_EVERY_S: Final = 10.0
_NO_WARNING: Final = frozenset({Reason.NOTHING_TO_COMPILE, Reason.DAEMON_UNAVAILABLE})
"""Nothing is wrong with the first; of an absent daemon the client has warned itself."""


def summary(outcome: Outcome, undescribed: int = 0) -> str:
    """``INSTALLED (simulated; compiled 57 of 57 kernels, 120 records)``, or the state with its reason and remedy."""
    if outcome.state is ClientState.INSTALLED:
        told = [f"compiled {outcome.compiled} of {_counted(outcome.unique, 'kernel')}, {outcome.hits} were there"]
    else:
        told = [f"{outcome.reason}: {outcome.detail}" if outcome.detail else str(outcome.reason)]
    if outcome.records:
        told.append(_counted(outcome.records, "record"))
    if outcome.failures:
        told.append(f"{len(outcome.failures)} without a kernel")
    if outcome.rejected:
        told.append(f"{_counted(len(outcome.rejected), 'record')} rejected")
    if undescribed:
        told.append("1 operator is in no record" if undescribed == 1 else f"{undescribed} operators are in no record")
    if outcome.simulated:
        told.insert(0, "simulated")
    hint = f". {outcome.hint}" if outcome.hint and outcome.state is not ClientState.INSTALLED else ""
    return f"{outcome.state} ({'; '.join(told)}){hint}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def tell(label: str, outcome: Outcome, undescribed: int, changed_at: int | None = None) -> None:
    """One line from local rank 0: information if all is well, a warning once for each reason if not; others at debug level."""
    since = f", in use since call {changed_at}" if changed_at is not None else ""
    line = f"graph {label}: static kernels {summary(outcome, undescribed)}{since}"
    if ranks.local_rank() != 0:
        logger.debug("npugraph_ex: %s", line)
        return
    is_warning = outcome.state is not ClientState.INSTALLED and outcome.reason not in _NO_WARNING
    if not (is_warning and _notices.once(("outcome", outcome.state, outcome.reason), logging.WARNING, line)):
        logger.info("npugraph_ex: %s", line)


class ProgressTeller:
    """Says how far a round is: when that changes in kind, and every ten seconds of a long wait; from local rank 0."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._state: object = None
        self._next_s = 0.0

    def __call__(self, progress: Progress) -> None:
        """Called by the client for every sign of life."""
        level = logging.DEBUG
        if ranks.local_rank() == 0 and (progress.state is not self._state or progress.elapsed_s >= self._next_s):
            self._state, self._next_s = progress.state, progress.elapsed_s + _TELL_EVERY_S
            level = logging.INFO
        logger.log(level, "npugraph_ex: graph %s: static kernels %s", self._label, progress)
