"""``npgxctl config``: the configuration that a daemon would start with here, and where each value is written."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npgxd.cli.ask import status_document
from npgxd.cli.commands import Command
from npgxd.cli.document import Node, clean
from npgxd.cli.exits import CONFIG_TABLE, Exit
from npgxd.cli.page import Line, Tone, show
from npgxd.errors import NpgxError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from npgxd.config import Config

SCHEMA = 1
DEFAULT = "default"


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="read this file instead of the usual one")
    parser.add_argument("--user", action="store_true", help="the configuration of `npgxd --user`")
    parser.add_argument("--show-origin", action="store_true", help="say which file or variable sets each key")
    parser.add_argument("--set", action="store_true", dest="only_set", help="only the keys that are set somewhere")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, with the origins")


def _run(options: argparse.Namespace) -> int:
    from npgxd.config import load  # noqa: PLC0415 -- npgxctl status need not read it

    config = load(options.config, user=options.user, environ=os.environ)
    told = [entry for entry in _entries(config, os.environ) if not options.only_set or entry["origin"] != DEFAULT]
    if options.json:
        print(json.dumps({"schema": SCHEMA, "source": config.source, "keys": told}, indent=2))
        return Exit.OK
    show(_lines(config, told, show_origin=options.show_origin))
    if options.config is None and (other := _daemons_own(config.source)):
        print(f"npgxctl: {other}", file=sys.stderr)
    return Exit.OK


def _daemons_own(source: str) -> str:
    """What to type for the configuration of the daemon that answers here, where that is another one; empty where none answers."""
    try:
        daemon = Node(status_document(None)).node("daemon")
    except NpgxError:
        return ""
    file = daemon.text("config", source)
    if file == source:
        return ""
    asked = f": npgxctl config --config {shlex.quote(file)}" if Path(file).is_absolute() else ""
    return f"this is not the configuration of the daemon that answers here (pid {daemon.text('pid')}), which has {file}{asked}"


def _entries(config: Config, environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    from npgxd.config import SECTIONS, from_text, needs_restart  # noqa: PLC0415 -- as above

    used = {"daemon.state_dir": config.state_dir, "daemon.runtime_dir": config.runtime_dir}
    for section, kind in SECTIONS.items():
        for item in fields(kind):
            name = f"{section}.{item.name}"
            value = used.get(name, getattr(getattr(config, section), item.name))
            plain = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            origin = config.origins.get(name, DEFAULT)
            variable = item.metadata.get("variable", "")
            if not plain and environ.get(variable):  # where no key says it, the daemon goes by CANN's own variables
                plain, origin = from_text(item.default, environ[variable]), variable
            yield {
                "section": section,
                "key": item.name,
                "value": plain,
                "origin": origin,
                "meaning": item.metadata["meaning"],
                "restart": needs_restart(name),
            }


def _lines(config: Config, told: list[dict[str, Any]], *, show_origin: bool) -> Iterator[Line]:
    yield Line("", clean(config.source), Tone.HEADING)
    section = ""
    for entry in told:
        if entry["section"] != section:
            section = entry["section"]
            yield Line("", f"[{section}]", Tone.HEADING)
        text = f"{entry['key']} = {_toml(entry['value'])}"
        set_here = entry["origin"] != DEFAULT
        if show_origin:
            text += f"    # {clean(entry['origin'])}"
            text += "; a change needs a restart" if entry["restart"] else ""
        yield Line("", text, Tone.GOOD if set_here else Tone.PLAIN)


def _toml(value: object) -> str:
    """As a configuration file has it."""
    return json.dumps("" if value is None else value, ensure_ascii=False)


COMMAND = Command("config", "show the configuration that a daemon would start with here", CONFIG_TABLE, _configure, _run)
