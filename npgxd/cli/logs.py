"""``npgxctl logs``: what compiles that failed have left: a list of them, or the ends of one's logs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from npgxd.cli.admin_ask import Admin, add_options, tell
from npgxd.cli.commands import Command
from npgxd.cli.document import Node, clean, duration
from npgxd.cli.exits import LOGS_TABLE, Exit
from npgxd.cli.page import Line, Tone
from npgxd.errors import ConfigError, ProtocolError, RequestRefused
from npgxd.wire import admin
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    import argparse

_DIGITS: Final = 12


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job",
        nargs="?",
        default="",
        metavar="JOB",
        help="the first digits (4 or more) of a run of op_compiler, as the list has them",
    )
    add_options(parser)


def _run(options: argparse.Namespace) -> int:
    try:
        message = admin.Logs.parse({"job": options.job.lower()})
    except ProtocolError:
        raise ConfigError(f"{options.job!r} names no run of op_compiler", hint="npgxctl logs lists them") from None
    with Admin(options.socket) as daemon:
        try:
            document = daemon.ask(message)
        except RequestRefused as refused:
            if refused.refusal not in {"NOTHING_FOUND", "AMBIGUOUS"}:
                raise
            print(f"npgxctl: {refused}", file=sys.stderr)
            return Exit.PROBLEMS
    tell(options, document, lambda: page(document, now=time.time(), whole=bool(options.job)))
    return Exit.OK


def page(document: object, *, now: float, whole: bool) -> list[Line]:
    """The runs, the newest first; ``whole``: with their kernels and logs. ``now``: wall clock seconds, for ages."""
    jobs = Node(document).nodes("jobs")
    lines = [line for job in jobs for line in (_whole(job, now) if whole else [_line(job, now)])]
    return lines or [Line("logs", "no run of op_compiler has failed, as far as logs are kept")]


def _line(job: Node, now: float) -> Line:
    ago = duration(max(0.0, now - (job.number("began_at") or now)))
    text = f"{ago} ago, uid {job.text('uid')}, {job.count('failed')} of {counted(job.count('keys'), 'kernel')} failed: "
    return Line("run", text + job.text("reason"), Tone.BAD, mark=job.text("job")[:_DIGITS])


def _whole(job: Node, now: float) -> list[Line]:
    lines = [_line(job, now)]
    if job.text("command", ""):
        lines.append(Line("command", f"{job.text('command')} (exit status {job.text('exit_code', 'none')})", indent=2))
    if job.text("directory", ""):
        lines.append(Line("logs", job.text("directory"), indent=2))
    for failed in job.nodes("failures"):
        text = f"{failed.text('reason')} (key {failed.text('key')[:_DIGITS]})"
        lines.append(Line("failed", text, Tone.BAD, mark=failed.text("outcome"), indent=2))
    for log in job.nodes("logs"):
        lines.append(Line("log", clean(log.text("file", "the end of its output")), indent=2))
        lines += [Line("", line, indent=4) for line in log.lines("text")]
    return lines


COMMAND = Command("logs", "list the compiles that failed, or show what one has left", LOGS_TABLE, _configure, _run)
