from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from npgxd.client import Client, early_look
from npgxd.client.early_look import LIFE_S, EarlyLook
from npgxd.errors import NpgxError
from npgxd.wire import identity
from npgxd.wire import messages as m
from npgxd.wire.identity import default_memo, environment_roots, roots_digest
from tests.client.conftest import PATIENT


@pytest.fixture
def cann(environ, tmp_path):
    """An environment with op roots, and which they are."""
    for name in ("one", "other"):
        (tmp_path / name / "op_impl/ai_core").mkdir(parents=True)
        (tmp_path / name / "op_impl/ai_core/x.py").write_text(name)
    return {**environ, "HOME": str(tmp_path), "ASCEND_CUSTOM_OPP_PATH": str(tmp_path / "one")}


def asked(environ):
    return environment_roots(environ), default_memo(environ)


def never(*_):
    pytest.fail("it looked again")


def test_a_hello_says_what_the_early_look_saw(cann, fake, monkeypatch):
    daemon = fake()
    client = Client(cann, patience=PATIENT)
    client.look_early()
    client._early._thread.join()
    monkeypatch.setattr(identity, "roots_digest", never)
    client.look_early()
    assert client.welcome() is not None
    monkeypatch.undo()
    (hello,) = daemon.asked(m.Hello)
    assert hello.toolchain.roots == roots_digest(*asked(cann)) != ""
    client.close()


def test_a_hello_waits_for_the_look_that_is_under_way(cann, fake, monkeypatch):
    daemon = fake()
    go, real = threading.Event(), early_look.find_socket
    monkeypatch.setattr(early_look, "find_socket", lambda environ: go.wait(30) and real(environ))
    monkeypatch.setattr(identity.StatMemo, "tree", _told_of(looked := [], identity.StatMemo.tree))
    client = Client(cann, patience=PATIENT)
    client.look_early()
    early, join = client._early._thread, client._early._thread.join
    monkeypatch.setattr(early, "join", lambda: (go.set(), join()))  # it goes on when it is waited for, and not before
    try:
        assert client.welcome() is not None
    finally:
        go.set()
    assert looked == [early] * 2, "a root's implementations and its version"
    assert daemon.asked(m.Hello)[0].toolchain.roots == roots_digest(*asked(cann))
    client.close()


def _told_of(looked, real):
    """``real``, noting in which thread it looks."""

    def look(memo, root):
        looked.append(threading.current_thread())
        return real(memo, root)

    return look


def test_what_is_looked_at_is_what_the_environment_said_at_the_beginning(cann, monkeypatch, tmp_path):
    go = threading.Event()
    monkeypatch.setattr(early_look, "find_socket", lambda _: go.wait(30))
    environ, before = dict(cann), asked(cann)
    look = EarlyLook(environ)
    environ["ASCEND_CUSTOM_OPP_PATH"] = str(tmp_path / "other")
    go.set()
    expected = roots_digest(*before)
    monkeypatch.setattr(identity, "roots_digest", never)
    assert look.digest(*before) == expected


def test_after_the_hello_there_is_nothing_to_look_at_early(cann, fake, monkeypatch):
    fake()
    client = Client(cann, patience=PATIENT)
    assert client.welcome() is not None
    monkeypatch.setattr("npgxd.client.client.EarlyLook", never)
    client.look_early()
    client.close()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ValueError("embedded null byte"), NpgxError("none")])
def test_a_look_that_fails_says_nothing_and_costs_its_process_nothing(cann, fake, monkeypatch, capfd, error):
    daemon = fake()

    def fail(_):
        raise error

    monkeypatch.setattr(early_look, "find_socket", fail)
    client = Client(cann, patience=PATIENT)
    client.look_early()
    client._early._thread.join()
    assert client.welcome() is not None
    assert daemon.asked(m.Hello)[0].toolchain.roots == roots_digest(*asked(cann)) != ""
    assert capfd.readouterr() == ("", "")
    client.close()


def test_what_could_not_be_read_then_is_looked_at_again(cann, fake, monkeypatch):
    fake()
    with monkeypatch.context() as unreadable:
        unreadable.setattr(identity, "roots_digest", lambda *_: "")
        look = EarlyLook(cann)
        look._thread.join()
    assert look.digest(*asked(cann)) == roots_digest(*asked(cann)) != ""


def test_fc01_what_was_seen_of_other_roots_or_long_ago_is_looked_at_again(cann, fake, tmp_path):
    fake()
    now = 0.0
    look = EarlyLook(cann, clock=lambda: now)
    changed = {**cann, "ASCEND_CUSTOM_OPP_PATH": str(tmp_path / "other")}
    assert look.digest(*asked(changed)) == roots_digest(*asked(changed)) != look.digest(*asked(cann))
    seen = look.digest(*asked(cann))
    (tmp_path / "one/op_impl/ai_core/x.py").write_text("changed")
    now = LIFE_S
    assert look.digest(*asked(cann)) == roots_digest(*asked(cann)) != seen


def test_where_no_daemon_listens_nothing_is_looked_at(cann, monkeypatch):
    monkeypatch.setattr(identity, "environment_roots", never)
    look = EarlyLook(cann)
    look._thread.join()
    assert look._made is None
    assert look.digest(*asked(cann)) == roots_digest(*asked(cann))


def test_a_client_that_compares_nothing_looks_at_nothing(cann, fake, monkeypatch):
    fake()
    monkeypatch.setattr("npgxd.client.client.EarlyLook", never)
    client = Client(cann, patience=PATIENT, compares=False)
    client.look_early()
    client.close()


def test_a_process_that_can_have_no_thread_looks_when_it_is_asked(cann, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert EarlyLook(cann).digest(*asked(cann)) == roots_digest(*asked(cann))


def test_a_child_forked_meanwhile_looks_for_itself(cann, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(early_look, "find_socket", lambda _: go.wait(60))
    look, expected = EarlyLook(cann), roots_digest(*asked(cann))
    child = os.fork()
    if child == 0:
        os._exit(0 if look.digest(*asked(cann)) == expected else 1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        go.set()


def test_an_exit_is_not_held_up():
    program = (
        "import threading\nfrom npgxd.client import Client, early_look\n"
        "early_look.find_socket = lambda _: threading.Event().wait()\nClient().look_early()\nprint('done')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", "")
