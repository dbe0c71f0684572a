"""Names that people guess for a command or an option: what does the same, and what to type instead of the others. Pure."""

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
    "who": "jobs",
    "queue": "status",
    "rounds": "status",
    "kernels": "status",
    "views": "status",
    "leases": "status",
    "users": "status",
    "ping": "status",
    "stat": "status",
    "info": "status",
    "watch": "top",
    "monitor": "top",
    "htop": "top",
    "failures": "logs",
    "failed": "logs",
    "errors": "logs",
    "log": "logs",
    "why": "explain",
    "show": "explain",
    "check": "doctor",
    "health": "doctor",
    "diagnose": "doctor",
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
    "flush": "npgxctl gc removes what nobody needs; npgxctl cache clear empties the compile cache",
    "purge": "npgxctl gc removes what nobody needs; npgxctl cache clear empties the compile cache",
    "evict": "npgxctl gc removes what nobody needs, down to [store] max_gb and min_free_gb",
    "remove": "npgxctl cache rm removes entries of the compile cache; kernels go by npgxctl gc",
    "delete": "npgxctl cache rm removes entries of the compile cache; kernels go by npgxctl gc",
    "repair": "npgxctl verify --repair",
    "fix": "npgxctl doctor says what to do; npgxctl verify --repair mends the store",
    "recompile": "npgxctl retry, for what failed; what is there is compiled anew when its toolchain changes",
    "warm": "npgxctl import takes the records of another node's outputs, and compiles them",
    "follow": "npgxctl top; the daemon's log: journalctl -fu npgxd",
    "tail": "npgxctl top; the daemon's log: journalctl -fu npgxd",
    "upgrade": "docs/operations.md, Upgrading",
    "rm": "npgxctl cache rm removes entries of the compile cache; kernels go by npgxctl gc",
    "install": "npgxctl install-units",
    "uninstall": "npgxctl install-units --remove",
}

_SAME: Final = {
    "-j": "--json",
    "-n": "--dry-run",
    "--dryrun": "--dry-run",
    "--what-if": "--dry-run",
    "--fix": "--repair",
    "-a": "--all",
    "-s": "--socket",
    "-o": "--output",
    "-i": "--interval",
    "--once": "--count",
    "--origin": "--show-origin",
    "--origins": "--show-origin",
    "--uninstall": "--remove",
}
"""Other names of options, for commands that have these."""
_ELSEWHERE: Final = {
    "--format": "--json is the form for programs",
    "-v": "--json has everything; npgxctl explain tells more of one thing",
    "--verbose": "--json has everything; npgxctl explain tells more of one thing",
    "-w": "npgxctl top shows it live",
    "--watch": "npgxctl top shows it live",
    "-f": "npgxctl top shows it live; the daemon's log: journalctl -fu npgxd",
    "--follow": "npgxctl top shows it live; the daemon's log: journalctl -fu npgxd",
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


def option_hint(word: str, options: Collection[str], command: str) -> str:
    """What to type instead of ``word``, which ``command`` (as it is called) does not know beside its ``options``."""
    name = word.partition("=")[0]
    if _SAME.get(name) in options:
        return f"did you mean {_SAME[name]}?"
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.75) if name.startswith("-") else []
    if close:
        return f"did you mean {close[0]}?"
    about = "" if name.startswith("-") else "npgxctl explain tells of one kernel, process, round or job; "
    return f"{about}{command} --help lists what it takes"
