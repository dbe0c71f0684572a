"""What the people who run the process are told: how far a round is, and one line for each graph's end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from npgxd.wire.states import ClientState, Reason
from npugraph_ex import _notices, ranks

if TYPE_CHECKING:
    from npgxd.client import Outcome, Progress
    from npugraph_ex.progress_bar import ProgressBar

logger = logging.getLogger("npugraph_ex")

_TELL_EVERY_S: Final = 10.0
_SOON_S: Final = 1.0
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
    """One line from one rank of the job: information if all is well, a warning once for each reason if not; others at debug level."""
    since = f", in use since call {changed_at}" if changed_at is not None else ""
    line = f"graph {label}: static kernels {summary(outcome, undescribed)}{since}"
    if not speaks(outcome.speaks):
        logger.debug("npugraph_ex: %s", line)
        return
    is_warning = outcome.state is not ClientState.INSTALLED and outcome.reason not in _NO_WARNING
    if not (is_warning and _notices.once(("outcome", outcome.state, outcome.reason), logging.WARNING, line)):
        logger.info("npugraph_ex: %s", line)


class ProgressTeller:
    """Says how far a round is, from one rank of the job on this node: as a bar on a terminal, else in lines, every ten seconds.

    Of a round that is over at once nothing is said but its end.
    """

    def __init__(self, label: str, *, bar: ProgressBar | None = None) -> None:
        """Without ``bar`` it is told in lines."""
        self._label = label
        self._bar = bar if bar is not None and bar.possible else None
        self._next_s = _SOON_S

    def __call__(self, progress: Progress) -> None:
        """Called by the client for every sign of life."""
        line = f"graph {self._label}: static kernels {progress}"
        logger.debug("npugraph_ex: %s", line)
        if not speaks(progress.speaks):
            self.close()  # a lower rank of this job has come
            return
        if progress.stalled_s:
            what = progress.at
            message = f"graph {self._label}: nothing has moved for {progress.stalled_s:.0f} s, longer than expected, at {what}"
            _notices.once(("stalled", progress.round), logging.WARNING, f"{message}; npgxctl status tells more")
        if progress.elapsed_s < _SOON_S:
            return
        if self._bar is not None:
            self._bar.draw(progress)
        elif progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + _TELL_EVERY_S
            logger.info("npugraph_ex: %s", line)

    def close(self) -> None:
        """The wait is over."""
        if self._bar is not None:
            self._bar.close()


def speaks(told: bool | None) -> bool:  # noqa: FBT001 -- the daemon's word
    """Whether this process is the one of its job that talks to people: as the daemon says, else by its local rank."""
    return ranks.local_rank() == 0 if told is None else told
