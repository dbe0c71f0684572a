"""Every kind of bad daemon, for each way of waiting, through the backend and the real client (FC-71, invariant 7).

The model's results are right, the first call comes back in time, and one warning says what happened.  How long the product may take is
injected as ``Patience``; a hang runs into the test's timeout.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
import subprocess
import sys
import threading

import pytest
import torch

import npugraph_ex
from npgxd.client import Client, notice
from npgxd.wire import messages as m
from npgxd.wire.states import ClientState, Reason
from npugraph_ex import late
from tests.client.conftest import HASTY, ROOT, fake, fake_process, short, store
from tests.client.fake_daemon import SILENT
from tests.client.test_trouble import GARBAGE, stop, wait_for

__all__ = ["fake", "fake_process", "short", "store"]

PATIENCE = HASTY._replace(handshake_s=0.4, silence_s=0.4, reconnect_s=0.4)
"""So that the product's own limits pass quickly here; all of them together are far below what a test may take."""
WAITS = {"block": "block", "deadline": 0.3, "background": "background"}
SILENCES = {Reason.DAEMON_UNAVAILABLE, Reason.DEADLINE}


class Proxy:
    """Between a client and a daemon: what the client says passes, what the daemon answers comes byte by byte."""

    def __init__(self, path, behind, pause_s: float) -> None:
        self._behind, self._pause_s = behind, pause_s
        self._listening = sockets.socket(sockets.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._over = threading.Event()
        self._open: list[sockets.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work, *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                near, _ = self._listening.accept()
                far = sockets.socket(sockets.AF_UNIX)
                far.connect(str(self._behind))
                self._open += [near, far]
                self._start(self._pass, near, far, 65536, 0.0)
                self._start(self._pass, far, near, 1, self._pause_s)

    def _pass(self, source: sockets.socket, target: sockets.socket, size: int, pause_s: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(size):
                target.sendall(data)
                self._over.wait(pause_s)
            target.shutdown(sockets.SHUT_RDWR)

    def close(self) -> None:
        self._over.set()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(sockets.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for each in self._open:
            each.close()


@pytest.fixture
def path(short, monkeypatch):
    monkeypatch.setenv("NPGXD_SOCKET", str(short / "npgxd.sock"))
    return short / "npgxd.sock"


class Bad:
    """The bad daemons. What a method returns is called when the daemon has taken the round and told of it."""

    def __init__(self, path, fake, fake_process) -> None:
        self._path, self._fake, self._fake_process = path, fake, fake_process
        self.ends: list[object] = []

    def absent(self):
        return None

    def stopped(self):
        stop(self._fake_process().pid)

    def killed_in_the_middle(self):
        return self._fake_process("unsettled").kill

    def stopped_in_the_middle(self):
        process = self._fake_process("unsettled")
        return lambda: stop(process.pid)

    def stopping_and_not_coming_back(self):
        daemon = self._fake()
        daemon.settle.clear()
        return daemon.stop

    def restarted_without_its_memory_and_silent(self):
        first = self._fake()
        first.settle.clear()

        def restart():
            first.stop()
            self._fake(script=lambda message: SILENT if isinstance(message, m.Submit) else None)

        return restart

    def says_garbage_to_a_hello(self):
        self._fake(script=lambda message: GARBAGE["http"] if isinstance(message, m.Hello) else None)

    def says_garbage_in_a_round(self):
        self._fake(script=lambda message: GARBAGE["deep"] if isinstance(message, m.Submit) else None)

    def is_no_zmq(self):
        self._listen(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    def accepts_and_says_nothing(self):
        self._listen(b"")

    def never_answers(self):
        self._fake(script=lambda _message: SILENT)

    def never_settles_nor_tells(self):
        daemon = self._fake(script=lambda message: SILENT if isinstance(message, m.Follow) else None)
        daemon.settle.clear()

    def greets_byte_by_byte(self):
        self._slow(0.05)

    def answers_byte_by_byte(self):
        self._slow(0.002)

    def _slow(self, pause_s: float) -> None:
        self._fake()
        behind = self._path.with_name("behind.sock")
        self._path.rename(behind)
        self.ends.append(Proxy(self._path, behind, pause_s).close)

    def _listen(self, greeting: bytes) -> None:
        listening = sockets.socket(sockets.AF_UNIX)
        listening.bind(str(self._path))
        listening.listen()
        accepted = [listening]

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(listening.accept()[0])
                    accepted[-1].sendall(greeting)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()

        def end() -> None:
            listening.shutdown(sockets.SHUT_RDWR)
            thread.join(30)
            for each in accepted:
                each.close()

        self.ends.append(end)


KINDS = [name for name in vars(Bad) if not name.startswith("_")]


@pytest.fixture
def bad(path, fake, fake_process):
    made = Bad(path, fake, fake_process)
    yield made
    for end in made.ends:
        end()


def react_to_a_submission(client: Client, then, monkeypatch) -> None:
    """``then`` happens once the daemon has taken the round and told of it."""
    settle = client._settle

    def reacting(records, graph, options, deadline_s, on_progress, **how):
        done = threading.Event()

        def told(progress) -> None:
            if not done.is_set():
                done.set()
                then()
            on_progress(progress)

        return settle(records, graph, options, deadline_s, told, **how)

    monkeypatch.setattr(client, "_settle", reacting)


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_fc71_the_model_runs_its_results_are_right_and_one_warning_says_why(bad, kind, wait, caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(notice, "_said", set())
    monkeypatch.setattr(late, "HELLO_S", 0.2)
    then = getattr(bad, kind)()
    client = Client(patience=PATIENCE)
    monkeypatch.setattr("npugraph_ex.static_kernels.current", lambda: client)
    if then is not None:
        react_to_a_submission(client, then, monkeypatch)
    options = {"static_kernel_compile": True, "static_kernel_wait": wait}
    model = torch.compile(lambda x: torch.exp(x) + 1, backend="npugraph_ex", options=options, fullgraph=True)
    for number in range(3):
        x = torch.rand(3) + number
        assert torch.equal(model(x), torch.exp(x) + 1)
    wait_for(lambda: npugraph_ex.static_kernel_report()[0].outcome.state is not ClientState.QUEUED, "it ends")
    (report,) = npugraph_ex.static_kernel_report()
    assert report.outcome.state is ClientState.DEGRADED
    assert report.outcome.reason in SILENCES
    wait_for(lambda: len(caplog.records) >= 1, "it is told")
    assert len(caplog.records) == 1, caplog.messages
    assert torch.equal(model(x), torch.exp(x) + 1)
    client.close()


PROGRAM = """
import os, sys
from tests.uncollected import uncollected
with uncollected():
    import torch
    import npugraph_ex.backend
options = {"static_kernel_compile": True, "static_kernel_wait": sys.argv[1]}
model = torch.compile(torch.exp, backend="npugraph_ex", options=options, fullgraph=True)
x = torch.rand(3)
assert torch.equal(model(x), torch.exp(x))
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        assert torch.equal(model(x), torch.exp(x))
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("right")
"""


@pytest.mark.parametrize(("wait", "then"), [("background", "fork"), ("0.5", "end")])
def test_fc71_a_process_ends_at_once_beside_a_daemon_that_stopped_and_its_forked_child_too(
    path, fake_process, wait, then, tmp_path
):
    """As a user meets it: the product's own patience, in a process of its own; a blocked exit runs into the timeout."""
    stop(fake_process().pid)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, wait, then],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert done.stderr.count("npgxd:") <= 1
