"""The state directory: its layout, its format, and the lock that makes one daemon its owner.

Nothing in it is absolute: it can be moved, or reached through a symbolic link, and everything still hits.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

from npgxd.errors import AlreadyRunning, StateRefused, StoreError
from npgxd.store.disk import DISK, TEMPORARY_PREFIX, Disk, explained
from npgxd.store.migrate import MIGRATIONS, Migration, check_way, format_text, migrate
from npgxd.store.mounts import mount_of
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

FORMAT: Final = 1
_MAX_PATH: Final = 3000
_PUBLIC: Final = ("kernels", "packages", "views")
_NAMED: Final = ("leases",)
"""What a process may open if it was told the name, and nobody may list: whoever can open a lease can lock it, also against its owner."""
_PRIVATE: Final = ("rounds", "jobs", "staging", "quarantine")
_OWN: Final = frozenset({"STORE_ID", "instance.lock", "lost+found", *_PUBLIC, *_NAMED, *_PRIVATE})
"""What a directory may hold whose FORMAT was not written yet: our own beginnings, and what mkfs leaves."""
_ID_DIGITS: Final = 32


class StateDirectory:
    """An opened state directory, of a known format, owned by this process once ``lock`` has returned."""

    def __init__(self, path: Path, store_id: str, disk: Disk) -> None:
        self.path = path
        self.store_id = store_id
        self.disk = disk
        self._lock: int | None = None
        self.kernels = path / "kernels"
        self.packages = path / "packages"
        self.views = path / "views"
        self.leases = path / "leases"
        self.rounds = path / "rounds"
        self.jobs = path / "jobs"
        self.staging = path / "staging"
        self.quarantine = path / "quarantine"
        self.catalog = path / "catalog.sqlite"

    @classmethod
    def open(cls, path: Path, *, disk: Disk = DISK, migrations: Mapping[int, Migration] = MIGRATIONS) -> StateDirectory:
        """Lock ``path``, make what is missing in it, bring an older format up to date, and refuse, untouched, what is not known.

        Raises:
            AlreadyRunning: another daemon owns it. StateRefused: a newer or unknown format, or no place to keep state safely.
            StoreError: the disk refuses, or there are no descriptors or no memory left to look at it.
        """
        path = path.absolute()
        for spelling in (path, path.resolve()):  # the runtime may follow links before it looks for the ".o"
            _check_path(spelling)
        _check_mount(path)
        with explained("make the state directory", path):
            _make_place(path, disk)
            facts = path.stat()
        if not stat.S_ISDIR(facts.st_mode):
            raise StateRefused(f"the state directory {path} is no directory", hint="remove it, or set another state_dir")
        if facts.st_uid != os.geteuid():
            raise StateRefused(
                f"the state directory {path} belongs to uid {facts.st_uid}, this process runs as uid {os.geteuid()}",
                hint="chown it to the daemon's user, or set another state_dir",
            )
        _check_format(path, migrations)  # before the lock file, which is the first thing to be touched
        lock = _take_lock(path)
        try:
            migrate(path, _check_format(path, migrations), FORMAT, disk, migrations)
            disk.set_mode(path, 0o755)
            for name in _PUBLIC:
                disk.make_directory(path / name, 0o755, exist_ok=True)
            for name in _NAMED:
                disk.make_directory(path / name, 0o711, exist_ok=True)
            for name in _PRIVATE:
                disk.make_directory(path / name, 0o700, exist_ok=True)
            store_id = _store_id(path, disk)
            if not os.path.lexists(path / "FORMAT"):
                disk.write_file(path / "FORMAT", format_text(FORMAT).encode(), staging=path / "staging")
            # What an earlier life was killed over may be seen and not be on the disk yet: it is before anything is built on it.
            for place in (path / "kernels", path / "packages", path / "rounds", path):
                disk.fsync_directory(place)
        except BaseException:
            os.close(lock)
            raise
        state = cls(path, store_id, disk)
        state._lock = lock
        return state

    def close(self) -> None:
        """Give the directory up."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def hide(self, path: Path) -> Path:
        """Take what is to be removed out of sight by one rename: into staging, which every start empties; where it is now."""
        away = self.staging / f"dropped-{secrets.token_hex(8)}"
        self.disk.move(path, away, durable=False)
        return away

    def set_aside(self, path: Path, reason: str) -> Path:
        """Move something damaged into the quarantine, with the reason in a file beside it; where it is now."""
        target = self.quarantine / f"{path.name.lstrip('.')[:120]}-{secrets.token_hex(4)}"
        self.disk.move(path, target)
        beside = target.with_name(f"{target.name}.reason")
        self.disk.write_file(beside, f"{reason}\n".encode(), 0o600, staging=self.staging, durable=False)
        log.error("%s is damaged, and is now quarantine/%s: %s", path, target.name, reason)
        return target


