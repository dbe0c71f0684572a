from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from npgxd.errors import ConfigError, DaemonUnavailable
from npgxd.wire import endpoint
from npgxd.wire.endpoint import (
    candidates,
    check_socket_path,
    find_socket,
    look,
    prepare_runtime_directory,
    private_problem,
    probe,
    user_runtime_directory,
)

UID = os.geteuid()


@pytest.fixture
def listening(short):
    """Makes sockets at which somebody listens."""
    made = []

    def listen(path: Path, backlog: int = 5) -> Path:
        path.parent.mkdir(exist_ok=True)
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].bind(str(path))
        made[-1].listen(backlog)
        return path

    yield listen
    for each in made:
        each.close()


def test_the_search_order_is_the_system_then_the_user(monkeypatch):
    assert candidates({"XDG_RUNTIME_DIR": "/run/user/7"}) == (
        Path("/run/npgxd/npgxd.sock"),
        Path("/run/user/7/npgxd/npgxd.sock"),
    )
    assert candidates({"NPGXD_SOCKET": ""})[1] == Path(f"/tmp/npgxd-{UID}/npgxd.sock")


def test_npgxd_socket_is_the_only_place_if_it_is_set(listening, short, monkeypatch):
    monkeypatch.setattr(endpoint, "SYSTEM_RUNTIME_DIRECTORY", short / "system")
    listening(short / "system" / "npgxd.sock")
    assert candidates({"NPGXD_SOCKET": "/x/y", "XDG_RUNTIME_DIR": "/z"}) == (Path("/x/y"),)
    with pytest.raises(DaemonUnavailable) as caught:
        find_socket({"NPGXD_SOCKET": f"{short}/absent"})
    assert [each.path for each in caught.value.data["looked"]] == [short / "absent"]


def test_the_first_socket_at_which_somebody_listens_is_used(listening, short, monkeypatch):
    monkeypatch.setattr(endpoint, "SYSTEM_RUNTIME_DIRECTORY", short / "system")
    environ = {"XDG_RUNTIME_DIR": str(short / "user")}
    (short / "user").mkdir()
    (short / "user" / "npgxd").mkdir()
    user = listening(short / "user" / "npgxd" / "npgxd.sock")
    assert find_socket(environ) == user
    assert [each.problem for each in look(environ)] == ["not there", ""]
    system = listening(short / "system" / "npgxd.sock")
    assert find_socket(environ) == system


def test_what_was_looked_at_is_told_with_the_remedy(short, monkeypatch):
    monkeypatch.setattr(endpoint, "SYSTEM_RUNTIME_DIRECTORY", short / "system")
    with pytest.raises(DaemonUnavailable) as caught:
        find_socket({"XDG_RUNTIME_DIR": str(short)})
    assert f"{short}/system/npgxd.sock (not there), {short}/npgxd/npgxd.sock (not there)" in caught.value.message
    assert "systemctl start npgxd" in caught.value.hint


@pytest.mark.parametrize("base", ["", "relative/run", None])
def test_without_a_runtime_directory_there_is_one_in_tmp(base):
    environ = {} if base is None else {"XDG_RUNTIME_DIR": base}
    assert user_runtime_directory(environ) == Path(f"/tmp/npgxd-{UID}")
    assert user_runtime_directory(environ, uid=77) == Path("/tmp/npgxd-77")


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("ours", ""),
        ("link", "it is a link"),
        ("open", "its mode is 0755, not 0700"),
        ("file", "it is not a directory"),
        ("absent", "not there"),
        ("foreign", f"it belongs to uid {UID}, not {UID + 1}"),
    ],
)
def test_a_directory_in_tmp_is_used_only_if_it_is_ours_alone(short, what, problem):
    path = short / "d"
    if what == "file":
        path.touch()
    elif what == "link":
        (short / "real").mkdir(mode=0o700)
        path.symlink_to(short / "real")
    elif what != "absent":
        path.mkdir(mode=0o700)
        path.chmod(0o755 if what == "open" else 0o700)
    assert private_problem(path, UID + 1 if what == "foreign" else UID) == problem


