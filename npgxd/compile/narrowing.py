"""When a whole run ends badly because of one of its kernels: which of them are tried in which company next. Pure.

op_compiler names no culprit when it dies.  Its log shows which kernels were at work, and one of those it was, most likely; what it had
finished, or not begun, is beyond suspicion for now.  So the suspects are halved, and each half is tried by itself: a culprit among n
is found in about log2(n) further runs, and nobody else waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Seen(StrEnum):
    """Where op_compiler was with a kernel when its run ended, as its log shows it."""

    FINISHED = "finished"
    WORKING = "working"
    UNTOUCHED = "untouched"


@dataclass(frozen=True, slots=True)
class Split:
    """Who goes on freely, and the parts that keep to themselves, each tried without the others."""

    free: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]


def narrow(run: Mapping[str, Seen]) -> Split:
    """Split the keys of a run that failed as a whole.

    Without evidence against any one of them (all were finished, or none was begun) all go on freely: it was not a kernel's doing.
    """
    suspects = tuple(key for key, seen in run.items() if seen is Seen.WORKING)
    if not suspects and len(set(run.values())) > 1:
        suspects = tuple(key for key, seen in run.items() if seen is Seen.UNTOUCHED)
    accused = frozenset(suspects)
    free = tuple(key for key in run if key not in accused)
    half = (len(suspects) + 1) // 2
    return Split(free, tuple(part for part in (suspects[:half], suspects[half:]) if part))
