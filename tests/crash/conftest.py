from __future__ import annotations

from tests.system.conftest_node import make_node, node

__all__ = ["make_node", "node"]
