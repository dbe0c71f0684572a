"""The order of CANN's version numbers, with its alphas, betas and release candidates."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_RELEASE: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})*")
_WORD: Final = re.compile(r"([A-Za-z]+)[.\-_]?(\d{0,9})")
_RANKS: Final = {"alpha": 0, "a": 0, "beta": 1, "b": 1, "rc": 2}
_UNKNOWN, _FINAL, _LATER = 3, 4, 5
_SERVICE_PACKS: Final = frozenset({"spc", "sp", "hotfix", "post"})
_PLACES: Final = 6

VersionKey = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def version_key(version: str) -> VersionKey:
    """A key to compare versions by: ``9.1.0.alpha001`` < ``9.1.0-beta.1`` < ``9.1.0.RC1`` < ``9.1.0`` < ``9.1.0.SPC001``.

    A word that is not known makes a version earlier than the release it names, since what a release brought may not be in it yet.
    What is no version at all comes before everything.
    """
    match = _RELEASE.match(version.strip())
    if match is None:
        return ((), ())
    numbers = tuple(int(part) for part in match.group().split("."))[:_PLACES]
    words = [_rank(word.lower(), digits) for word, digits in _WORD.findall(version.strip()[match.end() :])]
    return (numbers + (0,) * (_PLACES - len(numbers)), (*words, (_FINAL, 0)))


def _rank(word: str, digits: str) -> tuple[int, int]:
    rank = _LATER if word in _SERVICE_PACKS else _RANKS.get(word, _UNKNOWN)
    return (rank, int(digits or 0))


@lru_cache(maxsize=64)  # asked whenever the loop looks around
def is_at_least(version: str, release: str) -> bool:
    """Whether ``version`` is ``release`` or later; a beta of ``release`` is not."""
    return version_key(version) >= version_key(release)
