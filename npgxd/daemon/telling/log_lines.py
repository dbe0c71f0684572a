"""The form of the daemon's log: lines for a terminal, lines with a priority for the journal, or JSON objects.

Promise: one event is one line, whatever a client has put into it; ``journalctl -p warning`` shows the warnings and errors, and what
belongs to them.  The prefixes are those of sd-daemon(3), which journald takes off again.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIORITIES: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""syslog(3): debug, informational, warning, error, critical."""


def set_up(level: str, form: str, environ: Mapping[str, str]) -> None:
    """Log to stderr from now on: at this ``level``, as ``text`` or ``json``, for the journal if that is what reads stderr."""
    handler = logging.StreamHandler(sys.stderr)
    journal = "JOURNAL_STREAM" in environ
    handler.setFormatter(JsonLines(journal=journal) if form == "json" else TextLines(journal=journal))
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, TextLines | JsonLines):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


class TextLines(logging.Formatter):
    """Time, level and message; for the journal, which has a time of its own, a priority and the message."""

    def __init__(self, *, journal: bool) -> None:
        self._journal = journal
        super().__init__("%(levelname)s %(message)s" if journal else "%(asctime)s npgxd %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows in lines of the same priority."""
        lines = [_printable(line) for line in super().format(record).split("\n")]
        first = [" | ".join(lines)] if not record.exc_info else lines
        return "\n".join(_prefixed(record, line, journal=self._journal) for line in first)


class JsonLines(logging.Formatter):
    """One object a line: ``time`` (seconds since the epoch), ``level``, ``logger``, ``message``, and ``trace`` if there is one."""

    def __init__(self, *, journal: bool) -> None:
        self._journal = journal
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return _prefixed(record, json.dumps(told), journal=self._journal)


def _prefixed(record: logging.LogRecord, line: str, *, journal: bool) -> str:
    return f"<{PRIORITIES.get(record.levelno, 6)}>{line}" if journal else line


def _printable(line: str) -> str:
    """Without control characters: a name that a client chose must not act on a terminal."""
    return line if line.isprintable() else "".join(c if c.isprintable() or c == "\t" else "?" for c in line)
