"""``npgxctl cache``: what the compile cache holds, why something was compiled again, and taking it out."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npgxd.cli.admin_ask import Admin, add_options, tell
from npgxd.cli.ask import cache_document
from npgxd.cli.commands import Command
from npgxd.cli.document import Node, clean, duration, size
from npgxd.cli.exits import CACHE_TABLE, Exit
from npgxd.cli.page import Line, Tone, show
from npgxd.errors import ConfigError, ProtocolError
from npgxd.wire import admin
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable

_TONES = {"proven": Tone.GOOD, "unproven": Tone.NOTE, "bad": Tone.BAD}
_KEY_DIGITS = 12


def configure(parser: argparse.ArgumentParser) -> None:
    """The sub-commands; ``ls`` where none is given."""
    _asking(parser)
    parser.set_defaults(act=_list, match="")
    acts = parser.add_subparsers(title="acts", metavar="ACT")
    for name, help_, act in (
        ("ls", "list entries, what cannot be cached and what is being built", _list),
        ("show", "everything that is known of one entry", _show),
        ("why", "why a function was compiled again", _why),
    ):
        sub = acts.add_parser(
            name, aliases=["list"] if name == "ls" else [], help=help_, description=f"{help_[0].upper()}{help_[1:]}."
        )
        sub.add_argument(
            "match",
            metavar="WHAT",
            nargs="?" if name == "ls" else None,
            default="",
            help="a key's first digits, or part of a label",
        )
        _asking(sub, inherit=True)
        sub.set_defaults(act=act)
    remove = acts.add_parser("rm", help="remove entries, and forget that a key cannot be cached", description="Remove entries.")
    remove.add_argument("key", metavar="KEY", help="the first digits (4 or more) of keys")
    add_options(remove)
    remove.set_defaults(act=_remove)
    clear = acts.add_parser("clear", help="remove all entries of all users", description="Remove all entries of all users.")
    add_options(clear)
    clear.set_defaults(act=_remove, key="")


def _asking(parser: argparse.ArgumentParser, *, inherit: bool = False) -> None:
    """``inherit``: what was said before the act counts where it is not said again."""
    options = [
        parser.add_argument("--json", action="store_true", help="print the document (docs/file-formats.md)"),
        parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this socket"),
    ]
    for option in options if inherit else ():
        option.default = argparse.SUPPRESS


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    act: Callable[[argparse.Namespace], int] = options.act
    return act(options)


def _list(options: argparse.Namespace) -> int:
    document = cache_document(options.socket, options.match)
    _tell(options, document, page(document, now=time.time()))
    return Exit.OK


def _show(options: argparse.Namespace) -> int:
    document = cache_document(options.socket, options.match)
    _tell(options, document, entry_page(document, now=time.time()))
    return Exit.OK if document.get("entries") or document.get("not_cacheable") else Exit.PROBLEMS


def _why(options: argparse.Namespace) -> int:
    document = cache_document(options.socket, options.match)
    _tell(options, document, why_page(document, now=time.time()))
    return Exit.OK if document.get("notes") or document.get("not_cacheable") else Exit.PROBLEMS


def _remove(options: argparse.Namespace) -> int:
    try:
        message = admin.CacheRemove.parse({"key": options.key})
    except ProtocolError:
        raise ConfigError(
            f"{options.key!r} names no entries", hint="give 4 or more digits of keys; npgxctl cache clear takes all"
        ) from None
    with Admin(options.socket) as daemon:
        document = daemon.ask(message)
    tell(options, document, lambda: [_removed(Node(document))])
    return Exit.OK


def _tell(options: argparse.Namespace, document: dict[str, Any], lines: list[Line]) -> None:
    if options.json:
        json.dump(document, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(lines)


# ---- pages -----------------------------------------------------------------------------------------------------------


def page(document: object, *, now: float) -> list[Line]:
    """The list. ``now``: wall clock seconds, for ages."""
    root = Node(document)
    lines = [summary_line(root.node("summary"))]
    lines += [_entry(entry, now) for entry in root.nodes("entries")]
    more = root.count("entries_total") - len(root.nodes("entries"))
    if more > 0:
        lines.append(Line("", f"and {counted(more, 'more entry', 'more entries')}; name a label or a key", indent=2))
    lines += [_build(build) for build in root.nodes("building")]
    lines += [_verdict(verdict, now) for verdict in root.nodes("not_cacheable")]
    return lines


def summary_line(summary: Node) -> Line:
    """One line about the whole cache; also in ``npgxctl status``."""
    told = [f"{counted(summary.count('entries'), 'entry', 'entries')}, {size(summary.number('bytes'))}"]
    told.append(f"{counted(summary.count('hits'), 'hit')}, {counted(summary.count('misses'), 'miss', 'misses')} so far")
    if summary.count("building"):
        told.append(
            f"{summary.count('building')} being built, {counted(summary.count('waiting'), 'process', 'processes')} waiting"
        )
    if summary.count("quarantined"):
        told.append(f"{summary.count('quarantined')} set aside as bad")
    return Line("artifacts", "; ".join(told))


def entry_page(document: object, *, now: float) -> list[Line]:
    """One or a few entries with everything that is known of them."""
    lines: list[Line] = []
    root = Node(document)
    for entry in root.nodes("entries"):
        lines.append(_entry(entry, now))
        facts = [
            ("key", "key"),
            ("digest", "sha256"),
            ("uid", "uid"),
            ("scope", "scope"),
            ("bad_reason", "reported"),
            ("problem", "problem"),
        ]
        lines += [Line(shown, entry.text(name), indent=2) for name, shown in facts if entry.text(name, "")]
        meta = entry.node("meta")
        lines += [Line(name[:24], meta.text(name), indent=2) for name in entry.names_of("meta")]
    lines += [_verdict(verdict, now) for verdict in root.nodes("not_cacheable")]
    return lines or [_nothing()]


def why_page(document: object, *, now: float) -> list[Line]:
    """What processes said of their functions, the newest first."""
    root = Node(document)
    lines = [_verdict(verdict, now) for verdict in root.nodes("not_cacheable")]
    for note in root.nodes("notes"):
        text = f"{note.text('reason', 'no reason given')} ({_ago(note, now)}, key {_digits(note)})"
        lines.append(Line(clean(note.text("label")), text, mark=note.text("outcome")))
    return lines or [_nothing()]


def _entry(entry: Node, now: float) -> Line:
    state = entry.text("state")
    told = f"{_digits(entry)}  {size(entry.number('size'))}, made {_ago(entry, now, 'made_at')}"
    return Line(entry.text("label", "-"), told, _TONES.get(state, Tone.PLAIN), mark=state, indent=2)


def _build(build: Node) -> Line:
    told = f"by pid {build.text('pid')} for {duration(build.number('elapsed_s'))}, {build.count('waiting')} waiting"
    return Line(build.text("label", "-"), f"{_digits(build)}  {told}", Tone.BUSY, mark="building", indent=2)


def _verdict(verdict: Node, now: float) -> Line:
    code = verdict.text("code", "")
    told = f"{code + ': ' if code else ''}{verdict.text('reason', 'no reason given')} ({_ago(verdict, now)})"
    mark = "not cacheable" if code else "built anew"
    return Line(verdict.text("label", "-"), f"{_digits(verdict)}  {told}", Tone.NOTE, mark=mark, indent=2)


def _removed(answer: Node) -> Line:
    text = f"{counted(answer.count('removed'), 'entry', 'entries')}, {size(answer.number('bytes'))}"
    text += f"; {counted(answer.count('forgotten'), 'verdict')} forgotten"
    return Line("cache", text, Tone.GOOD, mark="REMOVED")


def _digits(node: Node) -> str:
    return node.text("key")[:_KEY_DIGITS]


def _nothing() -> Line:
    return Line("cache", "nothing is known under that key or label; npgxctl cache ls lists what there is", Tone.NOTE)


def _ago(node: Node, now: float, name: str = "at") -> str:
    at = node.number(name)
    return f"{duration(max(0.0, now - at))} ago" if at is not None else "at an unknown time"


COMMAND = Command("cache", "show what the compile cache holds, and take entries out", CACHE_TABLE, configure, run)
