"""What an earlier life left behind: staged and dropped trees, temporary files, leases that nobody holds, views of an earlier boot.

And what an earlier npgxd did: files of a form that nothing reads any more.
"""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from npgxd.errors import NO_MEANS, StoreError
from npgxd.store.disk import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npgxd.oplib.leases import Leases
    from npgxd.oplib.views import Views
    from npgxd.store.kernels import Reconciled
    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

FORMER: Final = ("fingerprints.json", "fingerprints.json.files")
"""What a daemon remembered of its toolchain's files in before ``fingerprints/``."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was cleaned up; ``problems`` names what could not be, and nothing depends on it."""

    staged: int
    temporary: int
    leases: int
    views: int
    adopted: int
    """Kernels that were published and not in the catalog yet."""
    problems: tuple[str, ...]


def recover(state: StateDirectory, views: Views, leases: Leases) -> Recovery:
    """Drop everything that is not published and everything that nobody holds, and adopt what is published and not listed.

    Needs the instance lock, and that no worker of an earlier life is left; safe to repeat.  Nothing that is found stops it; where there is no
    descriptor or no memory left to look, that is raised: a kernel that is taken for missing would be compiled again.
    """
    problems: list[str] = []

    def attempt(act: Callable[[], object], what: str) -> bool:
        try:
            act()
        except (StoreError, OSError) as error:
            if (error.data.get("errno") if isinstance(error, StoreError) else error.errno) in NO_MEANS:
                raise
            problems.append(f"{what}: {error}")
            return False
        return True

    def remove(path: Path) -> bool:
        return attempt(lambda: state.disk.remove_tree(path), str(path))

    # What was renamed to here to be removed must not come back, without its files, by a later power loss.
    left = sorted(state.staging.iterdir())
    # A directory that is closed to its owner, as a compiler may leave one, has nothing that came by a rename of ours.
    within = [path for path in left if path.is_dir() and not path.is_symlink() and os.access(path, os.R_OK)]
    for place in (state.staging, *within) if left else ():
        attempt(partial(state.disk.fsync_directory, place), str(place))
    staged = sum(remove(path) for path in left)
    places = (state.path, state.kernels, state.packages, state.leases, state.rounds)
    temporary = sum(remove(path) for place in places for path in sorted(place.glob(f"{TEMPORARY_PREFIX}*")))
    for path in (state.path / name for name in FORMER):
        if _is_our_file(path):
            remove(path)
    released: list[object] = []
    dropped: list[object] = []
    found: list[Reconciled] = []
    attempt(lambda: found.append(views.kernels.reconcile()), str(state.kernels))
    attempt(lambda: released.extend(leases.release_dead()), str(state.leases))
    attempt(lambda: dropped.extend(views.drop_unleased(keep=leases.views_in_use())), str(state.views))
    problems += [f"{place}: not a kernel, set aside" for one in found for place in one.problems]
    for problem in problems:
        log.warning("odd leftover: %s", problem)
    adopted = sum(one.adopted for one in found)
    return Recovery(staged, temporary, len(released), len(dropped), adopted, tuple(problems))


def _is_our_file(path: Path) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
