"""The completion scripts: those of the parser as it is, and bash, fish and zsh complete with theirs."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from npgxd.cli.commands import all_commands
from npgxd.cli.completion import SHELLS, script

if TYPE_CHECKING:
    from pathlib import Path

ASK = r"""
eval "$SCRIPT"
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
$(complete -p npgxctl | sed 's/.*-F \([^ ]*\) .*/\1/') npgxctl "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    told = subprocess.run(
        ["bash", "--norc", "-c", ASK.format(words=" ".join(f"'{word}'" for word in words))],
        env={"SCRIPT": script("bash"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return told.stdout.split()


CASES = [
    (["npgxctl", "sta"], "status"),
    (["npgxctl", "cache", "sh"], "show"),
    (["npgxctl", "gc", "--d"], "--dry-run"),
    (["npgxctl", "gc", "--dry-run", "--js"], "--json"),
    (["npgxctl", "completion", "zs"], "zsh"),
    (["npgxctl", "metrics", "--output", "an"], "answer.txt"),
    (["npgxctl", "import", "tre"], "tree"),
]
"""What is typed, and what the last word becomes: commands, options, choices, and files and directories where those are wanted."""
ZSH = """\
unsetopt beep list_beep; fpath=("$PWD/site" $fpath); autoload -Uz compinit; compinit -u -D
shown() { print -r -- "<<$BUFFER>>"; BUFFER=; }; zle -N shown; bindkey '^T' shown; print rea''dy
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with something to complete, and nobody's shell settings."""
    (tmp_path / "answer.txt").touch()
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"NOT TESTED: completion in {shell}: there is no {shell}")


@needs("bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        *((words, [last]) for words, last in CASES),
        (["npgxctl", "completion", ""], ["bash", "zsh", "fish"]),
        (["npgxctl", ""], [command.name for command in all_commands()]),
    ],
)
def test_bash_completes(words: list[str], expected: list[str], place: Path) -> None:
    assert completed(*words) == expected


@needs("fish")
def test_fish_completes(place: Path) -> None:
    (place / "npgxctl.fish").write_text(script("fish"))
    asked = "; echo; ".join(f"complete -C '{' '.join(words)}'" for words, _ in CASES)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source npgxctl.fish; {asked}"], capture_output=True, text=True, timeout=60, check=True
    )
    told = [[line.partition("\t")[0].rstrip("/") for line in each.splitlines()] for each in done.stdout.split("\n\n")]
    assert told == [[last] for _, last in CASES], done.stdout


@needs("zsh")
def test_zsh_completes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "site").mkdir()
    (place / "site" / "_npgxctl").write_text(script("zsh"))
    ours, theirs = pty.openpty()
    environment = {"PATH": os.defpath, "HOME": str(place), "TERM": "dumb", "PS1": ""}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as zsh:
        os.close(theirs)

        def read(until: bytes) -> bytes:
            told = b""
            while until not in told and select.select([ours], [], [], 60)[0]:
                told += os.read(ours, 65536)
            return told

        os.write(ours, ZSH.encode())
        read(b"\nready")
        for words, last in CASES:
            os.write(ours, f"{' '.join(words)}\t\x14".encode())
            told = read(b">>").decode().rpartition("<<")[2].partition(">>")[0]
            assert told.split() == [*words[:-1], last] or told.split() == [*words[:-1], f"{last}/"]
        zsh.kill()
    os.close(ours)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_are_those_of_the_parser(shell: str) -> None:
    pytest.importorskip("shtab")
    from tools.completions import made

    assert script(shell) == made(shell), "make them anew: python -m tools.completions"
