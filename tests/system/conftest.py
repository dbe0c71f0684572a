from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # conftest_node is shared by the tests of this folder

from conftest_node import make_node, node
from shared_node import make_shared

__all__ = ["make_node", "make_shared", "node"]
