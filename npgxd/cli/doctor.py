"""``npgxctl doctor``: look at everything on this node that static kernels depend on, and say what to do about what is wrong."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.commands import Command
from npgxd.cli.document import clean
from npgxd.cli.exits import DOCTOR_TABLE, Exit
from npgxd.cli.findings import Finding, Grade, examined
from npgxd.cli.page import Line, Tone, show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

SCHEMA = 1
TONES = {Grade.GOOD: Tone.GOOD, Grade.NOTE: Tone.NOTE, Grade.BAD: Tone.BAD}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--socket", metavar="PATH", help="ask the daemon at this socket")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _run(options: argparse.Namespace) -> int:
    environ = dict(os.environ)
    if options.socket:
        environ["NPGXD_SOCKET"] = str(Path(options.socket).absolute())
    found = list(findings(environ, Path.cwd()))
    worst = Grade.BAD if any(each.grade is Grade.BAD for each in found) else Grade.GOOD
    if options.json:
        told = [{"grade": each.grade, "topic": each.topic, "text": each.text, "remedy": each.remedy} for each in found]
        print(json.dumps({"schema": SCHEMA, "findings": told}, indent=2))
    else:
        show(_lines(found))
    return Exit.OK if worst is Grade.GOOD else Exit.PROBLEMS


def findings(environ: Mapping[str, str], directory: Path) -> Iterator[Finding]:
    """Everything that was looked at, in an order in which one mends it."""
    from npgxd.cli.findings import cann, daemon, node, torch  # noqa: PLC0415 -- npgxctl status need not read them

    status, found = daemon.ask(environ)
    yield from found
    if status:
        yield from examined(daemon.TOPIC, partial(daemon.check, status, environ))
        yield from examined("state", partial(node.check_state, status))
        yield from examined(cann.TOPIC, partial(cann.check_daemons, status))
    else:
        yield from examined("config", partial(daemon.check_absent, environ))
    toolchain, found = cann.find(environ)
    yield from found
    if toolchain is not None:
        yield from examined(cann.TOPIC, partial(cann.check, toolchain, status))
        yield from examined(cann.ROOT_TOPIC, partial(cann.check_roots, toolchain))
    yield from examined(torch.TOPIC, partial(torch.check, environ))
    yield from examined("ranks", partial(node.check_ranks, environ, status))
    yield from examined("limits", node.check_limits)
    yield from examined("leftovers", partial(node.check_leftovers, directory))


def _lines(found: list[Finding]) -> Iterator[Line]:
    for each in found:
        yield Line(each.topic, clean(each.text), TONES[each.grade], mark=f"{each.grade:<5}")
        if each.remedy:
            yield Line("", clean(each.remedy), Tone.PLAIN, mark="  do:", indent=2)
    bad = sum(each.grade is Grade.BAD for each in found)
    yield Line("", "nothing is wrong" if not bad else f"{bad} to mend", Tone.GOOD if not bad else Tone.BAD)


COMMAND = Command(
    "doctor", "look at everything that static kernels depend on, and say what to do", DOCTOR_TABLE, _configure, _run
)
