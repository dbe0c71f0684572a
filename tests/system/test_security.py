"""What other users of the node, and members of the group, can do to a real daemon and its ranks: only what docs/security.md says."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgpack
import psutil
import pytest
import zmq
from conftest_node import AS_ROOT, PATIENCE_S, Node, eventually, matmuls
from test_adversary import Peer, peers
from test_limits import open_to_all, submitted

from npgxd.client.connection import GIVEN_UP
from npgxd.daemon.serving.connections import OPEN_FACTOR, OPEN_MORE
from npgxd.wire.codec import pack_records
from tools.cann_sim import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared_node import SharedNode

__all__ = ["peers"]
STRANGER = 54321
GROUP = 47110

INTRUDER = """
import errno, fcntl, json, os, secrets, sys
where, told, uid, group = sys.argv[1], open(sys.argv[2], "w"), int(sys.argv[3]), int(sys.argv[4])
os.chdir(where)  # the directories above may be closed to others: these are not what is tried here
where = "."
os.setgroups([group] if group else [])
os.setgid(uid)
os.setuid(uid)
found = {"listed": [], "written": [], "opened": [], "locked": 0}
held = []
def try_open(path, flags):
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
places = [where]
while places:
    place = places.pop()
    name = os.path.relpath(place, where)
    trial = os.path.join(place, "x" + secrets.token_hex(4))
    for act in (lambda: os.mkdir(trial), lambda: os.symlink("/etc/passwd", trial), lambda: os.mkfifo(trial), lambda: os.chmod(place, 0o777)):
        try:
            act()
            found["written"].append(name)
        except OSError:
            pass
    try:
        entries = list(os.scandir(place))
    except OSError:
        continue
    found["listed"].append(name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            places.append(entry.path)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
            if try_open(entry.path, flags) is not None:
                found["written"].append(os.path.relpath(entry.path, where))
        for act in (lambda: os.unlink(entry.path), lambda: os.rename(entry.path, trial), lambda: os.chmod(entry.path, 0o777)):
            try:
                act()
                found["written"].append(os.path.relpath(entry.path, where))
            except OSError:
                pass
        fd = try_open(entry.path, os.O_RDONLY)
        if fd is None:
            continue
        held.append(fd)
        found["opened"].append(os.path.relpath(entry.path, where))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found["locked"] += 1
        except OSError:
            pass
told.write(json.dumps(found))
told.close()
sys.stdin.read()
"""


class Intruder:
    """A process of another user that tries everything on a tree: writes, renames, removes, and then holds each lock that it can get."""

    def __init__(self, node: Node, tree: Path, uid: int, group: int = 0) -> None:
        told = node.directory / f"intruder{secrets.token_hex(4)}"
        self.process = node.spawn("-c", INTRUDER, str(tree), str(told), str(uid), str(group), stderr=told.with_suffix(".err"))
        eventually(lambda: (told.exists() and told.read_text()) or self.process.poll() is not None, "it has tried all")
        assert told.read_text(), told.with_suffix(".err").read_text()
        self.found: dict[str, Any] = json.loads(told.read_text())


@AS_ROOT
def test_a_stranger_can_write_nowhere_in_the_state_and_all_locks_that_he_can_hold_stop_nothing(node: Node) -> None:
    first = node.rank(matmuls(16, 32))
    view = first.outcome()["view"]
    assert node.status() is not None
    intruder = Intruder(node, node.state, STRANGER)
    found = intruder.found
    assert found["written"] == []
    served = ("kernels", "packages", "views")
    own = {"FORMAT", "STORE_ID", *served, "leases"}
    assert {name.split("/")[0] for name in found["listed"]} == {".", *served}, "leases cannot be listed: a name is a claim"
    assert {name.split("/")[0] for name in found["opened"]} <= own
    assert not any(name.startswith("leases/") for name in found["opened"])
    assert found["locked"] > 10, "it holds what it could get"
    second = node.rank(matmuls(16, 48)).outcome()
    assert (second["state"], second["torn"], second["missing"]) == ("INSTALLED", 0, 0)
    node.kill()
    node.start()  # its own lock is its own
    assert node.rank(matmuls(16, 32, 64)).outcome()["state"] == "INSTALLED"
    assert first.end() == 0
    eventually(lambda: not os.path.exists(view), "what nobody leased is dropped, whoever has locked what is in it")  # noqa: PTH110
    assert intruder.process.poll() is None


@AS_ROOT
@pytest.mark.parametrize("group", [0, GROUP], ids=["of another group", "of the group"])
def test_the_directory_of_the_sockets_can_be_changed_by_nobody_and_administered_by_no_member(node: Node, group: int) -> None:
    for path in (node.runtime, node.socket):
        os.chown(path, 0, GROUP)
    node.runtime.chmod(0o750)
    found = Intruder(node, node.runtime, STRANGER, group).found
    assert found["listed"] == (["."] if group else [])
    assert found["written"] == found["opened"] == []
    assert sorted(path.name for path in node.runtime.iterdir()) == ["admin.sock", "npgxd.sock"]
    assert stat.S_IMODE((node.runtime / "admin.sock").stat().st_mode) == 0o600


@AS_ROOT
def test_a_stranger_cannot_lock_a_shared_op_library_against_its_daemon(make_shared: Callable[..., SharedNode]) -> None:
    shared = make_shared()
    assert shared.rank(matmuls(16)).outcome()["state"] == "INSTALLED"
    (lock,) = shared.ai_core.glob(".npgxd.lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o660
    found = Intruder(shared.node, shared.ai_core, STRANGER).found
    assert found["written"] == []
    assert ".npgxd.lock" not in found["opened"]
    shared.node.kill()
    shared.node.start()
    assert shared.rank(matmuls(16, 32)).outcome()["state"] == "INSTALLED"


# ---- names ---------------------------------------------------------------------------------------------------------------

TRICKS = [
    "../../../../tmp/npgxd-pwned",
    "/etc/passwd",
    "..",
    "manifest.json",
    "owner.json",
    "instance.lock",
    "x" * 255,
    "a\nb",
    "a\x1b[2Jb",
    "a\0b",
    "$(touch /tmp/npgxd-pwned)",
    "`id`",
    "; id",
    "-rf",
    "--output=/tmp",
    "%s%n",
    "\N{FULLWIDTH LATIN CAPITAL LETTER A}dd",
    "\N{CYRILLIC CAPITAL LETTER A}dd",
    "\u202eddA",
    "\N{GRINNING FACE}",
    "",
]
OUR_NAMES = re.compile(
    r"FORMAT|STORE_ID|instance\.lock|catalog\.sqlite(-wal|-shm)?|fingerprints\.json(\.files)?|op_library\.json|costs\.json|churn\.json"
    r"|kernels|packages|views|leases|rounds|jobs|staging|quarantine|artifacts|pins|(manifest|view)\.json|static_kernel|ai_core|config"
    r"|binary_info_config\.json|ascend910b|[A-Za-z][A-Za-z0-9_]*|npgxd_[0-9a-f]{16}|[0-9a-f]{2,64}(\.run|\.round|\.tree)?"
    r"|[A-Za-z0-9_]+_[0-9a-z_+-]+\.(o|json)|job\.msgpack|summary\.json|worker\.log|(op_compiler|installer)\.(out|err)"
)


def tricked() -> list[tuple[str, str]]:
    """Records that carry each trick as their file's name, op type, tensor name, attribute name and value, and unknown key."""
    made: list[tuple[str, str]] = []
    for number, trick in enumerate(TRICKS):
        plain = records.matmul(16 * (number + 1), 32, 64)
        label = trick.replace("\0", "") or "empty"  # a name of no characters, or with a NUL, is refused with its message
        made += [
            (label, json.dumps({**plain, "op_type": trick})),
            (label, json.dumps({**plain, "impl_mode": trick})),
            (label, json.dumps({**plain, "attrs": [{"name": trick, "dtype": "string", "value": trick}]})),
            (
                label,
                json.dumps({**plain, "inputs": [{**tensor, "name": trick} for tensor in plain["inputs"] if tensor]}),
            ),
            (label, json.dumps({**plain, trick: {trick: [trick]}})),
        ]
    return made


def test_no_text_of_a_record_becomes_a_name_a_line_or_a_command(node: Node, peers: Callable[[Node], Peer]) -> None:
    before = sorted(os.listdir("/tmp"))  # noqa: PTH208
    peer = peers(node)
    peer.hello(program=TRICKS[8], rank={"run_id": TRICKS[0], "master": TRICKS[7]})
    told = peer.ask("submit", pack_records([(name, text.encode()) for name, text in tricked()]), round=secrets.token_hex(16))
    result = peer.result(told)
    assert result["state"] in {"INSTALLED", "DEGRADED"}
    peer.ask("report", state="DEGRADED", reason="x", detail="\n".join(TRICKS), graph=TRICKS[8])
    names = {path.name for path in node.state.rglob("*")}
    assert [name for name in names if not OUR_NAMES.fullmatch(name)] == []
    assert [name for name in sorted(os.listdir("/tmp")) if name not in before and "pwned" in name] == []  # noqa: PTH208
    assert all(line.isprintable() for line in node.log.read_text().splitlines())
    assert "\x1b" not in node.log.read_text()
    assert node.status() is not None
    assert peer.result(peer.submit(4096))["state"] == "INSTALLED", "and the daemon goes on"


# ---- resources -------------------------------------------------------------------------------------------------------------

FLOOD = """
import os, sys, time
import msgpack, zmq
uid, path = int(sys.argv[1]), sys.argv[2]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
context = zmq.Context()
context.set(zmq.MAX_SOCKETS, 4000)
sockets = []
for number in range(200):
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect("ipc://" + path)
    socket.send(msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": [1]}))
    sockets.append(socket)
print("on", flush=True)
turn = 1
large = b"x" * 1_000_000
while True:
    turn += 1
    for number, socket in enumerate(sockets):
        head = {"v": 1, "id": turn, "op": ("status", "submit", "publish", "nothing")[(turn + number) % 4], "round": os.urandom(16).hex()}
        try:
            socket.send_multipart([msgpack.packb(head), *([large] if head["op"] == "submit" else [])], zmq.DONTWAIT)
        except zmq.Again:
            pass
    time.sleep(0.01)
"""


@AS_ROOT
def test_a_user_who_floods_the_daemon_does_not_keep_another_from_being_served(node: Node, peers: Callable[[Node], Peer]) -> None:
    open_to_all(node)
    rank = node.rank([], options={"rounds": [matmuls(16, 32), matmuls(48), matmuls(16, 64)], "pause": str(node.directory / "go")})
    eventually(lambda: (node.status() or {})["kernels"]["leases"], "a rank is served")
    flood = subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(STRANGER), str(node.socket)], env=node.environment(), stdout=subprocess.PIPE
    )
    try:
        assert flood.stdout is not None
        assert flood.stdout.readline() == b"on\n"
        (node.directory / "go").touch()
        told = rank.outcome()
        assert [one["state"] for one in told["rounds"]] == ["INSTALLED"] * 3, told
        assert (told["missing"], told["torn"]) == (0, 0)
        newcomer = peers(node)
        newcomer.hello()
        assert newcomer.result(newcomer.submit(80))["state"] == "INSTALLED"
        assert flood.poll() is None
    finally:
        flood.kill()
        flood.wait(PATIENCE_S)
        assert flood.stdout is not None
        flood.stdout.close()


