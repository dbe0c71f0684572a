"""What the store's tests share: an opened house."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.store.made import House

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A new state directory, opened."""
    made = House(tmp_path / "state", tmp_path / "scratch")
    yield made
    made.close()
