from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest

from tests.memory import room_in_memory

if TYPE_CHECKING:
    from collections.abc import Generator


def pytest_configure() -> None:
    """``tmp_path`` lies in memory, unless it is told to lie elsewhere (``--basetemp``, ``PYTEST_DEBUG_TEMPROOT``)."""
    memory = room_in_memory()
    if memory is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the tests together import stays: nobody searches it for garbage, neither now nor when a test asks for a search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