HEAP = """
import os, sys
import msgpack, zmq
uid, path, connections, messages = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
context = zmq.Context()
sockets = [context.socket(zmq.DEALER) for _ in range(connections)]
for socket in sockets:
    socket.connect("ipc://" + path)
    socket.send(msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": [1]}))
    socket.recv_multipart()
print("on", flush=True)
sys.stdin.readline()
for turn in range(messages):
    for socket in sockets:
        socket.send(msgpack.packb({"v": 1, "id": turn + 2, "op": "flood"}))
print("sent", flush=True)
sys.stdin.read()
"""


@AS_ROOT
def test_a_heap_of_messages_on_many_connections_is_one_users_turn(node: Node, peers: Callable[[Node], Peer]) -> None:
    open_to_all(node)
    victim = peers(node)
    victim.hello()
    heap = subprocess.Popen(
        [sys.executable, "-c", HEAP, str(STRANGER), str(node.socket), "60", "12"],
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert heap.stdin is not None
        assert heap.stdout is not None
        assert heap.stdout.readline() == b"on\n"
        assert node.daemon is not None
        os.kill(node.daemon.pid, signal.SIGSTOP)
        heap.stdin.write(b"go\n")
        heap.stdin.flush()
        assert heap.stdout.readline() == b"sent\n"
        asked = [victim.tell("mine") for _ in range(6)]  # behind 720 messages
        os.kill(node.daemon.pid, signal.SIGCONT)
        assert victim.answer(asked[-1])["code"] == "UNKNOWN_OP"
        refused = re.findall(r"uid (\d+) pid \d+: (?:mine|flood) refused", node.log.read_text())
        mine = [at for at, uid in enumerate(refused) if int(uid) == os.geteuid()]
        assert len(mine) == 6
        between = [after - before - 1 for before, after in itertools.pairwise(mine)]
        assert max(between) < 30, "connection by connection it would be 60 each time"
        eventually(lambda: node.log.read_text().count("flood refused") == 720, "nothing of the heap is lost")
    finally:
        heap.kill()
        heap.communicate()


CUT_OFF = """
import os, sys
import msgpack, zmq
uid, path = int(sys.argv[1]), sys.argv[2]
os.setgroups([]); os.setgid(uid); os.setuid(uid)
context = zmq.Context()
def connected():
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.connect("ipc://" + path)
    return socket
def ask(socket, number, op, **fields):
    socket.send(msgpack.packb({"v": 1, "id": number, "op": op, **fields}))
    return msgpack.unpackb(socket.recv_multipart()[0])["op"]
quiet, loud = connected(), connected()
assert ask(quiet, 1, "hello", versions=[1]) == ask(loud, 1, "hello", versions=[1]) == "welcome"
number = 1
while quiet.poll(0, zmq.POLLOUT):
    number += 1
    try:
        loud.send(msgpack.packb({"v": 1, "id": number, "op": "flood"}), zmq.DONTWAIT)
    except zmq.Again:
        pass
print("ended", flush=True)
again = connected()
print("refused" if not again.poll(1000, zmq.POLLOUT) else "let in", flush=True)
sys.stdin.readline()
while not again.poll(100, zmq.POLLOUT):
    again.close()
    again = connected()
print(ask(again, 1, "hello", versions=[1]), flush=True)
"""


@AS_ROOT
def test_a_process_that_floods_is_cut_off_alone_and_let_in_again(node: Node, peers: Callable[[Node], Peer]) -> None:
    open_to_all(node)
    other = peers(node)
    other.hello()
    (before,) = submitted(node, STRANGER, matmuls(16))
    assert before["result"] is None
    flood = subprocess.Popen(
        [sys.executable, "-c", CUT_OFF, str(STRANGER), str(node.socket)],
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert flood.stdin is not None
        assert flood.stdout is not None
        assert flood.stdout.readline() == "ended\n", "also the connection on which it kept to the rules"
        assert flood.stdout.readline() == "refused\n"
        (after,) = submitted(node, STRANGER, matmuls(16))
        assert after["result"] == "INSTALLED", "another process of the same user"
        assert other.ask("report", state="RECORDING")["op"] == "done", "and another user's, on the connection that it had"
        told = [line for line in node.log.read_text().splitlines() if "sends far more than it is answered" in line]
        assert len(told) == 1
        assert f"pid {flood.pid} of uid {STRANGER}" in told[0]
        assert "its 2 connections are ended" in told[0]
        flood.stdin.write("try again\n")
        flood.stdin.flush()
        assert flood.stdout.readline() == "welcome\n"
    finally:
        flood.kill()
        flood.communicate()


SILENT = """
import os, select, socket, sys
uid, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
held = {}
for _ in range(count):
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    held[one.fileno()] = one
print("on", flush=True)
ended = 0
while True:
    for fd in select.select(list(held), [], [])[0]:
        try:
            gone = not held[fd].recv(4096)
        except OSError:
            gone = True
        if gone:
            ended += 1
            held.pop(fd).close()
            print(ended, flush=True)
"""


@AS_ROOT
def test_connections_that_never_say_hello_are_bounded_and_keep_nobody_out(
    make_node: Callable[..., Node], peers: Callable[[Node], Peer]
) -> None:
    node = make_node()
    node.settings["limits"] = {"connections": 8}
    node.start()
    open_to_all(node)
    assert node.daemon is not None
    descriptors = psutil.Process(node.daemon.pid).num_fds()
    silent = subprocess.Popen(
        [sys.executable, "-c", SILENT, str(STRANGER), str(node.socket), "200"],
        env=node.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert silent.stdout is not None
        assert silent.stdout.readline() == "on\n"
        most = OPEN_FACTOR * 8 + OPEN_MORE
        assert [silent.stdout.readline() for _ in range(200 - most)][-1] == f"{200 - most}\n"
        process = psutil.Process(node.daemon.pid)
        eventually(lambda: process.num_fds() <= descriptors + most + 2, "libzmq closes those that were ended")
        newcomer = peers(node)
        newcomer.hello()
        assert newcomer.result(newcomer.submit(16))["state"] == "INSTALLED"
        assert f"uid {STRANGER} has {most + 1} open connections" in node.log.read_text()
    finally:
        silent.kill()
        silent.communicate()


@AS_ROOT
def test_a_crowd_that_waited_for_a_stopped_daemon_is_answered_and_nobody_is_cut_off(
    node: Node, peers: Callable[[Node], Peer]
) -> None:
    open_to_all(node)
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", HEAP, str(STRANGER), str(node.socket), "1", str(GIVEN_UP + 1)],
            env=node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(6)
    ]
    try:
        for one in crowd:
            assert one.stdout is not None
            assert one.stdout.readline() == b"on\n"
        assert node.daemon is not None
        os.kill(node.daemon.pid, signal.SIGSTOP)
        for one in crowd:
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write(b"go\n")
            one.stdin.flush()
            assert one.stdout.readline() == b"sent\n"
        os.kill(node.daemon.pid, signal.SIGCONT)
        eventually(lambda: node.log.read_text().count("flood refused") == 6 * (GIVEN_UP + 1), "every request is answered")
        assert "sends" not in node.log.read_text()
    finally:
        for one in crowd:
            one.kill()
            one.communicate()


# ---- versions --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def dealer(node: Node) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, 30_000)
    socket.connect(f"ipc://{node.socket}")
    yield socket
    context.destroy(linger=0)


def test_a_client_of_the_next_version_is_served_as_one_of_this(node: Node, peers: Callable[[Node], Peer]) -> None:
    peer = peers(node)
    told = peer.ask("hello", versions=[2, 1], features=["of_tomorrow"], of_tomorrow={"deep": [1, {"x": None}]})
    assert (told["op"], told["version"]) == ("welcome", 1)
    assert "of_tomorrow" not in told["features"]
    assert peer.ask("teleport", round="0" * 32)["code"] == "UNKNOWN_OP"
    assert peer.ask("report", state="HIBERNATING")["code"] == "BAD_REQUEST"
    result = peer.result(peer.submit(16, of_tomorrow=True, options={"of_tomorrow": 1}))
    assert result["state"] == "INSTALLED"


def test_a_client_that_knows_no_feature_at_all_has_its_whole_journey(node: Node, dealer: zmq.Socket[bytes]) -> None:
    """The least that version 1 ever asked for: no features, no toolchain, no rank; and a header with nothing but what must be there."""

    def ask(op: str, frames: list[bytes] = [], **fields: Any) -> dict[str, Any]:  # noqa: B006 -- it is only read
        dealer.send_multipart([msgpack.packb({"v": 1, "id": 7, "op": op, **fields}), *frames])
        return msgpack.unpackb(dealer.recv_multipart()[0])

    assert ask("hello", versions=[1])["op"] == "welcome"
    name = secrets.token_hex(16)
    assert ask("submit", pack_records([(label, text.encode()) for label, text in matmuls(16)]), round=name)["op"] == "round"
    told = ask("follow", round=name)
    while told.get("result") is None:
        told = msgpack.unpackb(dealer.recv_multipart()[0])
    assert told["result"]["state"] == "INSTALLED"
    assert ask("lease", view=told["result"]["view"])["op"] == "lease_offer"
    assert ask("bye")["op"] == "done"
