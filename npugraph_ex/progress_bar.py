"""One line on a terminal that says how far a wait is, drawn over itself and gone at the end.

Promise: nothing is written where standard error is no terminal; there is one bar a process at most; a line is never longer than the terminal
is wide, so that it can be drawn over; and the cursor rests at its beginning, so that what others print does not begin in its middle.
Drawn by hand: ranks import nothing but pyzmq and msgpack for npgxd.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Final, TextIO

from npgxd.wire.states import RoundState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.client import Progress

WIDEST: Final = 100
BAR_WIDTH: Final = 24
NARROWEST: Final = 8
_ERASE: Final = "\r\x1b[K"
_GREEN, _USUAL = "\x1b[32m", "\x1b[39m"
_owner = threading.Lock()
"""Held by the bar that is on the screen."""


class ProgressBar:
    """A bar for one round. Draws nothing while another one of this process is on the screen."""

    def __init__(self, label: str, out: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self._label = label
        self._out = out or sys.stderr
        self._colour = not environ.get("NO_COLOR")  # https://no-color.org: set and not empty
        self.possible = _is_terminal(self._out) and environ.get("TERM") != "dumb" and environ.get("NPGXD_PROGRESS") != "0"
        """Whether there is a terminal to draw on, and its user wants it."""
        self._shown = False

    def draw(self, progress: Progress) -> None:
        """Show how far it is now."""
        if not self._shown and not _owner.acquire(blocking=False):
            return
        self._shown = True
        told = line(self._label, progress, self._columns(), colour=self._colour)
        self._write(f"{_ERASE}{told}\r")

    def close(self) -> None:
        """Take the bar off the screen, if it is there."""
        if self._shown:
            self._shown = False
            self._write(_ERASE)
            _owner.release()

    def _columns(self) -> int:
        try:
            return min(WIDEST, os.get_terminal_size(self._out.fileno()).columns)
        except (OSError, ValueError):
            return 80

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # the terminal is gone
            self.possible = False


def line(label: str, progress: Progress, columns: int, *, colour: bool = False) -> str:
    """The bar as one line of less than ``columns``: what does not fit is left out, the least important first."""
    count = f"{progress.done}/{progress.total}"
    clock = _time(progress.elapsed_s)
    left = f", {_time(progress.eta_s)} left" if progress.eta_s is not None else ""
    now = ", ".join(progress.current[:3]) if progress.state is RoundState.COMPILING else str(progress.state).lower()
    if progress.stalled_s:
        now = f"nothing has moved for {_time(progress.stalled_s)}"
    name = f"npgxd{' simulated' if progress.simulated else ''} graph {label} "
    for before, after in (
        (name, f" {count} {clock}{left} {now}"),
        (name, f" {count} {clock}{left}"),
        ("", f" {count} {clock}{left}"),
        ("", f" {count}"),
    ):
        room = columns - 1 - len(before) - len(after) - len("[]")
        if room >= NARROWEST:
            return before + _bar(progress, min(room, BAR_WIDTH), colour=colour) + after.rstrip()
    return count[: max(0, columns - 1)]


def _bar(progress: Progress, width: int, *, colour: bool) -> str:
    full = width * progress.done // progress.total if progress.total else width
    done = "#" * full
    return "[" + (f"{_GREEN}{done}{_USUAL}" if colour and done else done) + "-" * (width - full) + "]"


def _time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"  # noqa: PLR2004 -- an hour


def _is_terminal(out: TextIO) -> bool:
    try:
        return out.isatty()
    except (AttributeError, ValueError):  # none, or closed
        return False
