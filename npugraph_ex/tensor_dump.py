"""``dump_tensor_data``: a graph's inputs and every operator's output, saved as files while the graph runs.

Names and places are the documented ones: ``<data_dump_dir>/worldsize<n>_global_rank<r>/<node>_device_<device>_<count>.pt``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npugraph_ex import ranks

if TYPE_CHECKING:
    from torch.fx import Node


class TensorDump:
    """An observer that saves what it sees. An OSError is the user's: they asked for the files."""

    def __init__(self, directory: str, *, graph: str) -> None:
        rank, size = ranks.global_rank()
        self._directory = Path(directory) / f"worldsize{size}_global_rank{rank}"
        self._directory.mkdir(exist_ok=True)
        self._graph = graph
        self._counts: dict[str, int] = {}

    def saw(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Save ``result`` if it is a tensor; the parts of a tuple are saved where the graph takes them out (``getitem``)."""
        del args, kwargs
        if not isinstance(result, torch.Tensor):
            return
        stem = f"{node.name}_device_{result.device.index or 0}"
        count = self._counts.get(stem, 0)
        while (path := self._directory / f"{stem}_{count}.pt").exists():
            count += 1
        self._counts[stem] = count + 1
        torch.save(result.detach().cpu().clone(), path)
