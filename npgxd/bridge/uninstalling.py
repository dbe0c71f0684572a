"""The vendor's total uninstall, which vLLM-Ascend starts when it is told to end: it must not take kernels from neighbours.

Below CANN 9.1 all kernels of a node lie in one root, and ``static_kernel/ai_core/uninstall.sh`` removes every one, whoever uses it. A
process with the bridge that starts this script in a root where npgxd works starts a program that does nothing in its place: what is
npgxd's goes when nobody needs it, and packages of others have scripts of their own. Elsewhere the script runs as it is.
"""

from __future__ import annotations

import functools
import logging
import os
import shlex
import subprocess
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("npgxd")

_SCRIPT: Final = os.path.join("static_kernel", "ai_core", "uninstall.sh")  # noqa: PTH118 -- compared with what others wrote as text
_MARKER: Final = ".npgxd.root"  # docs/file-formats.md: beside the script, in a root where npgxd works
_NOTHING: Final = ("true",)


def spare_neighbours() -> None:
    """Let no total uninstall be started by this process where npgxd works. Calling it twice changes nothing."""
    start = subprocess.Popen.__init__
    if getattr(start, "npgxd_bridge", False):
        return

    @functools.wraps(start)
    def __init__(self: Any, args: Any, *others: Any, **named: Any) -> None:  # noqa: N807 -- it takes the place of that one
        script = _total_uninstall(args, named.get("cwd"))
        if script is not None:
            log.info("npgxd: %s is not run: it would remove kernels that other processes use; npgxd removes its own", script)
            args = _NOTHING
            named |= {"shell": False, "executable": None}
        start(self, args, *others, **named)

    __init__.npgxd_bridge = True  # type: ignore[attr-defined]
    subprocess.Popen.__init__ = __init__  # type: ignore[method-assign]


def _total_uninstall(args: Any, cwd: Any) -> str | None:
    """The script in ``args``, if it is the total uninstall of a root where npgxd works."""
    for word in _words(args):
        path = os.path.normpath(os.path.join(os.fsdecode(cwd or ""), word))  # noqa: PTH118 -- as the process would read it
        if path.endswith(_SCRIPT) and os.path.lexists(os.path.join(os.path.dirname(path), _MARKER)):  # noqa: PTH118, PTH120 -- same
            return path
    return None


def _words(args: Any) -> Iterator[str]:
    try:
        given = shlex.split(args) if isinstance(args, str) else [args] if isinstance(args, (bytes, os.PathLike)) else list(args)
        for word in given:
            yield os.fsdecode(word)
    except (TypeError, ValueError):  # Popen says what is wrong with it
        return
