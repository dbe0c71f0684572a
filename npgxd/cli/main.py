"""The command ``npgxctl``. Exit codes: see ``npgxd.cli.exits``."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from npgxd import __version__
from npgxd.cli.commands import all_commands
from npgxd.cli.document import clean
from npgxd.cli.exits import Exit
from npgxd.cli.guessing import hint, meant, option_hint
from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that ends with 64, as sysexits.h has it; 2 and 3 are near to codes that mean something here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n")


class _CommandParser(_Parser):
    """That of one command, which answers for what it does not know itself: the usage that is shown is its own."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            told = option_hint(unknown[0], [*self._option_string_actions], self.prog)
            self.error(f"there is no {clean(unknown[0])!r} here: {told}")
        return options, unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter is no reason to fail
    options = build_parser().parse_args(_as_meant(sys.argv[1:] if arguments is None else arguments))
    try:
        return _run(options)
    except KeyboardInterrupt:
        return 130
    except Exception:  # noqa: BLE001 -- a fault of ours: all of it is shown, since that is what a report needs
        traceback.print_exc()
        print("npgxctl: this is a fault of npgxctl; please report it with the lines above", file=sys.stderr)
        return Exit.INTERNAL


def _as_meant(arguments: Sequence[str]) -> list[str]:
    """With the command's own name, where another one was guessed; ends with what to type where there is none."""
    words = list(arguments)
    known = [command.name for command in all_commands()]
    if words[:1] in (["help"], ["version"]):  # as many programs have it
        return [meant(words[1], known), "--help"] if words[0] == "help" and len(words) > 1 else [f"--{words[0]}"]
    if not words or words[0] in {"-h", "--help", "--version"}:
        return words
    if words[0].startswith("-"):
        parser = build_parser()
        parser.print_usage(sys.stderr)
        parser.exit(Exit.USAGE, "npgxctl: options come after the command: npgxctl status --json\n")
    words[0] = meant(words[0], known)
    if words[0] not in known:
        parser = build_parser()
        parser.print_usage(sys.stderr)
        parser.exit(Exit.USAGE, f"npgxctl: there is no command {clean(words[0])!r}: {hint(words[0], known)}\n")
    return words


def _run(options: argparse.Namespace) -> int:
    try:
        code = int(options.run(options))
        sys.stdout.flush()
    except NpgxError as error:  # it may name a file that anybody made
        print("npgxctl: " + "\n".join(map(clean, str(error).split("\n"))), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.filename is not None:
            raise
        if not isinstance(error, BrokenPipeError):  # a reader (a pager, head) that has seen enough is no news
            print(f"npgxctl: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OUTPUT
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands (also for completions and man pages)."""
    parser = _Parser(prog="npgxctl", description="See and control the npgxd daemon of this node.")
    parser.add_argument("--version", action="version", version=f"npgxctl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for command in all_commands():
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.configure(sub)
        sub.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
