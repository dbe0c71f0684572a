"""``npgxctl pin``, ``unpin`` and ``pins``: kernels that are kept, whatever the limits say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npgxd.cli.admin_ask import Admin, add_options, tell
from npgxd.cli.commands import Command
from npgxd.cli.document import Node
from npgxd.cli.exits import ADMIN_TABLE, Exit
from npgxd.cli.page import Line, Tone
from npgxd.errors import ConfigError, ProtocolError
from npgxd.wire import admin
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    import argparse

_WHAT_HELP = "the first digits (4 or more) of a kernel key, JOB/ROUND as the log has them, or view:DIGITS"


def _configure_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="WHAT", help=_WHAT_HELP)
    add_options(parser)


def _ask(kind: type[admin.PinKernels | admin.Unpin], options: argparse.Namespace) -> dict[str, Any]:
    try:
        message = kind.parse({"what": options.what})
    except ProtocolError:
        raise ConfigError(f"{options.what!r} names no kernels", hint=f"give {_WHAT_HELP}") from None
    with Admin(options.socket) as daemon:
        return daemon.ask(message)


def _run_pin(options: argparse.Namespace) -> int:
    document = _ask(admin.PinKernels, options)
    tell(options, document, lambda: [_line(Node(document).node("pin"))])
    return Exit.OK


def _run_unpin(options: argparse.Namespace) -> int:
    document = _ask(admin.Unpin, options)
    tell(options, document, lambda: [Line("unpinned", Node(document).text("unpinned"), Tone.GOOD)])
    return Exit.OK


def _run_pins(options: argparse.Namespace) -> int:
    with Admin(options.socket) as daemon:
        document = daemon.ask(admin.ListPins())
    none = [Line("pins", "none; npgxctl pin keeps kernels whatever the limits say")]
    tell(options, document, lambda: [_line(pin) for pin in Node(document).nodes("pins")] or none)
    return Exit.OK


def _line(pin: Node) -> Line:
    text = f"{counted(pin.count('keys'), 'kernel')}, {pin.count('present')} present"
    return Line("pinned", text, Tone.GOOD, mark=pin.text("name"))


PIN = Command("pin", "keep kernels, whatever the limits say", ADMIN_TABLE, _configure_what, _run_pin)
UNPIN = Command("unpin", "end a pin", ADMIN_TABLE, _configure_what, _run_unpin)
PINS = Command("pins", "list what is pinned", ADMIN_TABLE, add_options, _run_pins)
