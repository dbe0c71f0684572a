"""Engines: how a device runs a graph, records it, and takes new static kernels into use.

Promise: the rest of the backend knows devices only through ``Engine``.  The order is fixed: a graph's first run is recorded, its
kernels are installed and reselected, and only then may an engine capture the graph, since a captured graph keeps its kernels.
"""

from npugraph_ex.engines._base import Engine, ReselectFailed, Runner
from npugraph_ex.engines._choose import devices_of, engine_for, engine_on

__all__ = ["Engine", "ReselectFailed", "Runner", "devices_of", "engine_for", "engine_on"]
