"""The daemon: whether it can be reached from here, by this user, and whether it serves."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.ask import status_document
from npgxd.cli.document import Node, duration
from npgxd.cli.findings import node, silent
from npgxd.cli.findings._finding import Finding, Grade
from npgxd.client.connection import DaemonSilent
from npgxd.errors import NpgxError
from npgxd.wire.endpoint import DENIED, SYSTEM_RUNTIME_DIRECTORY, look, remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOPIC = "daemon"


def ask(environ: Mapping[str, str]) -> tuple[Node, list[Finding]]:
    """The daemon's status document, empty if there is none, and what was found on the way to it."""
    looked = look(environ)
    if not looked or looked[-1].problem:
        told = ", ".join(f"{each.path}: {each.problem}" for each in looked)
        if denied := next((each.problem for each in looked if each.problem.startswith(DENIED)), ""):
            do = f"usermod -aG {denied.rpartition(' ')[2]} {_user()}, then log in again; in a container, --group-add (docs/containers.md)"
            do = do if "group" in denied else remedy(denied)
            return Node({}), [Finding(Grade.BAD, TOPIC, f"none answers this user ({told})", do)]
        return Node({}), [Finding(Grade.BAD, TOPIC, f"none answers ({told})", _remedy(environ))]
    try:
        return Node(status_document(looked[-1].path)), []
    except DaemonSilent as error:
        return Node({}), [_silent(error, looked[-1].path, environ)]
    except NpgxError as error:
        return Node({}), [Finding(Grade.BAD, TOPIC, error.message, error.hint)]


def check(status: Node, environ: Mapping[str, str]) -> Iterator[Finding]:
    """How the daemon that answers is."""
    daemon = status.node("daemon")
    serving = daemon.text("state") == "READY"
    yield Finding(
        Grade.GOOD if serving else Grade.BAD,
        TOPIC,
        f"npgxd {daemon.text('version')}, pid {daemon.text('pid')}, up {duration(daemon.number('uptime_s'))}: {daemon.text('state')}",
        ""
        if serving
        else "it ends when what compiles has ended; systemctl start npgxd, or a rank at npgxd.socket, starts it again",
    )
    where = Path(daemon.text("socket"))
    user, system = [str(each.path) for each in look({**environ, "NPGXD_SOCKET": ""})], str(SYSTEM_RUNTIME_DIRECTORY)
    if environ.get("NPGXD_SOCKET") and str(where) not in user:
        yield Finding(
            Grade.NOTE, TOPIC, f"it is reached by NPGXD_SOCKET={environ['NPGXD_SOCKET']}", "ranks need that variable too"
        )
    elif not str(where).startswith(system) and where.is_absolute():
        yield Finding(Grade.NOTE, TOPIC, f"it is a user's own, at {where}", "ranks of other users do not use it")


def check_absent(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What would keep a daemon from starting here, where none answers."""
    from npgxd.config import SYSTEM_CONFIG, load  # noqa: PLC0415 -- where a daemon answers, its configuration is good

    try:
        config = load(None, user=bool(os.geteuid()) and not SYSTEM_CONFIG.exists(), environ=environ)
    except NpgxError as error:
        if not isinstance(error.__context__, PermissionError):  # it is not this user's to read
            yield Finding(Grade.BAD, "config", error.message, error.hint)
        return
    if config.state_dir.is_dir():
        yield from node.closed(config.state_dir, os.geteuid())
        disk = os.statvfs(config.state_dir)
        if not disk.f_bavail:
            yield Finding(
                Grade.BAD,
                "state",
                f"not one byte is free on the disk of {config.state_dir}",
                "free some there, or set another state_dir",
            )


def _silent(error: DaemonSilent, socket: Path, environ: Mapping[str, str]) -> Finding:
    """It is there, and says nothing."""
    from npgxd.config import load  # noqa: PLC0415 -- as above

    places = []
    with suppress(NpgxError):
        places.append(load(None, user=False, environ=environ).state_dir)
    why, do = silent.why(socket, places)
    if not why:
        why, do = "why cannot be seen from here", "run npgxctl doctor as root, on the node; systemctl status npgxd, and its log"
    return Finding(Grade.BAD, TOPIC, f"{error.message}: {why}", do)


def _remedy(environ: Mapping[str, str]) -> str:
    start = "systemctl enable --now npgxd, or npgxd --user for yourself alone; why one ended: journalctl -eu npgxd"
    return f"NPGXD_SOCKET is set, so no other place is tried: unset it, or {start}" if environ.get("NPGXD_SOCKET") else start


def _user() -> str:
    import pwd  # noqa: PLC0415 -- only for the advice

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
