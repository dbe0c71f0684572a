"""The default root of this process's CANN, and whether it is the one that the daemon installed into.

Containers can have a CANN of their own at the same path: the marker that the daemon put into its root tells, the path does not.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Mapping

MARKER = "static_kernel/ai_core/.npgxd.root"
_MARKER_BYTES = 100


class RootDiffers(NpgxError):
    """This process loads its kernels from another root than the daemon installs them into, or cannot read it."""

    code = "ROOT_DIFFERS"


def default_root(environ: Mapping[str, str]) -> Path | None:
    """``$ASCEND_HOME_PATH/opp_latest`` if it resolves, else ``$ASCEND_OPP_PATH`` (docs/cann.md); None where there is no CANN."""
    home = environ.get("ASCEND_HOME_PATH", "")
    if home and Path(home, "opp_latest").exists():
        return Path(home, "opp_latest")
    opp = environ.get("ASCEND_OPP_PATH", "")
    return Path(opp) if opp else None


def check_root(root: Path, marker: str) -> None:
    """RootDiffers unless ``root`` has the daemon's marker."""
    path = root / MARKER
    hint = "mount the daemon's op root into this container at ASCEND_OPP_PATH; its owner and mode must let this user read it"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.read(descriptor, _MARKER_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RootDiffers(f"the daemon's op library is not in {root}: {path}: {error.strerror}", hint=hint) from error
    if found.strip() != marker.encode():
        raise RootDiffers(f"{root} is another op library than the daemon's", hint=hint)
