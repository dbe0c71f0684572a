"""``npgxctl top``: the status, again and again: in place on a terminal, page after page elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from npgxd.cli.ask import status_document
from npgxd.cli.commands import Command
from npgxd.cli.exits import ASK_TABLE, Exit
from npgxd.cli.page import Line, Tone, show, wrapped
from npgxd.cli.status import page
from npgxd.errors import DaemonUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_S: Final = 0.1
CLEAR: Final = "\x1b[H\x1b[2J"
OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""xterm's second screen, without a cursor; and back."""


def _interval(text: str) -> float:
    seconds = float(text)
    if not LEAST_S <= seconds <= 86_400:  # noqa: PLR2004 -- a day
        raise argparse.ArgumentTypeError(f"from {LEAST_S} to 86400 seconds")
    return seconds


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return number


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interval", type=_interval, default=2.0, metavar="SECONDS", help="time between two pages (default: 2)")
    parser.add_argument("--count", type=_count, default=0, metavar="N", help="end after so many pages")
    parser.add_argument("--json", action="store_true", help="status documents, one a line")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this socket")


def _run(options: argparse.Namespace) -> int:
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not options.json
    try:
        if live:
            _live(options)
        else:
            _pages(options)
    except KeyboardInterrupt:  # that is how one ends it
        pass
    return Exit.OK


def _pages(options: argparse.Namespace) -> None:
    """DaemonUnavailable as soon as nobody answers: a script is to see that."""
    number = 0
    while True:
        document = status_document(options.socket)
        if options.json:
            print(json.dumps(document, separators=(",", ":")), flush=True)
        else:
            if number:
                print()
            show(page(document, now=time.time()))
            sys.stdout.flush()
        number += 1
        if number == options.count:
            return
        time.sleep(options.interval)


def _live(options: argparse.Namespace) -> None:
    """A daemon that goes away may come again: that is shown, and asked for again."""
    number = 0
    with _screen(), _keys() as keys:
        while True:
            try:
                lines = page(status_document(options.socket), now=time.time())
            except DaemonUnavailable as error:
                lines = [Line("daemon", str(error), Tone.BAD, mark="AWAY")]
            _draw(lines)
            number += 1
            if number == options.count or _quits(keys, options.interval):
                return


def _draw(lines: list[Line]) -> None:
    size = shutil.get_terminal_size()
    last = Line("", f"{time.strftime('%H:%M:%S')}  q ends", Tone.NOTE)
    room = size.lines - 2
    chosen: list[Line] = []
    for line in lines:
        room -= len(wrapped(line, size.columns))
        if room < 0:
            last = last._replace(text=f"{last.text}; {len(lines) - len(chosen)} lines more: npgxctl status")
            break
        chosen.append(line)
    sys.stdout.write(CLEAR)
    show([*chosen, last])
    sys.stdout.flush()


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    sys.stdout.write(OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(OWN_SCREEN)
        sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """The descriptor at which single keys can be read; None: nobody can press any."""
    import termios  # noqa: PLC0415 -- only where there is a terminal
    import tty  # noqa: PLC0415 -- as above

    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before: Any = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _quits(keys: int | None, seconds: float) -> bool:
    """Wait for the next page; whether q was pressed meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if keys is None:
            time.sleep(left)
        elif select.select([keys], [], [], left)[0]:
            pressed = os.read(keys, 32)
            if not pressed or b"q" in pressed or b"Q" in pressed:
                return True
    return False


COMMAND = Command("top", "show the status live, until q or Ctrl-C", ASK_TABLE, _configure, _run)
