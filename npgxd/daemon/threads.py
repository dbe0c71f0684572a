"""The threads that a daemon cannot be without: where the operating system refuses them, it ends with a word of what to do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from npgxd.errors import NoThreads
from npgxd.wire.threads import HINT, ZMQ_THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS: Final = ZMQ_THREADS + 3
"""libzmq's, one that says who may connect, one that reads what ranks send, and one that watches the disk."""


@contextmanager
def needed() -> Iterator[None]:
    """Threads are started here, and NoThreads is raised where one is refused."""
    try:
        yield
    except RuntimeError as error:  # the interpreter has no narrower word for it
        raise NoThreads(f"the operating system refuses a thread that npgxd needs: {error}", hint=HINT) from error