def _make_place(path: Path, disk: Disk) -> None:
    """Make the directory, with those above it that are missing, so that power loss cannot take it from under what it will hold."""
    if os.path.lexists(path / "FORMAT"):
        return
    for missing in reversed([place for place in (path, *path.parents) if not place.exists()]):
        disk.make_directory(missing, exist_ok=True)
    for place in path.resolve().parents:  # also of those that are there: a life that was killed may have made them
        if os.access(place, os.R_OK | os.W_OK):
            disk.fsync_directory(place)


def _take_lock(path: Path) -> int:
    """The instance lock. Nobody else may open its file: a lock can be taken through a descriptor that can only read, too."""
    name = path / "instance.lock"
    with explained("open", name):
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchmod(fd, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 64).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise AlreadyRunning(
            f"another npgxd owns {path} (pid {holder})",
            hint="npgxctl status shows it; stop it first, or set another state_dir",
            pid=holder,
        ) from None
    mine = f"{os.getpid()}\n".encode()
    with contextlib.suppress(OSError):  # on a full disk who holds it is not told; it is held all the same
        os.pwrite(fd, mine, 0)  # in place: a file that is emptied first gives its block away
        os.ftruncate(fd, len(mine))
    return fd


def _check_format(path: Path, migrations: Mapping[int, Migration]) -> int:
    """The format of what is there (ours, where there is nothing); StateRefused unless we can read it or bring it to ours."""
    try:
        text = read_plain(path / "FORMAT", 100).decode(errors="replace")
    except StoreError as error:
        if error.no_means:
            raise
        if os.path.lexists(path / "FORMAT"):
            raise StateRefused(
                f"{path} has a FORMAT that cannot be read: {error.message}", hint="set another state_dir"
            ) from error
        with explained("list", path):
            strangers = sorted(p.name for p in path.iterdir() if p.name not in _OWN and not p.name.startswith(TEMPORARY_PREFIX))
        if strangers:
            raise StateRefused(
                f"{path} is not a state directory of npgxd, and not empty (it holds {strangers[0]!r}): nothing in it was touched",
                hint="set state_dir to a directory of its own",
            ) from None
        return FORMAT
    if text == format_text(FORMAT):
        return FORMAT
    word, _, number = text.strip().partition(" ")
    if word == "npgxd-state" and number.isdigit() and int(number) > FORMAT:
        raise StateRefused(
            f"{path} has state format {number}, this npgxd knows {FORMAT}: nothing in it was touched",
            hint="run the newer npgxd that made it, or set another state_dir",
        )
    if word == "npgxd-state" and number.isdigit() and text == format_text(int(number)):
        check_way(path, int(number), FORMAT, migrations)
        return int(number)
    raise StateRefused(
        f"{path} is of an unknown format ({text.strip()[:60]!r}): nothing in it was touched", hint="set another state_dir"
    )


def _store_id(path: Path, disk: Disk) -> str:
    name = path / "STORE_ID"
    try:
        text = read_plain(name, 100).decode(errors="replace").strip()
    except StoreError as error:
        if error.no_means:
            raise
        text = ""
    if len(text) == _ID_DIGITS and set(text) <= set("0123456789abcdef"):
        return text
    if os.path.lexists(name):
        log.warning("%s is damaged: the store has a new id, and ranks that named it by the old one do not see it", name)
    text = secrets.token_hex(_ID_DIGITS // 2)
    disk.write_file(name, f"{text}\n".encode(), staging=path / "staging")
    return text


def _check_path(path: Path) -> None:
    """The traps that docs/cann.md names: a ``.o`` in the path, a path too long; and a name that no message can carry."""
    trap = next((part for part in path.parts if ".o" in part), "")
    if trap:
        raise StateRefused(
            f"the state directory {path} has '.o' in {trap!r}: the CANN runtime would cut kernel paths there",
            hint="set a state_dir without '.o' in any part of its path",
        )
    if len(os.fsencode(path)) > _MAX_PATH:
        raise StateRefused(f"the state directory's path has more than {_MAX_PATH} bytes", hint="set a shorter state_dir")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StateRefused(f"the state directory {path!r} is not valid UTF-8", hint="set another state_dir") from None


def _check_mount(path: Path) -> None:
    """Whether locks, renames and run packages work there, by the name of the file system."""
    mount = mount_of(path)
    if mount is None:
        return
    if mount.is_network:
        raise StateRefused(
            f"{path} lies on {mount.type} ({mount.point}): locks and renames are not reliable there",
            hint="set state_dir to a local disk",
        )
    if mount.is_memory:
        log.warning(
            "%s lies on %s (%s): kernels are lost at the next boot; set state_dir to a disk", path, mount.type, mount.point
        )
    if mount.noexec:
        log.warning("%s is mounted noexec (%s): run packages may fail to install; mount it exec", path, mount.point)
