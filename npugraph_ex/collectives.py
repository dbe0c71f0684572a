"""Which ranks a graph exchanges data with, and the box in which they vote.

A graph with collectives runs in all of its ranks or in none, so its ranks change to new kernels at one call (npgxd/client/changing.py).
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule

from npgxd.client.background import Place
from npgxd.wire.switch_messages import MAX_PARTNERS
from npugraph_ex import ranks
from npugraph_ex.recording.describe import COMMUNICATION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.fx import Node

logger = logging.getLogger("npugraph_ex")

_WAITS: Final = frozenset({"wait_tensor"})
"""Part of a collective, and none itself."""
_LIKE_A_COLLECTIVE: Final = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|hccl|hcom|(^|_)i?(send|recv)(_|$)", re.IGNORECASE
)
"""Names of other libraries' operators that exchange data between ranks."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """What a graph says of its exchanges: the names of its process groups; ``unnamed``: some exchange has none that can be told."""

    groups: frozenset[str] = frozenset()
    unnamed: bool = False

    def __bool__(self) -> bool:
        return bool(self.groups) or self.unnamed


def collectives_of(module: GraphModule) -> Collectives:
    """The exchanges of a graph and of the graphs inside it."""
    groups: set[str] = set()
    unnamed = False
    for node in _operators(module):
        named = {value for value in (*node.args, *node.kwargs.values()) if isinstance(value, str) and _ranks_of(value)}
        groups |= named
        unnamed = unnamed or not named
    return Collectives(frozenset(groups), unnamed)


def _operators(module: GraphModule) -> Iterable[Node]:
    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                if node.op == "call_function" and _exchanges(node.target):
                    yield node


def _exchanges(target: object) -> bool:
    if not isinstance(target, OpOverload):
        return False
    name = target._schema.name.partition("::")[2]  # noqa: SLF001 -- where an operator's name is
    if target.namespace in COMMUNICATION:
        return name not in _WAITS
    return target.namespace not in {"aten", "prims"} and _LIKE_A_COLLECTIVE.search(name) is not None


def place_of(collectives: Collectives | None) -> Place:
    """Where this process stands among those that such a graph exchanges data with, at this moment."""
    rank, world = ranks.global_rank()
    if _initialized():
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    partners = _partners(collectives, world) if collectives is not None else set()
    if partners <= {rank}:
        return Place(rank=rank, alone=world <= 1 and (ranks.local_world_size() or 1) <= 1)
    if len(partners) > MAX_PARTNERS:
        return Place(rank=rank, problem=f"the graph exchanges data with {len(partners)} ranks, more than one node has")
    if not _initialized():
        return Place(rank=rank, problem="the graph has collectives, and its ranks have no torch.distributed store to vote in")
    return Place(rank=rank, partners=tuple(sorted(partners)))


def _partners(collectives: Collectives, world: int) -> set[int]:
    if collectives.unnamed:
        return set(range(world))
    return {rank for group in collectives.groups for rank in _ranks_of(group)}


def _initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _ranks_of(group: str) -> list[int]:
    """The global ranks of a process group, by the name under which graphs have it; none if there is no such group."""
    if not _initialized():
        return []
    from torch.distributed import distributed_c10d  # noqa: PLC0415 -- only where it is there

    try:
        found: Any = distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined,arg-type]  # noqa: SLF001 -- as torch does
        return list(distributed_c10d.get_process_group_ranks(found))
    except (RuntimeError, ValueError, KeyError):
        return []


def vote(ballot: str, mine: bool) -> bool:  # noqa: FBT001 -- the form that npgxd.client.changing asks for
    """Give ``mine``, and get the first vote that any rank gave on this ballot.

    The ranks' own store counts, so the vote is exact whatever becomes of the daemon; a store that fails has lost the job's other half.
    """
    from torch.distributed import distributed_c10d  # noqa: PLC0415 -- only where it is there

    try:
        store: Any = distributed_c10d._get_default_store()  # noqa: SLF001 -- the one that all ranks share
        counted = bytes(store.compare_set(f"npgxd/{os.getuid()}/{ballot}", "", "change" if mine else "stay"))
    except Exception as error:  # noqa: BLE001 -- whatever a store raises: the collective after this will say it better
        logger.debug("npugraph_ex: the vote failed: %s", error)
        return False
    return counted == b"change"
