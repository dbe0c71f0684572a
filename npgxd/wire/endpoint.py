"""Where the daemon's socket is, for ranks, for npgxctl and for the daemon that makes it.

Promise: a socket is used only where its directory cannot belong to somebody else, asking whether anybody listens never blocks,
and what was looked at can be told.  Search order: ``NPGXD_SOCKET`` (then nothing else), the system's, the user's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.errors import ConfigError, DaemonUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_RUNTIME_DIRECTORY: Final = Path("/run/npgxd")
SOCKET_NAME: Final = "npgxd.sock"
ADMIN_SOCKET_NAME: Final = "admin.sock"
MAX_SOCKET_PATH: Final = 107
"""Bytes: sun_path has 108 on Linux, one of them for the final NUL (unix(7))."""
DENIED: Final = "permission denied"
"""How the problem of a socket begins that is there, and not for this user."""
_NOT_MAPPED: Final = 65534
"""What a user namespace shows for a group that it does not have (user_namespaces(7))."""
SILENT_HINT: Final = "npgxctl doctor says whether it is stopped, or waits for its disk"
"""What to do where a daemon is there and says nothing."""
_START_HINT: Final = "Start it with 'systemctl start npgxd' or 'npgxd --user', or set NPGXD_SOCKET"
_DENIED_HINT: Final = "Be in that group (usermod -aG GROUP USER and a new login; for a container --group-add), or ask as root"


class Candidate(NamedTuple):
    """One place where a socket may be. ``problem`` says why it is not used; empty if somebody listens there."""

    path: Path
    problem: str = ""


def user_runtime_directory(environ: Mapping[str, str], uid: int | None = None) -> Path:
    """Where a user's own daemon has its sockets: ``$XDG_RUNTIME_DIR/npgxd``, else ``/tmp/npgxd-<uid>``."""
    base = environ.get("XDG_RUNTIME_DIR", "")
    if base and Path(base).is_absolute():
        return Path(base) / "npgxd"
    return _fallback_directory(os.geteuid() if uid is None else uid)


def _fallback_directory(uid: int) -> Path:
    return Path("/tmp") / f"npgxd-{uid}"  # noqa: S108 -- used only if private_problem() finds none


def private_problem(directory: Path, uid: int | None = None) -> str:
    """Why ``directory`` is not ours alone (a link, another owner, open to others); empty if it is."""
    owner = os.geteuid() if uid is None else uid
    try:
        found = directory.lstat()
    except OSError as error:
        return _reason(error, directory)
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link" if stat.S_ISLNK(found.st_mode) else "it is not a directory"
    if found.st_uid != owner:
        return f"it belongs to uid {found.st_uid}, not {owner}"
    mode = stat.S_IMODE(found.st_mode)
    return "" if mode == 0o700 else f"its mode is {mode:04o}, not 0700"  # noqa: PLR2004 -- an octal mode


def prepare_runtime_directory(directory: Path, mode: int = 0o700) -> None:
    """Make ``directory`` with ``mode``, or accept it as it is where nobody else could replace what is in it.

    Raises:
        ConfigError: it is a link, belongs to another user, or its group or others may write to it.
    """
    hint = (
        f"remove it, or name another runtime_dir; it must be a directory of uid {os.geteuid()} that only its owner may write to"
    )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o700)
            directory.chmod(mode)  # the umask does not count
        except FileExistsError:
            pass
        found = directory.lstat()
    except OSError as error:
        raise ConfigError(f"cannot make the runtime directory {directory}: {error.strerror}", hint=hint) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"the runtime directory {directory} is a link or a file", hint=hint)
    if found.st_uid != os.geteuid():
        raise ConfigError(f"the runtime directory {directory} belongs to uid {found.st_uid}", hint=hint)
    if stat.S_IMODE(found.st_mode) & 0o022:  # also as engines mount a tmpfs or an emptyDir
        raise ConfigError(
            f"the runtime directory {directory} has mode {stat.S_IMODE(found.st_mode):04o}: others could put their sockets in it",
            hint=f"chmod go-w {directory}, or name another runtime_dir",
        )


def check_socket_path(path: Path) -> None:
    """ConfigError if ``path`` is too long for a socket, or not absolute."""
    if not path.is_absolute():
        raise ConfigError(f"the socket path {path} is not absolute", hint="give the whole path")
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise ConfigError(
            f"the socket path {path} has {length} bytes; the kernel allows {MAX_SOCKET_PATH}",
            hint="use a shorter runtime directory (runtime_dir under [daemon], or NPGXD_SOCKET for a client)",
        )


