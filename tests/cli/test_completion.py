"""The completion scripts: those of the parser as it is, and a real bash completes with its own."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from npgxd.cli.commands import all_commands
from npgxd.cli.completion import SHELLS, script

ASK = r"""
source /dev/stdin <<< "$SCRIPT"
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["npgxctl", "st"], ["status"]),
        (["npgxctl", "gc", "--d"], ["--dry-run"]),
        (["npgxctl", "completion", ""], ["bash", "zsh", "fish"]),
        (["npgxctl", ""], [command.name for command in all_commands()]),
    ],
)
def test_bash_completes(words: list[str], expected: list[str]) -> None:
    assert completed(*words) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_are_those_of_the_parser(shell: str) -> None:
    pytest.importorskip("shtab")
    from tools.completions import made

    assert script(shell) == made(shell), "make them anew: python -m tools.completions"
