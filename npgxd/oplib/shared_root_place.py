"""Where the default root of a CANN is, and whether this process may work in it: known before anything is compiled for it."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.errors import NpgxError
from npgxd.store.index import INDEX_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TREE: Final = "static_kernel"
AI_CORE: Final = "static_kernel/ai_core"
LOCK_NAME: Final = ".npgxd.lock"
_MAX_PATH: Final = 3500
"""The runtime takes paths of fewer than 4096 bytes; a kernel's own part needs the rest."""


class LibraryError(NpgxError):
    """The shared op library cannot be changed as it should be; nothing of it was changed by halves."""

    code = "OP_LIBRARY"
    exit_code = 69


class NotWritable(LibraryError):
    """This process may not install kernels into the shared op library."""

    code = "NOT_WRITABLE"
    exit_code = 77


class InUse(LibraryError):
    """Another npgxd works in this root."""


def default_root(environ: Mapping[str, str]) -> Path:
    """The root that the runtime reads: ``$ASCEND_HOME_PATH/opp_latest`` if it resolves, else ``$ASCEND_OPP_PATH`` (docs/cann.md)."""
    home = environ.get("ASCEND_HOME_PATH", "")
    if home and os.path.exists(latest := os.path.join(home, "opp_latest")):  # noqa: PTH110, PTH118 -- asked for at every look
        return Path(latest)
    if environ.get("ASCEND_OPP_PATH"):
        return Path(environ["ASCEND_OPP_PATH"])
    raise LibraryError(
        "this CANN has no default op root", hint="ASCEND_HOME_PATH and ASCEND_OPP_PATH name none: source set_env.sh"
    )


def check_root(root: Path, family: str) -> None:
    """LibraryError if kernels in ``root`` could not be found by the runtime, NotWritable if they could not be put there."""
    for spelling in {str(root.absolute()), os.path.realpath(root), os.path.realpath(root / AI_CORE)}:
        trap = next((part for part in spelling.split("/") if ".o" in part), "")
        if trap:
            raise LibraryError(
                f"the op root leads through {spelling}, which has '.o' in {trap!r}: the CANN runtime would cut kernel paths there",
                hint="install CANN below a path without '.o', or reach it by one",
            )
        if len(os.fsencode(spelling)) > _MAX_PATH:
            raise LibraryError(f"the op root's path has more than {_MAX_PATH} bytes", hint="reach CANN by a shorter path")
    if not os.path.lexists(root):
        raise LibraryError(
            f"the op root {root} does not exist", hint="install CANN's operators there, or source its set_env.sh again"
        )
    for path in _changed(root, family):
        _check_writable(path, root)
    lock = root / AI_CORE / LOCK_NAME
    if os.path.lexists(lock) and not _may(lock, os.R_OK | os.W_OK):
        raise NotWritable(
            f"{lock} belongs to {_name(lock.lstat().st_uid)}, and npgxd runs as {_name(os.geteuid())}",
            hint=f"another user's npgxd has installed there: give what it made ({root / AI_CORE}/.npgxd* and npgxd_*) to npgxd's user",
        )


def _changed(root: Path, family: str) -> Iterator[Path]:
    """The directories that are there and that installing writes into: of the chain, those with a part of ours still to be made."""
    config = root / AI_CORE / "config" / family
    chain = [root, root / TREE, root / AI_CORE, config.parent, config]
    for path, inner in zip(chain, [*chain[1:], config / INDEX_NAME], strict=True):
        if not os.path.lexists(path):
            return
        if path in {root / AI_CORE, config} or not os.path.lexists(inner):
            yield path


def _check_writable(path: Path, root: Path) -> None:
    try:
        facts = path.stat()
    except OSError as error:
        raise NotWritable(f"{path} cannot be looked at: {error.strerror}", hint=_remedy(root)) from None
    if not stat.S_ISDIR(facts.st_mode):
        raise LibraryError(f"{path} is in the way: it is not a directory", hint="move it away; nothing of CANN belongs there")
    if _may(path, os.W_OK | os.X_OK | os.R_OK):
        return
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise NotWritable(
            f"{path} is on a read-only file system",
            hint=f"let the daemon write there (under systemd: ReadWritePaths={root} in a drop-in), or use CANN 9.1.0 or later",
        )
    raise NotWritable(
        f"{path} may not be changed by this daemon: it belongs to {_name(facts.st_uid)}, mode {stat.S_IMODE(facts.st_mode):o}, "
        f"and npgxd runs as {_name(os.geteuid())}",
        hint=_remedy(root),
    )


def explained(root: Path, number: object, message: str, hint: str) -> LibraryError:
    """What went wrong in ``root``, with what to do about it by its error number (None where there is none)."""
    if number in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return NotWritable(message, hint=_remedy(root))
    if number in {errno.ENOSPC, errno.EDQUOT}:
        return LibraryError(message, hint=f"free space on the file system of {root}: npgxd tries again by itself")
    return LibraryError(message, hint=hint)


def _remedy(root: Path) -> str:
    return f"run npgxd as the owner of {root}, or as a member of a group that may write there; or use CANN 9.1.0 or later"


def _may(path: Path, how: int) -> bool:
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)


def _name(uid: int) -> str:
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"
