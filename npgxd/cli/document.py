"""Reading a JSON document that may lack anything, and text that a client may have chosen."""

from __future__ import annotations

from collections.abc import Mapping

MISSING = "?"


def clean(value: str) -> str:
    """``value`` with everything that is not printable escaped: a program's name must not act on an administrator's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in value)


class Node:
    """One object of the document. A missing or wrongly typed member is shown as such, and is never an error."""

    def __init__(self, value: object) -> None:
        self._value: Mapping[str, object] = value if isinstance(value, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._value)

    def node(self, name: str) -> Node:
        """The object ``name``; empty if there is none."""
        return Node(self._value.get(name))

    def nodes(self, name: str) -> list[Node]:
        """The objects in the list ``name``."""
        value = self._value.get(name)
        return [Node(item) for item in value] if isinstance(value, list) else []

    def names(self, name: str) -> list[str]:
        """The texts in the list ``name``."""
        value = self._value.get(name)
        return [clean(item) for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def names_of(self, name: str) -> list[str]:
        """The member names of the object ``name``."""
        value = self._value.get(name)
        return [clean(str(word)) for word in value] if isinstance(value, Mapping) else []

    def text(self, name: str, default: str = MISSING) -> str:
        """The text or number ``name``, safe to print."""
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
            return default
        return clean(str(value))

    def lines(self, name: str) -> list[str]:
        """The lines of the text ``name``, safe to print."""
        value = self._value.get(name)
        return [clean(line) for line in value.splitlines()] if isinstance(value, str) else []

    def number(self, name: str) -> float | None:
        """The number ``name``; None if there is none."""
        value = self._value.get(name)
        return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value

    def count(self, name: str) -> int:
        """The whole number ``name``, 0 if there is none."""
        value = self.number(name)
        return int(value) if value is not None else 0

    def flag(self, name: str) -> bool:
        """Whether ``name`` is true."""
        return self._value.get(name) is True


def duration(seconds: float | None) -> str:
    """``14 s``, ``3 min``, ``2 h 5 min``, ``4 d 1 h``."""
    if seconds is None or seconds != seconds or seconds < 0:  # noqa: PLR0124 -- not a number
        return MISSING
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if seconds < 60:  # noqa: PLR2004 -- a minute
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes} min"
    if hours < 48:  # noqa: PLR2004 -- two days
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def size(count: float | None) -> str:
    """``512 B``, ``3.1 MB`` (powers of 1000)."""
    if count is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 -- the next unit
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
