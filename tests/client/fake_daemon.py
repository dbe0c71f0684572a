"""A scripted stand-in for the daemon on a real socket: it does what a daemon does at its best, until a test tells it otherwise.

``python -m tests.client.fake_daemon SOCKET STORE`` runs one as a process, for tests that stop or kill it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from npgxd.wire import messages as m
from npgxd.wire.codec import decode, encode, pack_records, unpack_records
from npgxd.wire.parsing import parse_request
from npgxd.wire.states import ClientState, Reason, RoundState

STORE_ID = "5" * 32
VIEW = "a" * 64
TOOLCHAIN = m.ToolchainInfo(soc="Ascend910B3", family="ascend910b", cann_version="9.1.0", simulated=True)
SILENT = object()
"""What a script returns for: say nothing."""

Script = Callable[[m.Message], object]


def make_store(path: Path) -> Path:
    (path / "leases").mkdir(parents=True)
    (path / "packages").mkdir()
    (path / "views" / VIEW / "static_kernel").mkdir(parents=True)
    (path / "STORE_ID").write_text(STORE_ID + "\n")
    return path


@dataclass
class Asked:
    """One round as this daemon has it."""

    parts: int = 0
    records: list[tuple[str, bytes]] = field(default_factory=list)
    accepted: bool = False
    result: m.RoundResult | None = None


class FakeDaemon:
    """Serves in a thread. ``script`` sees each request first.

    What it returns is sent: a Message, one with its frames, or raw parts; SILENT is silence, None is the usual.
    """

    def __init__(self, socket: Path, store: Path, *, script: Script | None = None, **welcome: object) -> None:
        self.socket, self.store = socket, store
        self.script = script
        self.instance = os.urandom(16).hex()
        self.welcome = {"toolchain": TOOLCHAIN, **welcome}
        self.requests: list[m.Message] = []
        self.rounds: dict[str, Asked] = {}
        self.followers: dict[str, bytes] = {}
        self.greeted: set[bytes] = set()
        self.leased: list[str] = []
        self.events: deque[m.Message] = deque()
        """Sent to everybody who said hello, one after the other."""
        self.settle = threading.Event()
        """Rounds are settled while this is set (from the start)."""
        self.settle.set()
        self.result = m.RoundResult(state=ClientState.INSTALLED, reason=Reason.COMPILED, hits=0, compiled=1, view=VIEW)
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._end = threading.Event()
        socket.unlink(missing_ok=True)
        self._router.bind(f"ipc://{socket}")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Go as a killed daemon does: every connection ends at once, the socket's file stays."""
        self._end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def asked(self, kind: type[m.Message]) -> list[m.Message]:
        return [request for request in self.requests if isinstance(request, kind)]

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self._step()
        finally:
            self._context.destroy(linger=0)

    def _step(self) -> None:
        if self._router.poll(20):
            identity, *parts = self._router.recv_multipart()
            self._serve(identity, parts)
        while self.events:
            event = self.events.popleft()
            for identity in self.greeted:
                self._send(identity, event, 0)
        for name, identity in list(self.followers.items()):
            self._send(identity, self._progress(name), 0)
            if self.rounds[name].result:
                self.followers.pop(name, None)

    def _serve(self, identity: bytes, parts: list[bytes]) -> None:
        envelope = decode(parts)
        message = parse_request(envelope)
        self.requests.append(message)
        scripted = self.script(message) if self.script else None
        if scripted is SILENT:
            return
        if isinstance(scripted, list):
            self._router.send_multipart([identity, *scripted])
            return
        frames: list[bytes] = []
        if isinstance(scripted, m.Message):
            reply = scripted
        elif isinstance(scripted, tuple):
            reply, frames = scripted
        else:
            reply, frames = self._answer(identity, message, envelope.frames)
        self._send(identity, reply, envelope.id, frames)

    def _send(self, identity: bytes, message: m.Message, number: int, frames: list[bytes] | None = None) -> None:
        self._router.send_multipart([identity, *encode(message, number, frames or [])])

    def _answer(  # noqa: PLR0911 -- one a kind of message
        self, identity: bytes, message: m.Message, frames: tuple[bytes, ...]
    ) -> tuple[m.Message, list[bytes]]:
        if isinstance(message, m.Hello):
            self.greeted.add(identity)
            facts = {"version": 1, "instance": self.instance, "session": os.urandom(16).hex(), "daemon": "fake"}
            return m.Welcome(**facts, store_id=STORE_ID, store_path=str(self.store), **self.welcome), []
        if isinstance(message, m.Status):
            return m.StatusDocument(schema=1), [b'{"schema":1}']
        if identity not in self.greeted:
            return m.Refusal("NEED_HELLO", "say hello"), []
        if isinstance(message, m.Submit):
            return self._submit(message, frames), []
        if isinstance(message, m.Follow):
            if message.round not in self.rounds or not self.rounds[message.round].accepted:
                return m.Refusal("UNKNOWN_ROUND", "no such round"), []
            self.followers[message.round] = identity
            return self._progress(message.round), []
        if isinstance(message, m.Gathered) and message.round in self.rounds:
            records = self.rounds[message.round].records
            piece = records[message.start : message.start + 2]
            after = message.start + 2
            return m.GatheredPart(message.round, len(records), after if after < len(records) else None), pack_records(piece)
        if isinstance(message, m.Lease):
            lease = os.urandom(16).hex()
            (self.store / "leases" / lease).write_text("{}")
            return m.LeaseOffer(lease, f"leases/{lease}", f"views/{message.view}"), []
        if isinstance(message, m.Leased) and is_locked(self.store / "leases" / message.lease):
            self.leased.append(message.lease)
        return m.Done(), []

    def _submit(self, submit: m.Submit, frames: tuple[bytes, ...]) -> m.Message:
        asked = self.rounds.setdefault(submit.round, Asked())
        if not asked.accepted:
            asked.parts += 1
            asked.records += unpack_records(frames)
            if submit.part + 1 < submit.parts:
                return m.PartTaken(submit.round, submit.part)
            asked.accepted = True
        return self._progress(submit.round)

    def _progress(self, name: str) -> m.RoundProgress:
        asked = self.rounds[name]
        if self.settle.is_set():
            asked.result = asked.result or self.result
        state = RoundState.SETTLED if asked.result else RoundState.COMPILING
        total = len(asked.records)
        done = total if asked.result else 0
        return m.RoundProgress(name, state, total, total, done, total, current=("Add",), result=asked.result)


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on a lease file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


if __name__ == "__main__":
    daemon = FakeDaemon(Path(sys.argv[1]), Path(sys.argv[2]))
    if sys.argv[3:] == ["unsettled"]:
        daemon.settle.clear()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while os.getppid() != 1:
        time.sleep(0.2)
