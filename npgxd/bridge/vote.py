"""Which scheme the ranks of a job follow: the daemon's, the bundled one, or none. Asked once in a process's life.

The bundled scheme makes ranks wait for one another for minutes, and skips the recording run where it finds a package, so no rank may
enter it alone, nor those of one node while another node's do not. A rank that finds no daemon says so in the job's own store, and the
first decision that anyone writes there holds for all: "bundled" when all ranks have said so, "alone" when one was served by a daemon,
cannot take part in the bundled scheme, or did not come in time. The store is the process group's; its writes are atomic.
"""

from __future__ import annotations

import enum
import os
import time
from typing import TYPE_CHECKING, Any, Final

from npgxd.client import rank_info

if TYPE_CHECKING:
    from collections.abc import Callable

VOTE_S: Final = 10.0
"""How long a rank without a daemon waits for the others' word."""
_POLL_S: Final = 0.05
_KEY: Final = "npgxd/bridge"


class Scheme(enum.Enum):
    """How this process gets static kernels."""

    ALONE = "alone"
    """From the daemon, while there is one; with dynamic kernels otherwise."""
    BUNDLED = "bundled"
    """By torch_npu's own coordination, as if the bridge were off."""


def choose(dist: Any, *, served: bool, patience_s: float = VOTE_S, clock: Callable[[], float] = time.monotonic) -> Scheme:
    """The scheme that all ranks of this job follow; ``served``: a daemon answers this one."""
    stated = rank_info(os.environ)
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        alone = (stated.local_world_size or 1) == 1 and (stated.world_size or 1) == 1
        return Scheme.BUNDLED if alone and not served else Scheme.ALONE
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 -- torch has no other name for it
        if served or stated.local_world_size is None:  # without that variable the bundled scheme leaves a rank out
            return _decided(store, Scheme.ALONE)
        return _vote(store, dist.get_rank(), dist.get_world_size(), until=clock() + patience_s, clock=clock)
    except (RuntimeError, ValueError, OSError):  # the store's server has gone: then so has the job
        return Scheme.ALONE


def _vote(store: Any, rank: int, ranks: int, *, until: float, clock: Callable[[], float]) -> Scheme:
    """Say that there is no daemon here, and wait until all ranks have said so, or somebody has decided."""
    store.set(f"{_KEY}/absent/{rank}", b"1")
    everyone = [f"{_KEY}/absent/{each}" for each in range(ranks)]
    while clock() < until:
        if store.check([f"{_KEY}/decision"]):
            return _decided(store, Scheme.ALONE)
        if store.check(everyone):
            return _decided(store, Scheme.BUNDLED)
        time.sleep(_POLL_S)
    return _decided(store, Scheme.ALONE)


def _decided(store: Any, proposal: Scheme) -> Scheme:
    """The decision: ``proposal``, unless there is one already."""
    return Scheme(bytes(store.compare_set(f"{_KEY}/decision", "", proposal.value)).decode())
