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
from systemd_machine import Machine, why_not

__all__ = ["make_node", "make_shared", "node"]


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A new directory that a whole machine takes for its disk; ``tmp_path`` may lie in memory, of which npgxd warns its operator."""
    with tempfile.TemporaryDirectory(prefix="npgxd-machine-") as place:
        yield Path(place)


@pytest.fixture
def machine(on_disk: Path) -> Iterator[Machine]:
    """A machine with a systemd of its own and the unit installed, not booted yet; skipped, with the reason, where there can be none."""
    if why_not():
        pytest.skip(f"NOT TESTED: npgxd under systemd: {why_not()}")
    made = Machine(on_disk)
    try:
        yield made
    finally:
        made.close()
