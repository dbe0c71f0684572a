"""What an earlier life left behind: staged and dropped trees, temporary files, leases that nobody holds, views of an earlier boot."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.errors import StoreError
from npgxd.store.disk import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npgxd.oplib.leases import Leases
    from npgxd.oplib.views import Views
    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was cleaned up; ``problems`` names what could not be, and nothing depends on it."""

    staged: int
    temporary: int
    leases: int
    views: int
    problems: tuple[str, ...]


def recover(state: StateDirectory, views: Views, leases: Leases) -> Recovery:
    """Drop everything that is not published and everything that nobody holds. Needs the instance lock; safe to repeat."""
    problems: list[str] = []

    def attempt(act: Callable[[], object], what: str) -> bool:
        try:
            act()
        except (StoreError, OSError) as error:
            problems.append(f"{what}: {error}")
            return False
        return True

    def remove(path: Path) -> bool:
        return attempt(lambda: state.disk.remove_tree(path), str(path))

    staged = sum(remove(path) for path in sorted(state.staging.iterdir()))
    places = (state.path, state.kernels, state.packages, state.leases, state.rounds)
    temporary = sum(remove(path) for place in places for path in sorted(place.glob(f"{TEMPORARY_PREFIX}*")))
    released = leases.release_dead()
    dropped = views.drop_unleased(keep=leases.views_in_use())
    for problem in problems:
        log.warning("left in place: %s", problem)
    return Recovery(staged, temporary, len(released), len(dropped), tuple(problems))
