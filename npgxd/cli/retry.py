"""``npgxctl retry``: forget what is remembered as failed, so that it is compiled when it is asked for again."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from npgxd.cli.admin_ask import Admin, add_options, tell
from npgxd.cli.commands import Command
from npgxd.cli.document import Node
from npgxd.cli.exits import RETRY_TABLE, Exit
from npgxd.cli.page import Line, Tone
from npgxd.errors import ConfigError, ProtocolError
from npgxd.wire import admin
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_DIGITS = 12
_KEY = re.compile(r"[0-9a-f]{4,64}")
_OPERATOR = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def configure(parser: argparse.ArgumentParser) -> None:
    """Which failures: some keys, one operator's, or all; one of them is needed, so that none is cleared by mistake."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("keys", nargs="*", default=[], metavar="KEY", help="the first digits (4 or more) of keys")
    which.add_argument("--op", metavar="OP", default="", help="all keys of this operator, and what is counted of its changes")
    which.add_argument("--all", action="store_true", help="everything that is remembered as failed")
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Forget them; 1 if nothing of that was remembered."""
    try:
        message = admin.Retry.parse({"keys": list(options.keys), "op_type": options.op, "all": options.all})
    except ProtocolError:
        raise _misnamed(options.keys, options.op) from None
    with Admin(options.socket) as daemon:
        document = daemon.ask(message)
    root = Node(document)
    tell(options, document, lambda: _page(root))
    for key in root.names("unknown"):
        print(f"npgxctl: no failure is remembered under {key}", file=sys.stderr)
    return Exit.OK if root.count("forgotten") + root.count("churn") and not root.names("unknown") else Exit.PROBLEMS


def _misnamed(keys: Sequence[str], operator: str) -> ConfigError:
    """What is wrong with the names that were given, and what to type instead."""
    if operator:
        return ConfigError(f"{operator!r} is no operator's name", hint="npgxctl status names the operators that failed")
    strange = next((key for key in keys if not _KEY.fullmatch(key)), "")
    named = f"; for all kernels of an operator: npgxctl retry --op {strange}" if _OPERATOR.fullmatch(strange) else ""
    return ConfigError(
        f"{strange!r} is no beginning of a kernel's key (4 or more of 0-9 and a-f)",
        hint=f"npgxctl status shows the keys of kernels that failed{named}",
    )


def _page(root: Node) -> list[Line]:
    count = root.count("forgotten")
    forgotten = f"{counted(count, 'failure is', 'failures are')} forgotten: what is asked for again is compiled again"
    lines = [Line("retry", forgotten)] if count else []
    if not count and not root.names("unknown"):  # else each of those is told
        lines.append(Line("retry", "no such failure is remembered", Tone.NOTE))
    lines += [
        Line("", f"{each.text('reason')} (key {each.text('key')[:_DIGITS]})", mark=each.text("op_type"), indent=2)
        for each in root.nodes("named")
    ]
    if root.count("churn"):
        calls = counted(root.count("churn"), "operator call that keeps changing is", "operator calls that keep changing are")
        lines.append(Line("churn", f"{calls} compiled again"))
    return lines


COMMAND = Command("retry", "compile what failed when it is asked for again", RETRY_TABLE, configure, run)
