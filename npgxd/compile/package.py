"""The run package that one op_compiler run leaves: which one it announced, and which ones lie there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from npgxd.errors import CompileError

_SUCCESS = re.compile(r"generate run package (\S+\.run) success")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}\.run")
"""It names a file in every rank's output tree, and is shown to people."""


class SuccessLine:
    """Listens to op_compiler's stdout for ``generate run package <name>.run success`` (docs/cann.md, op_compiler)."""

    def __init__(self) -> None:
        self.announced = ""
        """The file name that was announced last; a directory in front of it does not count."""

    def hear(self, line: str) -> None:
        """Take one line of output."""
        if said := _SUCCESS.search(line):
            self.announced = Path(said[1]).name


def find_packages(out: Path) -> list[str]:
    """The names of the run packages in the output directory; CompileError if one is not a plain file, or has a strange name."""
    names: list[str] = []
    for entry in sorted(os.scandir(out), key=lambda entry: entry.name):
        if not entry.name.endswith(".run"):
            continue
        if not entry.is_file(follow_symlinks=False):
            raise CompileError(f"op_compiler left {entry.name}, which is not a plain file")
        if not _NAME.fullmatch(entry.name):
            raise CompileError(f"op_compiler left {entry.name!r}, which is no name of a run package")
        names.append(entry.name)
    return names
