"""What every command of npgxctl promises: a table of exit codes, JSON with a schema, 64, 69 and 74, and names that people guess."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from npgxd.cli import top
from npgxd.cli.commands import all_commands
from npgxd.cli.exits import Exit
from npgxd.cli.guessing import ALIASES, HINTS
from npgxd.cli.main import build_parser, main
from npgxd.cli.page import show
from npgxd.cli.status import page
from npgxd.errors import DaemonUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = [command.name for command in all_commands()]
ASKING = {
    "status": [],
    "top": [],
    "jobs": [],
    "explain": ["1234"],
    "logs": [],
    "retry": ["--all"],
    "cache": ["ls"],
    "verify": [],
    "gc": [],
    "pin": ["abcd"],
    "unpin": ["abcd"],
    "pins": [],
    "metrics": [],
    "trace": [],
    "drain": [],
    "shutdown": [],
}
"""Commands that ask a daemon, with the arguments that they need."""
OFFLINE = {"config": ["--config", os.devnull], "completion": ["bash"], "doctor": [], "install-units": ["--dry-run"]}
ELSEWHERE = {"import"}
"""It reads files first; tests/cli/test_admin_pages.py and tests/system have it."""


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("NPGXD_SOCKET", str(tmp_path / "npgxd.sock"))
    return


def parser_of(name: str) -> argparse.ArgumentParser:
    (commands,) = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return commands.choices[name]


def test_every_command_is_looked_at_here() -> None:
    assert set(NAMES) == set(ASKING) | set(OFFLINE) | ELSEWHERE


@pytest.mark.parametrize("name", NAMES)
def test_the_help_has_a_table_of_exit_codes_and_json_is_offered(name: str) -> None:
    text = parser_of(name).format_help()
    assert "exit codes:\n  0 " in text
    assert "\n  64  " in text
    inner = [each for each in parser_of(name)._actions if isinstance(each, argparse._SubParsersAction)]
    parsers = [*inner[0].choices.values()] if inner else [parser_of(name)]
    assert all("--json" in each._option_string_actions for each in parsers)
    assert all(max(map(len, command.summary.split())) < 40 for command in all_commands())


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_wrong_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, *ASKING.get(name, OFFLINE.get(name, [])), "--no-such-option"])
    assert ended.value.code == Exit.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "usage: npgxctl" in shown.err


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_without_a_daemon_the_code_is_69_and_nothing_is_on_stdout(
    name: str, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, *ASKING[name], *form]) == Exit.UNAVAILABLE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("npgxctl: no daemon")


@pytest.mark.parametrize("name", sorted(set(OFFLINE) - {"install-units"}))
def test_json_is_one_document_with_a_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, *OFFLINE[name], "--json"]) in {Exit.OK, Exit.PROBLEMS}
    assert json.loads(capsys.readouterr().out)["schema"] == 1


@pytest.mark.parametrize("name", ["completion", "config"])
def test_a_reader_that_has_gone_is_no_news(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main([name, *OFFLINE[name]]) == Exit.OUTPUT
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("guess", ALIASES)
def test_a_guessed_name_is_the_command_that_it_means(guess: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ALIASES[guess] in NAMES
    assert guess not in NAMES
    with pytest.raises(SystemExit) as ended:
        main([guess, "--help"])
    assert ended.value.code == 0
    assert f"usage: npgxctl {ALIASES[guess]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["status", "-j"], "did you mean --json?"),
        (["status", "--jsn"], "did you mean --json?"),
        (["status", "--watch"], "npgxctl top"),
        (["status", "9f3c52aa"], "npgxctl explain"),
        (["gc", "-n"], "did you mean --dry-run?"),
        (["gc", "--force"], "npgxctl gc --help"),
        (["verify", "--fix"], "did you mean --repair?"),
        (["logs", "-f"], "journalctl -fu npgxd"),
        (["config", "--origin"], "did you mean --show-origin?"),
        (["cache", "ls", "-j"], "did you mean --json?"),
        (["top", "--once"], "did you mean --count?"),
        (["--json", "status"], "npgxctl status --json"),
        (["--socket", "/tmp/x", "status"], "options come after the command"),
    ],
)
def test_an_option_that_is_guessed_is_answered_with_what_to_type(
    typed: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert ended.value.code == Exit.USAGE
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.startswith(f"usage: npgxctl {typed[0]}" if typed[0] in NAMES else "usage: npgxctl")


def test_help_and_version_are_given_as_many_programs_give_them(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, told in ((["help"], "commands:"), (["help", "why"], "usage: npgxctl explain"), (["version"], "npgxctl 0")):
        with pytest.raises(SystemExit) as ended:
            main(typed)
        assert ended.value.code == 0
        assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "told"),
    [("statsu", "did you mean 'npgxctl status'?"), ("jbos", "npgxctl jobs"), ("xyzzy", "npgxctl --help"), *HINTS.items()],
)
def test_a_name_that_is_none_is_told_what_to_type(typed: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([typed])
    assert ended.value.code == Exit.USAGE
    assert told in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colour", [False, True])
def test_a_narrow_terminal_is_never_exceeded_and_clients_cannot_write_escape_sequences(
    document: dict, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    document["jobs"][0]["program"] = "evil\x1b[2J\x07.py"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    show(page(document, now=0.0), out)
    text = out.getvalue()
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    if not colour:
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 40


# ---- top -------------------------------------------------------------------------------------------------------------


def test_top_prints_page_after_page_where_there_is_no_terminal(
    document: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "status_document", lambda _socket: document)
    assert main(["top", "--interval", "0.1", "--count", "2"]) == Exit.OK
    shown = capsys.readouterr().out
    assert shown.count("npgxd 0.") == 2 or shown.count("pid ") >= 2
    assert "\x1b" not in shown
    assert main(["top", "--interval", "0.1", "--count", "3", "--json"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["schema"] for line in lines] == [1, 1, 1]


@pytest.mark.parametrize("wrong", [["--interval", "0"], ["--interval", "nan"], ["--interval", "x"], ["--count", "0"]])
def test_top_refuses_what_is_no_interval(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", *wrong])
    assert ended.value.code == Exit.USAGE


def test_top_draws_in_place_within_the_screen_and_gives_it_back(document: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([document, DaemonUnavailable("no daemon answers", hint="start it"), document])

    def answer(_socket: object) -> dict:
        told = next(answers)
        if isinstance(told, Exception):
            raise told
        return told

    monkeypatch.setattr(top, "status_document", answer)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "40"), ("LINES", "12"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["top", "--interval", "0.1", "--count", "3"]) == Exit.OK
    text = out.getvalue()
    assert text.startswith(top.OTHER_SCREEN)
    assert text.endswith(top.OWN_SCREEN)
    pages = text.removeprefix(top.OTHER_SCREEN).removesuffix(top.OWN_SCREEN).split(top.CLEAR)[1:]
    assert len(pages) == 3
    assert "AWAY" in pages[1]
    for drawn in pages:
        assert len(drawn.splitlines()) <= 12
        assert max(map(len, drawn.splitlines())) <= 40
    assert "lines more" in pages[0].replace("\n", " ")


def test_q_ends_top_and_the_terminal_is_as_before(document: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    import pty
    import termios

    monkeypatch.setattr(top, "status_document", lambda _socket: document)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    with os.fdopen(theirs, "r") as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        os.write(ours, b"q\n")
        assert main(["top", "--interval", "600"]) == Exit.OK
        assert termios.tcgetattr(theirs)[3] == before[3]
    os.close(ours)
    assert out.getvalue().endswith(top.OWN_SCREEN)
