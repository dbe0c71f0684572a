"""Lines of label and text, on a terminal of any width, or plain where there is none."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable


class Tone(StrEnum):
    """How a line is meant; the values are rich's styles."""

    PLAIN = ""
    HEADING = "bold"
    GOOD = "green"
    BUSY = "cyan"
    NOTE = "yellow"
    BAD = "bold red"


class Line(NamedTuple):
    """A label and a text; ``mark`` is the first part of the text, and is what the tone colours (empty: all of it)."""

    label: str
    text: str
    tone: Tone = Tone.PLAIN
    mark: str = ""
    indent: int = 0


LABEL_WIDTH = 11
MIN_WIDTH = 40


def show(lines: Iterable[Line], out: TextIO | None = None) -> None:
    """Print to a terminal, wrapped, and in colour unless NO_COLOR is set; elsewhere plain, one line each, never wrapped."""
    out = out or sys.stdout
    if not out.isatty():
        out.writelines("".join(_first(line)).rstrip() + "\n" for line in lines)
    elif os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        columns = shutil.get_terminal_size().columns
        out.writelines(piece.rstrip() + "\n" for line in lines for piece in wrapped(line, columns))
    else:
        _show_in_colour(lines, out)


def wrapped(line: Line, width: int) -> list[str]:
    """The line's text in pieces that fit beside its label; continuation lines hang under the first."""
    label, text = _first(line)
    room = max(width, MIN_WIDTH) - len(label)
    hang = 0 if line.label or not line.mark else 2  # where there is no label, the mark stands out from what follows
    pieces = textwrap.wrap(text, max(room, 16), subsequent_indent=" " * hang, break_long_words=True, break_on_hyphens=False) or [
        ""
    ]
    return [label + pieces[0], *(" " * len(label) + piece for piece in pieces[1:])]


def _first(line: Line) -> tuple[str, str]:
    label = " " * line.indent + (f"{line.label:<{LABEL_WIDTH - line.indent}}" if line.label else "")
    if len(label) > 0 and not label.endswith(" "):
        label += " "
    return label, f"{line.mark}  {line.text}".rstrip() if line.mark else line.text


def _show_in_colour(lines: Iterable[Line], out: TextIO) -> None:
    from rich.console import Console  # noqa: PLC0415 -- 50 ms that a script need not wait for
    from rich.text import Text  # noqa: PLC0415 -- as above

    console = Console(file=out, highlight=False)
    for line in lines:
        label, _ = _first(line)
        mark = line.mark.rstrip()
        for number, piece in enumerate(wrapped(line, console.width)):
            shown = Text(piece.rstrip(), no_wrap=True, overflow="ignore")
            if number == 0:
                shown.stylize(Tone.HEADING, 0, len(label))
            if not mark:
                shown.stylize(line.tone, len(label))
            elif number == 0 and piece.startswith(mark, len(label)):
                shown.stylize(line.tone, len(label), len(label) + len(mark))
            console.print(shown, soft_wrap=True)
