"""What the people who run a job are told of its graphs: how far a round is, and how it ended, by one rank of the job on a node."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from npgxd.client import rank_info
from npgxd.client.notice import warn_once
from npgxd.wire.states import Reason

if TYPE_CHECKING:
    from npgxd.client import Outcome, Progress

log = logging.getLogger("npgxd")

_EVERY_S: Final = 10.0
_SOON_S: Final = 1.0
_NO_WARNING: Final = frozenset({Reason.NOTHING_TO_COMPILE, Reason.DAEMON_UNAVAILABLE})
"""Nothing is wrong with the first; of an absent daemon the client has warned itself."""


def speaks(told: bool | None) -> bool:  # noqa: FBT001 -- the daemon's word
    """Whether this process is the one of its job that talks to people: as the daemon says, else by its local rank."""
    return (rank_info(os.environ).local_rank or 0) == 0 if told is None else told


class ProgressLines:
    """Says how far a round is: a line after a second, and then every ten. Of a round that is over by then only its end is told."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._next_s = _SOON_S

    def __call__(self, progress: Progress) -> None:
        """Called by the client for every sign of life."""
        if not speaks(progress.speaks):
            return
        if progress.stalled_s:
            what = progress.at
            told = f"graph {self._label}: nothing has moved for {progress.stalled_s:.0f} s, longer than expected, at {what}"
            warn_once(f"bridge stalled {progress.round}", f"{told}; npgxctl status tells more")
        if progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + _EVERY_S
            log.info("npgxd: graph %s: static kernels %s", self._label, progress)


def tell(label: str, outcome: Outcome) -> None:
    """One line a graph and job: a warning once for each reason, if the graph lacks kernels that it asked for. At debug level elsewhere."""
    if outcome.installed:
        told = f"compiled {outcome.compiled} of {outcome.unique} kernels, {outcome.hits} were there; {outcome.records} records"
    else:
        told = f"{outcome.reason}" + (f": {outcome.detail}" if outcome.detail else "")
    line = f"graph {label}: static kernels {outcome.state} ({'simulated; ' if outcome.simulated else ''}{told})"
    if not speaks(outcome.speaks):
        log.debug("npgxd: %s", line)
    elif outcome.installed or outcome.reason in _NO_WARNING:
        log.info("npgxd: %s", line)
    else:
        warn_once(f"bridge {outcome.reason}", f"{line}. {outcome.hint}")
