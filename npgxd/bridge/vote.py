"""Which scheme the ranks of a job follow on this node: the daemon's, the bundled one, or none. Asked once in a process's life.

The bundled scheme makes ranks wait for one another for minutes, so no rank may enter it alone. A rank that finds no daemon says so
in the job's own store, and the first decision that anyone writes there holds for all: "bundled" when all local ranks have said so,
"alone" when one was served by a daemon or the vote took too long. The store is the process group's; its writes are atomic.
"""

from __future__ import annotations

import enum
import os
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from npgxd.client import rank_info

if TYPE_CHECKING:
    from collections.abc import Callable

VOTE_S: Final = 10.0
"""How long a rank without a daemon waits for the others' word."""
_POLL_S: Final = 0.05


class Scheme(enum.Enum):
    """How this process gets static kernels."""

    ALONE = "alone"
    """From the daemon, while there is one; with dynamic kernels otherwise."""
    BUNDLED = "bundled"
    """By torch_npu's own coordination, as if the bridge were off."""


class _Place(NamedTuple):
    """This rank's among those of its node: the keys of the vote begin with ``node``."""

    node: str
    rank: int
    size: int


def choose(dist: Any, *, served: bool, patience_s: float = VOTE_S, clock: Callable[[], float] = time.monotonic) -> Scheme:
    """The scheme that all ranks of this job on this node follow; ``served``: a daemon answers this one."""
    ranks = rank_info(os.environ)
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        alone = (ranks.local_world_size or 1) == 1 and (ranks.world_size or 1) == 1
        return Scheme.BUNDLED if alone and not served else Scheme.ALONE
    if ranks.local_world_size is None:
        return Scheme.ALONE  # nobody can say who is on this node
    node, rank = divmod(dist.get_rank(), ranks.local_world_size)
    place = _Place(f"npgxd/bridge/{node}", rank, ranks.local_world_size)
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 -- torch has no other name for it
        if served:
            return _decided(store, place, Scheme.ALONE)
        return _vote(store, place, clock() + patience_s, clock)
    except (RuntimeError, ValueError, OSError):  # the store's server has gone: then so has the job
        return Scheme.ALONE


def _vote(store: Any, place: _Place, until: float, clock: Callable[[], float]) -> Scheme:
    """Say that there is no daemon here, and wait until all local ranks have said so, or somebody has decided."""
    store.set(f"{place.node}/absent/{place.rank}", b"1")
    everyone = [f"{place.node}/absent/{rank}" for rank in range(place.size)]
    while clock() < until:
        if store.check([f"{place.node}/decision"]):
            return _decided(store, place, Scheme.ALONE)
        if store.check(everyone):
            return _decided(store, place, Scheme.BUNDLED)
        time.sleep(_POLL_S)
    return _decided(store, place, Scheme.ALONE)


def _decided(store: Any, place: _Place, proposal: Scheme) -> Scheme:
    """The decision: ``proposal``, unless there is one already."""
    return Scheme(bytes(store.compare_set(f"{place.node}/decision", "", proposal.value)).decode())
