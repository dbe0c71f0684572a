from __future__ import annotations

import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING

import pytest

from tests.bytecode import compile_own_modules
from tests.memory import room_in_memory
from tests.uncollected import uncollected

if TYPE_CHECKING:
    from collections.abc import Generator


def pytest_configure(config: pytest.Config) -> None:
    """``tmp_path`` lies in memory, unless it is told to lie elsewhere (``--basetemp``, ``PYTEST_DEBUG_TEMPROOT``).

    The home directory is a new one, which goes in the end: a compiler that a test runs logs there, as CANN's does, shells and libraries keep
    what they like there, and whoever runs the tests is to find nothing of that in their own.

    What a script starts with ``&`` ignores SIGINT, and so would all that the tests start, and some of that is sent one.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    memory = room_in_memory()
    if memory is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    if not hasattr(config, "workerinput"):  # a worker of xdist has that of the process that started it
        home = tempfile.mkdtemp(prefix="npgxd-home-", dir=memory)
        config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            os.environ.pop(name, None)
        os.environ["HOME"] = home
        compile_own_modules()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones come first, in random order as all others: where several processes run the tests, none is alone with one in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the tests together import is not searched for garbage either when a test asks for a search."""
    with uncollected():
        return (yield)
