"""What a process notices of the client apart from its answers: its import, its exit, its forks, its signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from npgxd.client import current
from npgxd.client.lease import held
from npgxd.wire import messages as m
from tests.client.conftest import ROOT
from tests.client.fake_daemon import SILENT, is_locked

RECORDS = [("Add_1.json", b'{"a":1}')]


def python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_importing_the_client_imports_no_third_party_but_pyzmq_and_msgpack():
    done = python("import npgxd.client, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))")
    imported = set(done.stdout.split())
    heavy = {
        "torch",
        "psutil",
        "filelock",
        "rich",
        "asyncio",
        "tempfile",
        "argparse",
        "sqlite3",
        "ctypes",
        "multiprocessing",
        "json5",
    }
    ours = {"npgxd", "zmq", "msgpack"}
    known = sys.stdlib_module_names | ours | {"__main__", "sitecustomize", "usercustomize"}
    assert done.returncode == 0, done.stderr
    assert ours <= imported
    assert not {name for name in imported - known if not name.startswith(("_", "cython"))}
    assert not imported & heavy


def test_fc71_a_process_without_a_daemon_warns_once_without_any_logging_setup(environ):
    done = python(
        """
        from npgxd.client import current
        for graph in "abc":
            outcome = current().static_kernels([("a.json", b"{}")], graph=graph)
            assert outcome.state == "DEGRADED", outcome
        """,
        **environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this process runs with dynamic kernels") == 1
    assert done.stderr.splitlines()[0].startswith("npgxd: no daemon answers; looked at /tmp/")
    assert "npgxd --user" in done.stderr


@pytest.mark.parametrize("how", ["absent", "answers", "stopped"])
def test_fc71_an_exit_is_never_held_up(environ, how, fake_process):
    """The process asks for things, closes nothing, and ends; a blocked exit would run into the timeout."""
    if how != "absent":
        process = fake_process()
        if how == "stopped":
            os.kill(process.pid, signal.SIGSTOP)
    done = python(
        """
        from npgxd.client import current
        current().recording("model")
        current().static_kernels([("a.json", b"{}")], graph="model")
        """,
        **environ,
    )
    assert done.returncode == 0, done.stderr


def test_fc71_an_exit_in_the_middle_of_a_round_is_not_held_up(environ, fake_process):
    fake_process("unsettled")
    done = python(
        """
        import sys
        import threading
        from npgxd.client import current

        told = threading.Event()
        follow = lambda: current().static_kernels([("a.json", b"{}")], graph="m", on_progress=lambda _: told.set())
        threading.Thread(target=follow, daemon=True).start()
        assert told.wait(60)
        sys.exit(7)
        """,
        **environ,
    )
    assert done.returncode == 7, done.stderr


def test_fc71_an_exit_is_not_held_up_by_what_is_followed_in_the_background_nor_is_a_forked_childs(environ, fake_process):
    fake_process("unsettled")
    done = python(
        """
        import os
        import sys
        import threading
        from npgxd.client import current
        from npgxd.client.background import Place
        from npgxd.client.changing import Calls, Change

        told, calls = threading.Event(), Calls()
        current().static_kernels_in_background(
            [("a.json", b"{}")], graph="m", change=Change(calls), place=Place(alone=True),
            on_ready=print, on_end=print, on_progress=lambda _: told.set(),
        )
        assert told.wait(60)
        child = os.fork()
        if child == 0:
            assert not calls.begin()
            assert current().welcome() is not None  # over a connection of its own
            sys.exit(6)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
        sys.exit(7)
        """,
        **environ,
    )
    assert done.returncode == 7, done.stderr


def test_a_lease_ends_when_the_process_does_even_when_killed(environ, fake, store):
    daemon = fake()
    done = python(
        """
        import os, signal
        from npgxd.client import current
        assert current().static_kernels([("a.json", b"{}")], graph="m").installed
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        **environ,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(daemon.leased) == 1
    assert not is_locked(store / "leases" / daemon.leased[0])


def test_no_signal_handler_is_installed(environ, fake):
    fake()
    done = python(
        """
        import signal
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        from npgxd.client import current
        assert current().static_kernels([("a.json", b"{}")], graph="m").installed
        assert handlers == {number: signal.getsignal(number) for number in signal.valid_signals()}
        """,
        **environ,
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_child_has_its_own_connection_and_leaves_its_parents_alone(environ, fake):
    daemon = fake()
    done = python(
        """
        import os
        from npgxd.client import current
        inherited = current()
        assert inherited.static_kernels([("a.json", b"{}")], graph="parent").installed
        child = os.fork()
        if child == 0:
            assert current() is not inherited
            assert current().static_kernels([("a.json", b"{}")], graph="child").installed
            assert inherited.static_kernels([("a.json", b"{}")], graph="child, with what it inherited").installed
            current().close()
            inherited.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert inherited.static_kernels([("a.json", b"{}")], graph="parent again").installed
        """,
        **environ,
    )
    assert done.returncode == 0, done.stderr
    hellos = daemon.asked(m.Hello)
    assert len(hellos) == 3  # the parent's, the child's, and the child's over what it inherited
    assert len({hello.pid for hello in hellos}) == 2
    assert [told.graph for told in daemon.asked(m.Submit)] == [
        "parent",
        "child",
        "child, with what it inherited",
        "parent again",
    ]


def test_a_connection_that_was_made_again_after_the_close_goes_with_its_client(environ, fake):
    """As the last report of a round that is followed in the background makes it."""
    fake()
    done = python(
        """
        import gc, os, time
        from npgxd.client import Client
        def descriptors():
            return len(os.listdir("/proc/self/fd"))
        client = Client()
        client.welcome()
        connected = descriptors()
        client.close()
        client.welcome()
        del client
        gc.collect()
        until = time.monotonic() + 30
        while descriptors() >= connected:  # libzmq's threads close them
            assert time.monotonic() < until, os.listdir("/proc/self/fd")
            time.sleep(0.01)
        ends_with_one = Client()
        ends_with_one.welcome()
        """,
        **environ,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_forked_while_another_thread_waits_for_the_daemon_is_not_locked_out(environ, fake):
    fake(script=lambda message: SILENT if isinstance(message, m.Report) and message.graph == "silence" else None)
    done = python(
        """
        import os, threading, time
        from npgxd.client import current
        client = current()
        client.welcome()
        threading.Thread(target=client.recording, args=("silence",), daemon=True).start()
        while not client._session._turns._inside.locked():
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            os._exit(0 if client.static_kernels([("a.json", b"{}")], graph="child").installed else 1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        **environ,
    )
    assert done.returncode == 0, done.stderr


def test_a_lease_is_not_inherited_by_what_the_process_executes(environ, fake, monkeypatch):
    fake()
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    client = current()
    assert client.static_kernels(RECORDS, graph="model").installed
    client.close()
    assert not os.get_inheritable(held()[-1].descriptor)
