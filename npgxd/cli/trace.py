"""``npgxctl trace``: what ranks and workers did lately, as a file that Perfetto and Chrome open."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.ask import trace_document
from npgxd.cli.commands import Command
from npgxd.cli.document import Node
from npgxd.cli.exits import ASK_TABLE, Exit
from npgxd.errors import ConfigError, ProtocolError
from npgxd.wire.observe_messages import JOB_HELP, Trace
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    import argparse


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", default="", metavar="JOB", help=f"{JOB_HELP}; without it, all jobs")
    parser.add_argument("--json", action="store_true", help="as without it: the trace is JSON")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this socket")


def _run(options: argparse.Namespace) -> int:
    try:
        asked = Trace.parse({"job": options.job})
    except ProtocolError:
        raise ConfigError(f"{options.job!r} names no job", hint="npgxctl jobs lists them") from None
    document = trace_document(options.socket, asked.job)
    json.dump({"schema": Node(document).node("otherData").count("schema"), **document}, sys.stdout)
    sys.stdout.write("\n")
    facts = Node(document).node("otherData")
    told = f"{counted(facts.count('rounds'), 'round')} and {counted(facts.count('runs'), 'run')} of op_compiler"
    left_out = f"; {facts.count('left_out')} events are left out" if facts.count("left_out") else ""
    if not facts.count("rounds") and options.job:
        told += f": nothing is kept of a job {options.job}"
    print(f"npgxctl: {told}{left_out}; open the file at https://ui.perfetto.dev or chrome://tracing", file=sys.stderr)
    return Exit.OK


COMMAND = Command("trace", "write what ranks and workers did lately, for Perfetto or Chrome", ASK_TABLE, _configure, _run)
