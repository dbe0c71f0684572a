"""Text for one line of a log, of a message or of a terminal: what somebody else chose, made fit for it, and numbers of things."""

from __future__ import annotations


def one_line(text: str, most: int) -> str:
    """At most ``most`` characters of ``text``; whatever would start a new line, move a cursor or is not valid Unicode is a ``?``."""
    return "".join(char if char.isprintable() else "?" for char in text[:most])


def counted(number: int, one: str, many: str = "") -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {one if number == 1 else many or one + 's'}"
