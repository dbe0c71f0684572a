from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parent))  # conftest_node is shared by the tests of this folder

from conftest_node import make_node, node
from shared_node import make_shared

__all__ = ["make_node", "make_shared", "node"]


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A new directory that a whole machine takes for its disk; ``tmp_path`` may lie in memory, of which npgxd warns its operator."""
    with tempfile.TemporaryDirectory(prefix="npgxd-machine-") as place:
        yield Path(place)
