"""Whether this process may have more threads: libzmq, where it gets none, ends the process without a word of ours."""

from __future__ import annotations

import threading
from typing import Final

from npgxd.errors import NoThreads
from npgxd.wire.printable import counted

ZMQ_THREADS: Final = 2
"""What a ZeroMQ context starts with its first socket. Where that fails it aborts (``posix_assert`` in its ``thread.cpp``)."""
HINT: Final = "Raise TasksMax= of its unit, pids.max of its container, or RLIMIT_NPROC of its user; or end what has so many"


def check_threads(number: int = ZMQ_THREADS) -> None:
    """NoThreads unless so many more can be had at this moment, all at once; they have ended when this returns."""
    go = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(number):
            thread = threading.Thread(target=go.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # the interpreter has no narrower word for it
        asked = counted(number, "thread more", "threads more")
        raise NoThreads(f"the operating system refuses this process {asked}: {error}", hint=HINT) from error
    finally:
        go.set()
        for thread in started:
            thread.join()
