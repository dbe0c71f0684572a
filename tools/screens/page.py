"""The page of screens: where each stands in it, and the shape of one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = Path(__file__).parents[2] / "docs/screens.md"
SCREENS: Final[dict[str, tuple[str, ...]]] = {
    "status": ("status",),
    "top": ("top",),
    "explain": ("explain", "{key}"),
    "doctor": ("doctor",),
}
"""name -> the words after npgxctl."""
_COLUMN: Final = 11
"""Where the text of a line begins (npgxd.cli.page)."""
_PASSING: Final = re.compile(
    r", about [\d smh]+ left|STALLED |; nothing has moved for [\d smh]+, longer than expected|, no sign of life for [\d smh]+"
    r"|(?<=compiler processes) \(.*?\)|removal last gc .* B (?=cache)"
)
"""What a status has of the moment, or of the machine, that another one need not have."""


def replaced(text: str, name: str, command: Sequence[str], screen: str) -> str:
    """``text`` with another screen in the place of ``name``."""
    made = f"<!-- screen {name} -->\n```console\n$ {' '.join(command)}\n{screen}\n```\n<!-- end -->"
    new, times = _place(name).subn(lambda _: made, text)
    if times != 1:
        raise SystemExit(f"docs/screens.md has {times} places for the screen {name}")
    return new


def shown(text: str, name: str) -> str:
    """The screen that stands in ``text``, without its prompt."""
    found = _place(name).search(text)
    if found is None:
        raise SystemExit(f"docs/screens.md has no screen {name}")
    return found[1].partition("\n")[2]


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- screen {name} -->\n```console\n(.*?)\n```\n<!-- end -->", re.DOTALL)


def words(screen: str) -> Counter[str]:
    """How often each word stands there, however the lines are wrapped; what is of one node or one moment is left out."""
    told = _PASSING.sub(" ", " ".join(screen.split()))
    return Counter(word for word in told.split() if not _varies(word))


def lines(screen: str) -> list[str]:
    """Its lines, wrapped or not, with a dot for what is of one node or one moment."""
    joined: list[str] = []
    for line in screen.splitlines():
        if joined and line.startswith(" " * _COLUMN):
            joined[-1] += f" {line.strip()}"
        elif line.strip():
            joined.append(line)
    return [" ".join("." if _varies(word) else word for word in line.split()) for line in joined]


def _varies(word: str) -> bool:
    """Numbers, digests, paths and units differ from day to day."""
    bare = word.strip(",;()")
    return bool(re.search(r"[\d/]", bare)) or bare in {"B", "kB", "MB", "GB", "TB", "s", "min", "h", "d"}
