"""One thing that was looked at, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Grade(StrEnum):
    """How a thing was found."""

    GOOD = "good"
    NOTE = "note"
    """Not as it should be, but nothing fails for it."""
    BAD = "bad"
    """Static kernels do not work, or not for everybody, because of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``remedy`` is what to do about it; empty only where nothing is to be done."""

    grade: Grade
    topic: str
    text: str
    remedy: str = ""


def examined(topic: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of one check; what keeps it from looking is a finding itself."""
    try:
        yield from check()
    except NpgxError as error:
        yield Finding(Grade.BAD, topic, error.message, error.hint)
    except OSError as error:
        yield Finding(Grade.NOTE, topic, f"cannot be looked at: {error}", "run npgxctl doctor as root, or as the daemon's user")
