"""``npgxctl verify``: every digest, and the catalog against the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.cli.admin_ask import Admin, add_options, tell
from npgxd.cli.commands import Command
from npgxd.cli.document import Node, size
from npgxd.cli.exits import VERIFY_TABLE, Exit
from npgxd.cli.page import Line, Tone
from npgxd.wire import admin
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of ``npgxctl verify``."""
    parser.add_argument(
        "--repair",
        action="store_true",
        help="set damaged things aside, drop stale rows, list unlisted kernels, remove bad views that nobody uses",
    )
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Verify, show every problem; 0 clean, 1 problems, 2 problems that could not be mended."""
    with Admin(options.socket) as daemon:
        document = daemon.ask(admin.Verify(options.repair))
    tell(options, document, lambda: page(document))
    return exit_code(document)


def exit_code(document: object) -> Exit:
    """What the answer means for a script."""
    found = Node(document)
    if not found.count("found"):
        return Exit.OK
    return Exit.PROBLEMS_LEFT if found.flag("repair") and found.count("left") else Exit.PROBLEMS


def page(document: object) -> list[Line]:
    """The answer as lines."""
    found = Node(document)
    looked = (
        f"{counted(found.count('kernels'), 'kernel')}, {counted(found.count('packages'), 'run package')}, "
        f"{counted(found.count('views'), 'view')}, {counted(found.count('rounds'), 'round')}, "
        f"{counted(found.count('pins'), 'pin')}, {counted(found.count('artifacts'), 'artifact')}, {size(found.number('bytes'))}"
    )
    problems = found.nodes("problems")
    if not found.count("found"):
        return [Line("verified", looked, Tone.GOOD, mark="CLEAN")]
    lines = [Line("verified", looked, Tone.BAD, mark=counted(found.count("found"), "PROBLEM", "PROBLEMS"))]
    for problem in problems:
        done = problem.text("done", "")
        text = f"{problem.text('name')}: {problem.text('detail')}" + (f"; {done}" if done else "")
        lines.append(Line("", text, Tone.NOTE if done else Tone.BAD, mark=problem.text("kind"), indent=2))
    if found.count("found") > len(problems):
        lines.append(Line("", f"and {found.count('found') - len(problems)} more", indent=2))
    if not found.flag("repair"):
        lines.append(Line("remedy", "npgxctl verify --repair mends what can be mended; nothing that a process uses is touched"))
    elif found.count("left"):
        left = counted(found.count("left"), "problem is", "problems are")
        lines.append(Line("remedy", f"{left} left: do what each line says, and verify again", Tone.BAD))
    return lines


COMMAND = Command("verify", "check every kernel, package and view against its digest", VERIFY_TABLE, configure, run)
