"""``npgxctl metrics``: the daemon's metrics, as Prometheus reads them."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from npgxd.cli.ask import metrics_text
from npgxd.cli.commands import Command
from npgxd.cli.exits import ASK_TABLE, Exit
from npgxd.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SCHEMA: Final = 1
_SAMPLE: Final = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help="write them there, as a whole or not at all")
    parser.add_argument("--json", action="store_true", help="one JSON document: each sample with its labels")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this socket")


def _run(options: argparse.Namespace) -> int:
    text = metrics_text(options.socket)
    if options.json:
        text = json.dumps({"schema": SCHEMA, "samples": list(samples(text))}, indent=2) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        _write(options.output, text)
    return Exit.OK


def samples(text: str) -> Iterator[dict[str, Any]]:
    """The samples in a text that the daemon made."""
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line)
        if found is not None:
            labels = {name: _plain(value) for name, value in _LABEL.findall(found[2] or "")}
            yield {"name": found[1], "labels": labels, "value": float(found[3])}


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda escaped: "\n" if escaped[1] == "n" else escaped[1], value)


def _write(path: Path, text: str) -> None:
    """By one rename: node_exporter may read it at any moment."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            except OSError:
                os.unlink(file.name)  # noqa: PTH108 -- as it was made
                raise
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}", hint="name a file in a directory that you may write"
        ) from None


COMMAND = Command("metrics", "print the daemon's metrics for Prometheus", ASK_TABLE, _configure, _run)