def probe(path: Path) -> str:
    """Why nobody can be reached at ``path``; empty if somebody listens there. Never blocks.

    zmq's own connect to an absent daemon succeeds silently, so this asks the kernel.
    """
    try:
        check_socket_path(path)
    except ConfigError as error:
        return error.message
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as tried:
            tried.connect(os.fspath(path))
    except BlockingIOError:
        return ""  # it listens, with a full backlog: a busy or stopped daemon, which is the caller's to find out
    except OSError as error:
        return _reason(error, path)
    return ""


def is_kept_by_manager(path: Path) -> bool:
    """Whether the service manager listens at ``path``, for a daemon that may not be up yet.

    systemd is root's process 1, or one that a container cannot see (0).
    """
    pid, uid = listener(path)
    return uid == 0 and pid in {0, 1}


def listener(path: Path) -> tuple[int, int]:
    """Pid and uid of who made the listening socket, as the kernel tells it; -1 where it does not. Never blocks."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as tried:
            tried.connect(os.fspath(path))
            pid, uid, _ = struct.unpack("3i", tried.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        return -1, -1
    return pid, uid


def candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The sockets to try, in order."""
    given = environ.get("NPGXD_SOCKET", "")
    if given:
        return (Path(given),)
    return (SYSTEM_RUNTIME_DIRECTORY / SOCKET_NAME, user_runtime_directory(environ) / SOCKET_NAME)


def look(environ: Mapping[str, str]) -> tuple[Candidate, ...]:
    """Try the candidates in order, up to the first at which somebody listens."""
    looked: list[Candidate] = []
    for path in candidates(environ):
        looked.append(Candidate(path, _unsafe(path, environ) or probe(path)))
        if not looked[-1].problem:
            break
    return tuple(looked)


def find_socket(environ: Mapping[str, str]) -> Path:
    """The socket at which a daemon listens.

    Raises:
        DaemonUnavailable: none does; ``data["looked"]`` has every candidate with its problem.
    """
    looked = look(environ)
    if looked and not looked[-1].problem:
        return looked[-1].path
    told = ", ".join(f"{each.path} ({each.problem})" for each in looked)
    raise DaemonUnavailable(
        f"no daemon answers; looked at {told}", hint=remedy(*(each.problem for each in looked)), looked=looked
    )


def remedy(*problems: str) -> str:
    """What to do where nobody answers, for these problems of the places that were looked at."""
    denied = [problem for problem in problems if problem.startswith(DENIED)]
    if any("group" in problem for problem in denied):
        return _DENIED_HINT
    if any(problem.endswith("'s own") for problem in denied):
        return "Start one of your own with 'npgxd --user', without NPGXD_SOCKET; or have the node's started by its unit"
    return "Start the daemon by its unit, in the group npgxd, or ask as root" if denied else _START_HINT


def _unsafe(path: Path, environ: Mapping[str, str]) -> str:
    """The fallback in /tmp is used only if it is ours alone: anybody could have made it first."""
    if environ.get("NPGXD_SOCKET") or path.parent != _fallback_directory(os.geteuid()):
        return ""
    return private_problem(path.parent)


def _group_of(path: Path) -> str:
    """The group that the socket is for, or its directory, where that is as far as one can see; empty for root's."""
    import grp  # noqa: PLC0415 -- only for the advice

    for place in (path, path.parent):
        try:
            gid = place.stat().st_gid
            if gid == _NOT_MAPPED:
                break
            return grp.getgrgid(gid).gr_name if gid else ""
        except KeyError:
            return str(gid)
        except OSError:
            continue
    return "npgxd"


def _owner_alone(path: Path) -> int:
    """The user, other than root, for whom alone the socket's directory is: `npgxd --user` makes it so; 0 where others may have a way."""
    with contextlib.suppress(OSError):
        found = path.parent.stat()
        return 0 if found.st_mode & 0o077 else found.st_uid
    return 0


def _reason(error: OSError, path: Path) -> str:
    match error.errno:
        case errno.ENOENT:
            return "not there"
        case errno.ECONNREFUSED:
            return "nobody listens"
        case errno.EACCES | errno.EPERM:
            if owner := _owner_alone(path):
                return f"{DENIED}; it is uid {owner}'s own"
            group = _group_of(path)
            return f"{DENIED}; its users are in the group {group}" if group else f"{DENIED}; it is for root alone"
        case _:
            return error.strerror or f"error {error.errno}"
