"""The peer of look-ups: a bare ROUTER in a process of its own that answers every message with as many bytes as a HIT has, at once.

What a request and its answer take through libzmq and the scheduler of a machine that is just as busy, and nothing else.

``python -m tools.bench.echo PATH BYTES`` is the process; it ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REPOSITORY = Path(__file__).parents[2]
VARIABLE = "NPGXD_BENCH_ECHO"
"""The environment variable that tells a client of a bench where its peer is."""
ASKED = b"a" * 200
"""About as long as a look-up."""
PATIENCE_MS = 10_000


class Echo:
    """A client of the peer."""

    def __init__(self, path: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(f"ipc://{path}")
        self.ask()

    def ask(self) -> float:
        """The seconds that one answer took."""
        begun = time.perf_counter()
        self._socket.send(ASKED)
        if not self._socket.poll(PATIENCE_MS):
            raise SystemExit("the bare echo does not answer")
        self._socket.recv_multipart()
        return time.perf_counter() - begun


@contextlib.contextmanager
def running(path: Path, size: int) -> Iterator[Mapping[str, str]]:
    """The peer at ``path``, with answers of ``size`` bytes; gives what its clients need in their environment."""
    command = [sys.executable, "-m", "tools.bench.echo", str(path), str(size)]
    # In a session of its own, as the daemon is: the kernel's scheduler may weigh sessions.
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise SystemExit("the bare echo did not start")
        yield {VARIABLE: str(path)}
    finally:
        process.communicate()


def main(path: str, size: int) -> None:
    """The peer."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{path}")
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    answer = os.urandom(size)
    print("ready", flush=True)
    while True:
        ready = dict(poller.poll())
        if sys.stdin.fileno() in ready:
            context.destroy(linger=0)
            Path(path).unlink()
            return
        identity, asked = router.recv_multipart()
        router.send_multipart([identity, asked, answer])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
