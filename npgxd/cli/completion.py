"""``npgxctl completion``: the script that lets a shell complete npgxctl's commands and options.

The scripts are made from the parser by ``tools/completions.py`` (with shtab), so that nobody needs shtab where npgxctl runs.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from npgxd.cli.commands import Command
from npgxd.cli.exits import COMPLETION_TABLE, Exit

if TYPE_CHECKING:
    import argparse

SCHEMA: Final = 1
SHELLS: Final = ("bash", "zsh", "fish")
PLACES: Final = {
    "bash": "/etc/bash_completion.d/npgxctl, or ~/.local/share/bash-completion/completions/npgxctl",
    "zsh": "a file _npgxctl in a directory of $fpath",
    "fish": "~/.config/fish/completions/npgxctl.fish",
}


def script(shell: str) -> str:
    """The script for one of ``SHELLS``."""
    return (files("npgxd.cli") / "completions" / f"npgxctl.{shell}").read_text(encoding="utf-8")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete for")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, with the script in it")


def _run(options: argparse.Namespace) -> int:
    text = script(options.shell)
    if options.json:
        print(json.dumps({"schema": SCHEMA, "shell": options.shell, "script": text}, indent=2))
    else:
        sys.stdout.write(text)
        if sys.stdout.isatty():
            print(f"npgxctl: this belongs into {PLACES[options.shell]}", file=sys.stderr)
    return Exit.OK


COMMAND = Command("completion", "print the completion script for a shell", COMPLETION_TABLE, _configure, _run)
