"""Older state directories: brought to the present format beside the old tree, which stays as it is until the new one is complete.

Everything happens inside the state directory, since the directory above it may be a mount point or not ours.  ``migration/new`` gets
every top-level name that changes, complete and on the disk; then one rename of ``FORMAT`` makes the state a new one; then each new name
takes the old one's place.  A crash before that rename leaves the old state, and the migration begins anew; after it the new state,
and the next start goes on with the places.  An npgxd that only knows the old format refuses the new ``FORMAT``, also half-way.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.errors import StateRefused, StoreError
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from npgxd.store.disk import Disk

log = logging.getLogger(__name__)

PLACE: Final = "migration"
FORMAT_NAME: Final = "FORMAT"
_PLAN: Final = "plan.json"
_MAX_PLAN: Final = 1024 * 1024
_KEPT: Final = frozenset({FORMAT_NAME, "instance.lock", PLACE})
"""Names that no migration may touch: the mark of the format, the owner's lock, and where it works."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a format to a newer one.

    ``act`` gets the old state directory, only to be read, and an empty directory in which it makes every top-level name that is new
    or different (files that stay the same may be hard links); it returns the old names that the new format has no more.
    """

    to: int
    act: Callable[[Path, Path, Disk], Collection[str]]


MIGRATIONS: Final[Mapping[int, Migration]] = {}
"""By the format that each begins with. Format 1 is the first that was released, so there is none yet."""


def format_text(number: int) -> str:
    """What ``FORMAT`` says."""
    return f"npgxd-state {number}\n"


def migrate(path: Path, found: int, wanted: int, disk: Disk, migrations: Mapping[int, Migration] = MIGRATIONS) -> None:
    """Bring a locked state directory from format ``found`` to ``wanted``, step by step, and finish what an earlier life began.

    Raises:
        StateRefused: there is no way from one to the other; nothing was touched.
        StoreError: the disk refuses; the state is the old one still, or the new one that the next start completes.
    """
    way = _way(path, found, wanted, migrations)
    complete(path, found, disk)
    for step in way:
        log.warning("%s has state format %d: it is brought to %d", path, found, step.to)
        _build(path, step, disk)
        disk.write_file(path / FORMAT_NAME, format_text(step.to).encode())
        complete(path, step.to, disk)
        found = step.to


def check_way(path: Path, found: int, wanted: int, migrations: Mapping[int, Migration] = MIGRATIONS) -> None:
    """StateRefused if ``migrate`` could not bring the state directory from one format to the other; looks, and touches nothing."""
    _way(path, found, wanted, migrations)


def complete(path: Path, found: int, disk: Disk) -> None:
    """Carry out the migration to format ``found`` that an earlier life began; what it had prepared for another format is dropped."""
    place = path / PLACE
    if not os.path.lexists(place):
        return
    plan = _plan(place)
    if plan is not None and plan[0] == found:
        for seen in (path, place / "old"):  # FORMAT and names that have moved may be seen, and not be on the disk yet
            disk.fsync_directory(seen)
        for name in sorted({*(entry.name for entry in (place / "new").iterdir()), *plan[1]}):
            staged, old, final = place / "new" / name, place / "old" / name, path / name
            if os.path.lexists(final) and not os.path.lexists(old):
                disk.move(final, old)
            if os.path.lexists(staged):
                disk.move(staged, final)
        disk.unlink(place / _PLAN, durable=True)
    disk.remove_tree(place)


def _way(path: Path, found: int, wanted: int, migrations: Mapping[int, Migration]) -> list[Migration]:
    steps: list[Migration] = []
    at = found
    while at != wanted:
        step = migrations.get(at)
        if step is None or not at < step.to <= wanted:
            raise StateRefused(
                f"{path} has state format {found}, and this npgxd cannot bring it to {wanted}: nothing in it was touched",
                hint="run the npgxd that made it, or set another state_dir",
            )
        steps.append(step)
        at = step.to
    return steps


def _build(path: Path, step: Migration, disk: Disk) -> None:
    place = path / PLACE
    disk.make_directory(place, 0o700)
    for name in ("new", "old"):
        disk.make_directory(place / name, 0o700)
    gone = sorted(step.act(path, place / "new", disk))
    touched = _KEPT.intersection((*gone, *(entry.name for entry in (place / "new").iterdir())))
    if touched:
        raise StoreError(f"a migration may not touch {min(touched)}", hint="this is a fault of npgxd: please report it")
    disk.write_file(place / _PLAN, json.dumps({"to": step.to, "gone": gone}).encode(), 0o600, durable=False)
    disk.fsync_tree(place)
    disk.fsync_directory(path)


def _plan(place: Path) -> tuple[int, list[str]] | None:
    """The format that is being made, and the names that it has no more; None where nothing, or all of it, is to be done."""
    if not os.path.lexists(place / _PLAN):
        return None
    try:
        said = json.loads(read_plain(place / _PLAN, _MAX_PLAN))
        return int(said["to"]), [str(name) for name in said["gone"]]
    except (StoreError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, StoreError) and error.no_means:
            raise
        log.warning("%s is of no use: %s", place / _PLAN, error)
        return None  # it is on the disk before FORMAT is: what cannot be read was never needed
