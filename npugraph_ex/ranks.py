"""Where this process stands among those of its job on this node: the client's reading of the environment, with defaults for one process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from npgxd.client import rank_info

if TYPE_CHECKING:
    from collections.abc import Mapping


def local_rank(environ: Mapping[str, str] = os.environ) -> int:
    """LOCAL_RANK; a process without one, or with a damaged one, speaks for itself: 0."""
    return rank_info(environ).local_rank or 0


def local_world_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """LOCAL_WORLD_SIZE, or None where it is not known."""
    return rank_info(environ).local_world_size


def global_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """RANK and WORLD_SIZE; (0, 1) for a process of its own."""
    stated = rank_info(environ)
    return stated.rank or 0, stated.world_size or 1
