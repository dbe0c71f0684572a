"""The systemd units as this node needs them: which files, with which content. Pure, but for reading the shipped ones.

Promise: a file that was written here can be told, whole, from one that somebody has changed since: its first line has the digest of the rest.
"""

from __future__ import annotations

import grp
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MARK: Final = "# Written by npgxctl install-units, sha256 "
SYSTEM_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where a unit's ``env`` looks."""
_SHIPPED: Final = {
    "npgxd.service": "etc/systemd/system/npgxd.service",
    "npgxd.socket": "etc/systemd/system/npgxd.socket",
    "npgxd-admin.socket": "etc/systemd/system/npgxd-admin.socket",
    "npgxd.sysusers.conf": "etc/sysusers.d/npgxd.conf",
    "npgxd.tmpfiles.conf": "etc/tmpfiles.d/npgxd.conf",
}
NODE_DROP_IN: Final = "etc/systemd/system/npgxd.service.d/10-node.conf"
CONFIG: Final = "etc/npgxd/npgxd.toml"


@dataclass(frozen=True, slots=True)
class Node:
    """What the units must know of a node. Paths are absolute; ``group``: a further group that may read CANN, or empty."""

    program: Path
    """npgxd's own."""
    writes: tuple[Path, ...] = ()
    """What the daemon changes outside its state: the shared op root of a CANN before 9.1.0."""
    group: str = ""
    textfile: Path | None = None
    """``[metrics] textfile``."""
    listens: bool = False
    """Whether ``[metrics] listen`` is set."""


def planned(node: Node, toolchain: Mapping[str, object]) -> dict[str, str]:
    """Every file, by its path below the root directory, with its content."""
    made = {place: sealed(_shipped(name)) for name, place in _SHIPPED.items()}
    drop_in = "\n".join(_drop_in(node))
    if drop_in:
        made[NODE_DROP_IN] = sealed(f"# What this node needs beyond the shipped unit.\n[Service]\n{drop_in}\n")
    if toolchain:
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in toolchain.items()]
        made[CONFIG] = sealed(
            "# docs/configuration.md has every key.\n[toolchain]\n" + "\n".join(lines) + "\n",
        )
    return made


def _drop_in(node: Node) -> Iterator[str]:
    if str(node.program.parent) not in SYSTEM_PATH:
        yield "ExecStart="
        yield f"ExecStart={_quoted(node.program)} --config /etc/npgxd/npgxd.toml"
    if node.writes:
        yield "# CANN before 9.1.0 reads kernels from one shared root, which the daemon keeps."
        yield from (f"ReadWritePaths={_quoted(path)}" for path in node.writes)
    if node.group:
        yield f"SupplementaryGroups={node.group}"
    if node.textfile is not None:
        yield "# [metrics] textfile; the user npgxd must be allowed to write there, too. A directory that is missing is passed over."
        yield f"ReadWritePaths={_quoted(node.textfile.parent, '-')}"
    if node.listens:
        yield "# [metrics] listen"
        yield "RestrictAddressFamilies=AF_INET AF_INET6"
        yield "IPAddressAllow=localhost"


def _quoted(path: Path, before: str = "") -> str:
    """As systemd reads it, after the sign ``before``: no specifier, no second word."""
    text = f"{before}{path}"
    if any(ord(char) < 32 for char in text) or '"' in text or "\\" in text:  # noqa: PLR2004 -- control characters
        raise ConfigError(f"{text!r} cannot stand in a unit", hint="move it to a path without quotes and control characters")
    text = text.replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if " " in text else text


def _shipped(name: str) -> str:
    packaged = files("npgxd") / "units" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    beside = Path(__file__).resolve().parents[2] / "systemd" / name  # a checkout that is installed in place
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    raise ConfigError(f"the unit {name} is missing from this installation", hint="install npgxd again, whole")


def sealed(text: str) -> str:
    """``text`` under a line that tells whether it was changed since."""
    return f"{MARK}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def is_ours(text: str) -> bool:
    """Whether this is a file as it was written here, unchanged since."""
    first, _, rest = text.partition("\n")
    return first == MARK + hashlib.sha256(rest.encode()).hexdigest()


def check_open(program: Path) -> None:
    """ConfigError if the user npgxd could not run ``program``: a service is not its installer."""
    for start in dict.fromkeys((program, program.resolve())):
        if (closed := _closed(start)) is not None:
            raise ConfigError(
                f"{closed} is closed to other users, so the user npgxd cannot run {program}",
                hint="install npgxd into an environment that all may read, such as /opt/npgxd, and call its npgxctl",
            )


def group_of(program: Path) -> str:
    """The group whose members may run ``program`` where not everybody may; empty if everybody may, or nobody but its owner."""
    closed = _closed(program)
    if closed is None or closed.stat().st_gid == 0 or not closed.stat().st_mode & stat.S_IXGRP:
        return ""
    try:
        return grp.getgrgid(closed.stat().st_gid).gr_name
    except KeyError:
        return str(closed.stat().st_gid)


def _closed(path: Path) -> Path | None:
    """The first of the directories above ``path``, and of ``path`` itself, that other users may not pass or run; None if there is none."""
    return next((part for part in [*reversed(path.parents), path] if not part.stat().st_mode & stat.S_IXOTH), None)


def program_beside(python: str) -> Path:
    """The ``npgxd`` of the environment of this ``python``; ConfigError if there is none."""
    found = Path(os.path.abspath(python)).with_name("npgxd")  # noqa: PTH100 -- a link stays one: it is the environment's
    if not os.access(found, os.X_OK):
        raise ConfigError(
            f"there is no program {found}", hint="install npgxd into this environment, or name its program with --program"
        )
    return found
