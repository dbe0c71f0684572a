"""``npgxctl jobs``: who is connected, one line a job, or one a process."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from npgxd.cli.ask import status_document
from npgxd.cli.commands import Command
from npgxd.cli.document import Node
from npgxd.cli.exits import ASK_TABLE, Exit
from npgxd.cli.page import Line, Tone, show
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    import argparse

SCHEMA: Final = 1
_ORDER: Final = [
    (ClientState.DEGRADED, Tone.BAD),
    (ClientState.DISABLED, Tone.NOTE),
    (ClientState.RECORDING, Tone.BUSY),
    (ClientState.QUEUED, Tone.BUSY),
    (ClientState.COMPILING, Tone.BUSY),
    (ClientState.INSTALLED, Tone.GOOD),
    (ClientState.CONNECTED, Tone.PLAIN),
]
"""The first state that a rank of a job is in gives the tone of the job's line."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout: the status document's jobs")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this socket")


def _run(options: argparse.Namespace) -> int:
    document = status_document(options.socket)
    if options.json:
        told: dict[str, Any] = {"schema": SCHEMA, "jobs": document.get("jobs", [])}
        json.dump(told, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(page(document))
    return Exit.OK


def page(document: object) -> list[Line]:
    """One line a job, the ones in trouble first."""
    lines = [_job(job) for job in Node(document).nodes("jobs")]
    return [line for _, line in sorted(lines, key=lambda each: each[0])] or [Line("jobs", "no process is connected")]


def _job(job: Node) -> tuple[int, Line]:
    states = Counter(rank.text("state") for rank in job.nodes("ranks"))
    place = next((place for place, (state, _) in enumerate(_ORDER) if states[state]), len(_ORDER) - 1)
    told = ", ".join(f"{states[state]} {state}" for state, _ in _ORDER if states[state])
    text = f"{job.text('program')}, uid {job.text('uid')}, {counted(job.count('ranks_total'), 'rank')}: {told}"
    return place, Line("job", text, _ORDER[place][1], mark=job.text("job"))


COMMAND = Command("jobs", "list the jobs that are connected, and the states of their ranks", ASK_TABLE, _configure, _run)
