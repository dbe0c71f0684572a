"""``npgxctl gc``: a pass of removal now, or what it would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.cli.admin_ask import Admin, add_options, tell
from npgxd.cli.commands import Command
from npgxd.cli.document import Node, size
from npgxd.cli.exits import GC_TABLE, Exit
from npgxd.cli.page import Line, Tone
from npgxd.wire import admin
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    import argparse

_SPARED = "within the limits"
"""Kernels that could go, and would not make up what is missing."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of ``npgxctl gc``."""
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Remove what the budgets ask for; 0 done, 1 a budget is still not met."""
    with Admin(options.socket) as daemon:
        document = daemon.ask(admin.Gc(options.dry_run))
    tell(options, document, lambda: page(document))
    return exit_code(document)


def exit_code(document: object) -> Exit:
    """What the answer means for a script."""
    report = Node(document)
    return Exit.PROBLEMS if report.flag("over") or report.flag("short") else Exit.OK


def page(document: object) -> list[Line]:
    """The answer as lines."""
    report = Node(document)
    dry = report.flag("dry_run")
    text = (
        f"{report.count('removed')} of {counted(report.count('scanned'), 'kernel')}, {counted(report.count('packages'), 'run package')}, "
        f"{counted(report.count('views'), 'view')}, {size(report.number('freed'))}"
    )
    lines = [Line("gc", text, Tone.GOOD, mark="WOULD REMOVE" if dry else "REMOVED")]
    kept = report.node("kept")
    why = ", ".join(f"{kept.count(word)} {word}" for word in report.names_of("kept"))
    lines.append(Line("kept", f"{why or 'nothing'}; {size(report.number('bytes'))}, {size(report.number('free'))} free"))
    if report.count("retired"):
        lines.append(Line("retired", f"{counted(report.count('retired'), 'kernel')} of a replaced toolchain, first to go"))
    if report.text("hold", ""):
        lines.append(Line("on hold", report.text("hold"), Tone.NOTE))
    if dry:
        lines += [
            Line(
                "",
                f"{victim.text('id')[:16]}, {size(victim.number('size'))}, {victim.text('why')}",
                mark=victim.text("op_type"),
                indent=2,
            )
            for victim in report.nodes("victims")
        ]
    if report.flag("over") or report.flag("short"):
        what = (
            "more is kept than [store] max_gb allows" if report.flag("over") else "less is free than [store] min_free_gb asks for"
        )
        remedy = "end processes that hold leases, unpin (npgxctl pins), raise the limit, or free space on the disk"
        text = f"{what}, and the rest is needed: {remedy}"
        if spared := kept.count(_SPARED):
            text = f"{what}, and the {spared} that nobody needs would not be enough, so they stay: free space on the disk, or lower it"
        lines.append(Line("limits", text, Tone.BAD, mark="NOT MET"))
    return lines


COMMAND = Command("gc", "remove what nobody needs, down to the limits", GC_TABLE, configure, run)
