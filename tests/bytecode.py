"""The project's own modules, compiled before the first test: it starts hundreds of processes, and each of them imports some."""

from __future__ import annotations

import compileall
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("npgxd", "npugraph_ex", "tools")


def compile_own_modules() -> None:
    """What is compiled lies beside its source, as always, and what is up to date there stays.

    Python does this by itself at the first import, unless it is told to write nothing (``PYTHONDONTWRITEBYTECODE``): then every
    process would compile for itself all that it imports, which costs a daemon as much as the rest of its start.
    """
    for package in PACKAGES:
        compileall.compile_dir(ROOT / package, quiet=2)  # a checkout that cannot be written is tested all the same
