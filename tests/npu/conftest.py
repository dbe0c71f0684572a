from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "system"))  # the node with its daemon is that folder's

from conftest_node import make_node, node
from machine import homes, make_npu, npu, older, wheel

__all__ = ["homes", "make_node", "make_npu", "node", "npu", "older", "wheel"]
