"""One rank of the soak, as a process: it asks for what is known, now and then for what nobody has, and writes down how long each took (ms).

One line for each request goes to its file at once, so that nothing is lost when the process is killed, as some are.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from npgxd.client import Client
from npgxd.client.connection import Reply
from npgxd.daemon.scheduling import churn
from npgxd.errors import NpgxError
from npgxd.wire.messages import Status
from npgxd.wire.states import ClientState, Reason
from tools.bench.echo import VARIABLE, Echo
from tools.cann_sim import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from npgxd.client import Found
    from npgxd.client.outcome import Outcome

KNOWN = 20
"""The set that all clients know is of so many of ``records.many``, without those of the refused operator."""
REFUSED = "Sub"
ARTIFACT = "a" * 64
ARTIFACT_BYTES = 16 * 1024
NEW_EACH_S = 20.0
PAUSE_S = 3.0
STEADY_S = 0.025
STATUS_OF = 0.1
"""The part of the turns in which the status is asked for, too."""


def encoded(*items: records.Record) -> list[tuple[str, bytes]]:
    """Records as a dump gives them."""
    return [(f"{at}.json", records.encode(item)) for at, item in enumerate(items)]


def main(number: int, life_s: float, killed: bool, path: str) -> None:  # noqa: FBT001 -- from the command line
    """Ask until ``life_s`` seconds are over; then end, or die of a signal."""
    chance = random.Random(number)  # noqa: S311 -- a spread, no secret
    end, next_new = time.monotonic() + life_s, time.monotonic() + chance.uniform(0, NEW_EACH_S)
    known = encoded(*known_records())
    client, peer = _connected(), Echo(os.environ[VARIABLE])
    with open(path, "a", encoding="utf-8") as told:  # noqa: PTH123 -- it is written line by line
        while time.monotonic() < end:
            _timed(told, "known", partial(client.static_kernels, known, graph="known"))
            _timed(told, "lookup", partial(client.lookup, ARTIFACT, deadline_s=0))
            _write(told, "echo", peer.ask(), "echo")
            if chance.random() < STATUS_OF:
                _timed(told, "status", partial(client._session.request, Status()))  # noqa: SLF001 -- as npgxctl asks
            if time.monotonic() >= next_new:
                next_new += NEW_EACH_S
                _timed(told, "new", partial(client.static_kernels, encoded(*_new(number)), graph="new"))
                if chance.random() < 0.2:  # noqa: PLR2004 -- now and then a new connection
                    client.close()
                    client = _connected()
            time.sleep(chance.uniform(0.5, 1.5) * PAUSE_S)
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)
    client.close()


def steadily(life_s: float, path: str) -> None:
    """Look one entry up, and ask the peer, many times a second, until ``life_s`` seconds are over: as ranks that start do."""
    end, chance = time.monotonic() + life_s, random.Random(0)  # noqa: S311 -- a spread, no secret
    client, peer = _connected(), Echo(os.environ[VARIABLE])
    with open(path, "a", encoding="utf-8") as told:  # noqa: PTH123 -- it is written line by line
        while time.monotonic() < end:
            _timed(told, "steady lookup", partial(client.lookup, ARTIFACT, deadline_s=0))
            time.sleep(chance.uniform(0.5, 1.5) * STEADY_S)
            _write(told, "steady echo", peer.ask(), "echo")
            time.sleep(chance.uniform(0.5, 1.5) * STEADY_S)
    client.close()


def known_records() -> list[records.Record]:
    """The set that all clients know."""
    return [item for item in records.many(KNOWN) if item["op_type"] != REFUSED]


def _connected() -> Client:
    """A client whose connection, and what it says of its CANN, are made: that is measured apart."""
    client = Client()
    client.welcome()
    return client


def _new(number: int) -> list[records.Record]:
    """A record that others ask for at about the same time, one that nobody else does, and one that the compiler refuses."""
    moment = int(time.time() * 10)
    return [
        records.elementwise("Mul", (16 + moment // 20 % 60_000, 8)),
        records.matmul(16 + moment % 60_000, 32, 16 * (number % 4096 + 1)),
        records.elementwise(REFUSED, (16 + number % 8, 64)),
    ]


def _timed(told: TextIO, what: str, act: Callable[[], Outcome | Found | Reply]) -> None:
    begun = time.perf_counter()
    try:
        answer = act()
        word = answer.message.op if isinstance(answer, Reply) else str(answer.state)
    except NpgxError as error:  # asked as npgxctl asks, a daemon that is too slow for its clients is an error
        word = error.code
    _write(told, what, time.perf_counter() - begun, word)


def _write(told: TextIO, what: str, seconds: float, word: str) -> None:
    told.write(json.dumps([what, seconds * 1000, word]) + "\n")
    told.flush()


def prepare() -> None:
    """Have what all clients know compiled, and the entry that they look up published."""
    client = _connected()
    known = client.static_kernels(encoded(*known_records()), graph="known")
    client.lookup(ARTIFACT)
    told = client.publish(ARTIFACT, os.urandom(ARTIFACT_BYTES), label="soak")
    client.close()
    if known.state is not ClientState.INSTALLED or not told:
        raise SystemExit(f"the soak cannot begin: {known}, {told}")


def fill() -> None:
    """Ask, for graph after graph, for another shape of one operator: most are over the limit on churn, so nothing of them is compiled."""
    client = _connected()
    refused = number = 0
    while refused < churn.MAX_CALLS:
        number += 1
        told = client.static_kernels(encoded(records.elementwise("Exp", (16, 8 * number))), graph=f"fill{number}", deadline_s=0.5)
        refused += told.reason == Reason.CHURN
    client.close()


if __name__ == "__main__" and len(sys.argv) == 1:
    prepare()
    fill()
elif __name__ == "__main__" and sys.argv[1] == "steadily":
    steadily(float(sys.argv[2]), sys.argv[3])
elif __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "killed", sys.argv[4])
