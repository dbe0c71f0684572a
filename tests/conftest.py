from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.memory import room_in_memory

if TYPE_CHECKING:
    from collections.abc import Generator


def pytest_configure() -> None:
    """``tmp_path`` lies in memory, unless it is told to lie elsewhere (``--basetemp``, ``PYTEST_DEBUG_TEMPROOT``).

    What a script starts with ``&`` ignores SIGINT, and so would all that the tests start, and some of that is sent one.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
