from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path: a socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="npgx-t", dir="/tmp"))
    yield path
    shutil.rmtree(path)