def test_a_socket_that_somebody_else_put_into_tmp_is_not_used(listening, short, monkeypatch):
    trap = short / "npgxd-0"
    trap.mkdir(mode=0o755)
    trap.chmod(0o755)
    listening(trap / "npgxd.sock")
    monkeypatch.setattr(endpoint, "SYSTEM_RUNTIME_DIRECTORY", short / "system")
    monkeypatch.setattr(endpoint, "_fallback_directory", lambda uid: trap)
    with pytest.raises(DaemonUnavailable, match="its mode is 0755, not 0700"):
        find_socket({})
    trap.chmod(0o700)
    assert find_socket({}) == trap / "npgxd.sock"


def test_probing_says_why_nobody_answers_and_never_blocks(listening, short):
    assert probe(short / "absent") == "not there"
    (short / "file").touch()
    assert probe(short / "file") == "nobody listens"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(short / "left"))
    left.close()
    assert probe(short / "left") == "nobody listens"
    assert probe(listening(short / "live")) == ""
    assert probe(Path("relative")) == "the socket path relative is not absolute"
    assert probe(short / ("x" * 120)).endswith("the kernel allows 107")
    assert probe(short / "file" / "s") == "Not a directory"


def test_probing_a_daemon_that_accepts_nobody_does_not_block(listening, short):
    path = listening(short / "full", backlog=0)
    waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(4)]
    for each in waiting:
        each.connect_ex(str(path))
    assert probe(path) == ""
    for each in waiting:
        each.close()


@pytest.mark.skipif(UID == 0, reason="root may connect to anything")
def test_a_socket_that_is_not_for_us_says_who_may(listening, short):
    path = listening(short / "closed")
    path.chmod(0)
    assert "permission denied; its users are in the group " in probe(path)


@pytest.mark.parametrize(
    ("gid", "said", "do"),
    [
        (54_321, "its users are in the group 54321", "usermod -aG"),
        (0, "it is for root alone", "by its unit"),
        (65_534, "its users are in the group npgxd", "--group-add"),  # one that a user namespace does not have
    ],
)
def test_a_refused_connection_names_the_group_and_how_to_be_in_it(short, monkeypatch, gid, said, do):
    """Nobody is told to start a daemon that runs, nor to become a member of root's group."""
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_gid=gid, st_uid=0, st_mode=0o40750))
    problem = endpoint._reason(PermissionError(13, "Permission denied"), short / "npgxd.sock")
    assert said in problem
    assert do in endpoint.remedy("not there", problem)
    assert "systemctl start npgxd" in endpoint.remedy("not there", "nobody listens")


def test_a_daemon_that_somebody_has_for_themselves_is_no_matter_of_a_group(short, monkeypatch):
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_gid=54_321, st_uid=54_321, st_mode=0o40700))
    problem = endpoint._reason(PermissionError(13, "Permission denied"), short / "npgxd.sock")
    assert problem == "permission denied; it is uid 54321's own"
    assert "npgxd --user" in endpoint.remedy(problem)


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_socket_path_is_counted_in_bytes(letter):
    size = len(letter.encode())
    check_socket_path(Path("/" + letter * (106 // size)))
    with pytest.raises(ConfigError, match="the kernel allows 107") as caught:
        check_socket_path(Path("/" + letter * (106 // size + 1)))
    assert "shorter runtime directory" in caught.value.hint


def test_the_longest_path_that_passes_can_be_bound(short):
    path = short / ("s" * (107 - len(str(short)) - 1))
    check_socket_path(path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    with socket.socket(socket.AF_UNIX) as bound, pytest.raises(OSError, match="too long"):
        bound.bind(str(path) + "s")


@pytest.mark.parametrize("mode", [0o700, 0o750])
def test_a_runtime_directory_is_made_with_its_mode_whatever_the_umask(short, mode):
    before = os.umask(0o277)
    try:
        prepare_runtime_directory(short / "run", mode)
    finally:
        os.umask(before)
    assert (short / "run").stat().st_mode & 0o7777 == mode
    prepare_runtime_directory(short / "run", mode)


@pytest.mark.parametrize("what", ["link", "file", "open", "below a file"])
def test_a_runtime_directory_that_others_could_change_is_refused(short, what):
    path = short / "run"
    if what == "link":
        (short / "real").mkdir()
        path.symlink_to(short / "real")
    elif what == "open":
        path.mkdir()
        path.chmod(0o777)
    else:
        path.touch()
    with pytest.raises(ConfigError) as refused:
        prepare_runtime_directory(path / "run" if what == "below a file" else path)
    assert (f"chmod go-w {path}" in refused.value.hint) == (what == "open"), "as engines mount a tmpfs or an emptyDir"
