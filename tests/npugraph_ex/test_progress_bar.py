"""The bar on a real terminal (a pty), and its line at every width."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import struct
import termios

import pytest

from npgxd.client import Progress
from npgxd.wire.states import RoundState
from npugraph_ex.progress_bar import ProgressBar, _owner, line
from npugraph_ex.telling import ProgressTeller

GREEN = "\x1b[32m"


def progress(done=12, **facts):
    known = {
        "state": RoundState.COMPILING,
        "records": 57,
        "unique": 57,
        "current": ("MatMulV2", "Add"),
        "elapsed_s": 83.0,
        "eta_s": 40.0,
    }
    return Progress(round="0" * 32, done=done, total=57, **(known | facts))


class Terminal:
    """A pty, and what was written to it."""

    def __init__(self, columns: int) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.out = os.fdopen(slave, "w", encoding="utf-8")

    def written(self) -> str:
        """All of it since the last look: a pty hands over what was written a little later, so a mark is written after it."""
        self.out.write("<mark>")
        self.out.flush()
        read = b""
        while not read.endswith(b"<mark>"):
            read += os.read(self.master, 65536)
        return read.decode().removesuffix("<mark>")

    def close(self) -> None:
        self.out.close()
        os.close(self.master)


@pytest.fixture(autouse=True)
def _nobody_has_the_screen():
    yield
    assert not _owner.locked()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    made = Terminal(80)
    yield made
    made.close()


def test_the_line_says_how_far_at_what_and_how_long():
    assert line("0", progress(), 100) == "npgxd graph 0 [#####-------------------] 12/57 1:23, 0:40 left MatMulV2, Add"
    assert line("0", progress(eta_s=None, state=RoundState.QUEUED), 100).endswith(" 12/57 1:23 queued")
    assert line("0", progress(elapsed_s=3723.0, eta_s=None), 100).split()[5] == "1:02:03"
    assert line("0", progress(simulated=True), 100).startswith("npgxd simulated graph 0 [")
    assert line("0", progress(stalled_s=75.0), 100).endswith("nothing has moved for 1:15")


@pytest.mark.parametrize("columns", range(1, 121))
def test_the_line_is_shorter_than_any_terminal_is_wide(columns):
    told = line("12[512,4096]", progress(), columns)
    assert len(told) < columns
    assert columns < 7 or "12/57" in told


def test_it_is_drawn_over_itself_and_gone_at_the_end(terminal):
    bar = ProgressBar("0", terminal.out, {"TERM": "xterm"})
    bar.draw(progress(1))
    bar.draw(progress(2))
    bar.close()
    bar.close()
    written = terminal.written()
    first, second = written.split("\r\x1b[K")[1:3]
    assert "1/57" in first
    assert "2/57" in second
    assert first.endswith("\r")  # what others print begins at the beginning
    assert written.endswith("\r\x1b[K")
    assert "\n" not in written


def test_the_width_of_the_terminal_counts(terminal):
    fcntl.ioctl(terminal.out, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    bar = ProgressBar("0", terminal.out, {"TERM": "xterm", "NO_COLOR": "1"})
    bar.draw(progress())
    drawn = terminal.written().removeprefix("\r\x1b[K").rstrip("\r")
    bar.close()
    assert len(drawn) < 30


def test_colour_is_left_out_where_it_is_not_wanted(terminal):
    for environ, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        bar = ProgressBar("0", terminal.out, environ)
        bar.draw(progress())
        bar.close()
        assert (GREEN in terminal.written()) is coloured


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": "xterm", "NPGXD_PROGRESS": "0"}])
def test_no_bar_where_it_cannot_be_drawn_or_is_not_wanted(terminal, environ):
    assert not ProgressBar("0", terminal.out, environ).possible


def test_no_bar_where_there_is_no_terminal():
    assert not ProgressBar("0", io.StringIO(), {"TERM": "xterm"}).possible


def test_two_rounds_of_a_process_share_the_screen_one_after_the_other(terminal):
    first, second = (ProgressBar(label, terminal.out, {"TERM": "xterm"}) for label in "01")
    first.draw(progress())
    second.draw(progress())
    assert "graph 1" not in terminal.written()
    first.close()
    second.draw(progress())
    assert "graph 1" in terminal.written()
    second.close()


def test_the_teller_draws_for_the_rank_that_speaks_alone_and_logs_nothing_meanwhile(terminal, caplog):
    caplog.set_level(logging.INFO, "npugraph_ex")
    teller = ProgressTeller("0", bar=ProgressBar("0", terminal.out, {"TERM": "xterm"}))
    teller(progress(speaks=False))
    assert terminal.written() == ""
    teller(progress(speaks=True))
    assert "12/57" in terminal.written()
    teller(progress(speaks=False))  # rank 0 has come
    assert terminal.written() == "\r\x1b[K"
    assert caplog.messages == []


def test_a_terminal_that_goes_away_hurts_nobody():
    class Gone(io.StringIO):
        def isatty(self):
            return True

        def flush(self):
            raise OSError(5, "Input/output error")

    bar = ProgressBar("0", Gone(), {"TERM": "xterm"})
    bar.draw(progress())
    bar.close()
    assert not bar.possible
