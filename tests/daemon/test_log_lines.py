"""The log: one line an event, with the journal's priorities or as JSON, whatever a client has put into it."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npgxd.daemon.telling.log_lines import JsonLines, TextLines


def record(level: int, message: str, *, trouble: bool = False) -> logging.LogRecord:
    info = None
    if trouble:
        try:
            raise ValueError("broken\nin two")
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("npgxd.daemon.x", level, __file__, 1, message, (), info)


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 2)],
)
@pytest.mark.parametrize("form", [TextLines, JsonLines])
def test_each_line_for_the_journal_has_its_priority(form: type[TextLines | JsonLines], level: int, priority: int) -> None:
    lines = form(journal=True).format(record(level, "said", trouble=True)).split("\n")
    assert all(line.startswith(f"<{priority}>") for line in lines)
    assert "said" in lines[0]


def test_elsewhere_lines_have_a_time_and_a_level_and_no_priority() -> None:
    line = TextLines(journal=False).format(record(logging.INFO, "said"))
    assert line.endswith(" npgxd INFO said")
    assert not line.startswith("<")


@given(st.text())
@pytest.mark.parametrize("journal", [False, True])
def test_one_event_is_one_printable_line_whatever_is_in_it(journal: bool, text: str) -> None:
    line = TextLines(journal=journal).format(record(logging.INFO, text))
    assert all(char.isprintable() or char == "\t" for char in line)
    told = json.loads(JsonLines(journal=False).format(record(logging.INFO, text)))
    assert (told["message"], told["level"], told["logger"]) == (text, "info", "npgxd.daemon.x")
    assert JsonLines(journal=False).format(record(logging.INFO, text)).isprintable()


def test_a_fault_is_told_whole_in_one_object() -> None:
    told = json.loads(JsonLines(journal=False).format(record(logging.ERROR, "fault", trouble=True)))
    assert "ValueError: broken" in told["trace"]
