"""The messages by which the ranks of a job agree on the call at which a graph changes to kernels that came late.

A rank says where it stands, over and over; the daemon answers with what it is to do.  Both are whole each time, so that any of them may
be lost, late or sent again, and a restarted daemon knows all as soon as every rank has spoken (docs/protocol.md, "Switching late").
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from npgxd.wire._fields import flag, integer, number, optional, sequence, text, word
from npgxd.wire.form import COUNT, RANK, ROUND_ID, Message, bounded
from npgxd.wire.limits import MAX_TEXT
from npgxd.wire.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PARTNERS: Final = 1024
"""Ranks that one graph exchanges data with, at most; more are never all on one node."""


class SwitchStep(StrEnum):
    """What a rank is to do next."""

    WAIT = "WAIT"  # others are not ready yet: ask again
    ARM = "ARM"  # do not begin call ``at`` without a decision, and say so
    COMMIT = "COMMIT"  # all have said so: the new kernels are taken into use at call ``at``
    NEVER = "NEVER"  # no agreement will be reached; ``reason`` says why


@plain
class Switch(Message):
    """Client to daemon: where this rank stands with one graph whose kernels it has leased and not taken into use.

    ``member`` is chosen at random for the graph and kept over connections; ``turn`` grows with each message.  ``call`` is the number of
    calls that have begun.  ``rank`` is this process's rank in the job, ``partners`` are the ranks that the graph exchanges data with (none:
    it has no collectives).  ``ballot`` and ``at`` repeat the proposal for which it is armed; ``committed``: it knows that this was decided.
    ``over``: it has changed, or will not.
    """

    op: ClassVar[str] = "switch"
    member: str = bounded(ROUND_ID)
    turn: int = bounded(COUNT)
    graph: str = bounded(text())
    call: int = bounded(COUNT)
    calls_per_s: float = bounded(number(0, 1e9), 0.0)
    rank: int | None = bounded(RANK, None)
    partners: tuple[int, ...] = bounded(sequence(integer(0, 1_000_000), MAX_PARTNERS), tuple)
    ballot: str | None = bounded(optional(ROUND_ID), None)
    at: int = bounded(COUNT, 0)
    committed: bool = bounded(flag, default=False)
    over: bool = bounded(flag, default=False)


@plain
class Switching(Message):
    """Answer to switch. ``members`` tells how many ranks take part."""

    op: ClassVar[str] = "switching"
    step: SwitchStep = bounded(word(SwitchStep))
    ballot: str | None = bounded(optional(ROUND_ID), None)
    at: int = bounded(COUNT, 0)
    members: int = bounded(COUNT, 0)
    reason: str = bounded(text(MAX_TEXT), "")


REQUESTS: Mapping[str, type[Message]] = {Switch.op: Switch}
REPLIES: Mapping[str, type[Message]] = {Switching.op: Switching}
