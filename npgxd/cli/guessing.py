"""Names that people guess for a command: what does the same under another name, and what to type instead of the others. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

ALIASES: Final = {
    "ps": "jobs",
    "ls": "jobs",
    "list": "jobs",
    "ranks": "jobs",
    "queue": "status",
    "stat": "status",
    "info": "status",
    "watch": "top",
    "log": "logs",
    "why": "explain",
    "show": "explain",
    "check": "doctor",
    "prune": "gc",
    "stats": "metrics",
    "completions": "completion",
}
"""Only for what changes nothing, and for ``prune``, which removes what ``gc`` would in any case."""
HINTS: Final = {
    "start": "systemctl start npgxd, or npgxd --user",
    "stop": "npgxctl drain lets running compiles finish, npgxctl shutdown does not; under systemd: systemctl stop npgxd",
    "kill": "npgxctl shutdown",
    "restart": "systemctl restart npgxd",
    "reload": "systemctl reload npgxd, or send the daemon SIGHUP",
    "clean": "npgxctl gc removes what nobody needs; npgxctl cache rm removes entries of the compile cache",
    "clear": "npgxctl gc removes what nobody needs; npgxctl cache rm removes entries of the compile cache",
    "rm": "npgxctl cache rm removes entries of the compile cache; kernels go by npgxctl gc",
    "install": "npgxctl install-units",
    "uninstall": "npgxctl install-units --remove",
    "help": "npgxctl --help, or npgxctl COMMAND --help",
}


def meant(name: str, known: Collection[str]) -> str:
    """The command that ``name`` is another name of; ``name`` itself if it is none."""
    return name if name in known else ALIASES.get(name, name)


def hint(name: str, known: Collection[str]) -> str:
    """What to type instead of a command that there is not."""
    if name in HINTS:
        return HINTS[name]
    close = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(name, ALIASES, n=1)
    return f"did you mean 'npgxctl {meant(close[0], known)}'?" if close else "npgxctl --help lists the commands"
