"""``npgxctl drain`` and ``shutdown``: end the daemon, after what runs or at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.cli.admin_ask import Admin, DaemonGone, add_options, tell
from npgxd.cli.commands import Command
from npgxd.cli.document import Node
from npgxd.cli.exits import ADMIN_TABLE, Exit
from npgxd.cli.page import Line, Tone
from npgxd.wire import admin

if TYPE_CHECKING:
    import argparse


def _ask(message: admin.Drain | admin.Shutdown, options: argparse.Namespace, text: str) -> int:
    with Admin(options.socket) as daemon:
        try:
            document = daemon.ask(message)
        except DaemonGone:  # what was asked for came before the words for it
            document = {"state": "ENDED"}
    tell(options, document, lambda: [Line("daemon", text, Tone.NOTE, mark=Node(document).text("state"))])
    return Exit.OK


def _drain(options: argparse.Namespace) -> int:
    return _ask(admin.Drain(), options, "running compiles may finish; what waits is taken up at the next start")


def _shutdown(options: argparse.Namespace) -> int:
    return _ask(admin.Shutdown(), options, "it ends now; what was compiling is compiled at the next start")


DRAIN = Command("drain", "let running compiles finish, then end the daemon", ADMIN_TABLE, add_options, _drain)
SHUTDOWN = Command("shutdown", "end the daemon now", ADMIN_TABLE, add_options, _shutdown)
