"""Leases: a view is this process's for as long as it lives, because a lock on a file says so.

The lock is a shared ``flock`` through a read-only descriptor that is never closed: it ends when the process does, however it
ends.  Nothing is opened outside the store that the daemon named, and no link is followed on the way.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.wire.messages import LeaseOffer, Welcome

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""To pass through: the directory of the leases cannot be listed, and need not be."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StoreNotVisible(NpgxError):
    """This process does not see the daemon's store, or not what the daemon named in it."""

    code = "STORE_NOT_VISIBLE"
    exit_code = 69


class LeaseGone(NpgxError):
    """The lease file was taken back before it was locked; a new lease is needed."""

    code = "LEASE_GONE"


class HeldLease(NamedTuple):
    """A lease that this process holds until it ends."""

    lease: str
    view: Path
    descriptor: int


_held: list[HeldLease] = []
"""For life. A forked child shares them with its parent, as it shares the kernels that were loaded."""


def held() -> tuple[HeldLease, ...]:
    """The leases of this process, in the order in which they were taken."""
    return tuple(_held)


def store_root(welcome: Welcome, environ: Mapping[str, str]) -> Path:
    """Where this process sees the daemon's store: ``NPGXD_STORE``, else where the daemon has it.

    Raises:
        StoreNotVisible: what lies there is not the store with the daemon's store id.
    """
    given = environ.get("NPGXD_STORE", "")
    root = Path(given or welcome.store_path)
    hint = f"mount the daemon's {welcome.store_path} into this container (read-only will do), and set NPGXD_STORE to where it is"
    if not root.is_absolute():
        raise StoreNotVisible(f"the store path {str(root)!r} is not absolute", hint=hint)
    try:
        descriptor = os.open(root / "STORE_ID", _FILE)
        try:
            found = os.read(descriptor, 64) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreNotVisible(f"cannot read {root}/STORE_ID: {error.strerror}", hint=hint) from error
    if found.strip() != welcome.store_id.encode():
        raise StoreNotVisible(f"{root} is another store than the daemon's ({welcome.store_id[:8]})", hint=hint)
    return root


def below(root: Path, relative: str) -> Path:
    """The directory or file ``relative`` below ``root``, which exists; StoreNotVisible if a link or ``..`` leads elsewhere."""
    os.close(_open_below(root, relative, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    return root / relative


def hold(root: Path, offer: LeaseOffer) -> HeldLease:
    """Lock the offered lease for life; LeaseGone if it was taken back meanwhile, StoreNotVisible if it is not to be seen."""
    view = below(root, offer.view_path)
    try:
        descriptor = _open_below(root, offer.lease_path, _FILE)
    except StoreNotVisible as error:
        if isinstance(error.__cause__, FileNotFoundError):  # the view beside it was there a moment ago
            raise LeaseGone(f"the lease {offer.lease} was removed") from error
        raise
    try:
        _lock(descriptor, offer)
    except BaseException:
        os.close(descriptor)
        raise
    lease = HeldLease(offer.lease, view, descriptor)
    _held.append(lease)
    return lease


def _lock(descriptor: int, offer: LeaseOffer) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise StoreNotVisible(f"the lease {offer.lease_path} is not a plain file")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise LeaseGone(f"the lease {offer.lease} cannot be locked: {error.strerror}") from error
    if not os.fstat(descriptor).st_nlink:
        raise LeaseGone(f"the lease {offer.lease} was removed")


def _open_below(root: Path, relative: str, flags: int) -> int:
    parts = relative.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise StoreNotVisible(f"the daemon named {relative!r}, which is not a path below the store")
    try:
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the root itself may be a link: the user named it
        try:
            for part in parts[:-1]:
                inner = os.open(part, _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = inner
            return os.open(parts[-1], flags, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreNotVisible(
            f"cannot open {root}/{relative}: {error.strerror}", hint="the store must be readable for this process"
        ) from error
