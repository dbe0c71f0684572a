"""The compile cache on a whole node: real processes look one key up at once, builders die, the daemon is killed, others try to get at it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import AS_ROOT, PATIENCE_S, Node, eventually

from npgxd.client import Client, Patience
from npgxd.wire.limits import ARTIFACT_PART_BYTES
from npgxd.wire.states import ArtifactState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CACHER = Path(__file__).with_name("cacher.py")
PATIENT = Patience(handshake_s=30, silence_s=30, reconnect_s=30)
PROCESSES = 16
ROUNDS = 20
NOBODY = 65534


def key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Cacher:
    """A process that does what it is told with the cache."""

    def __init__(self, node: Node, uid: int | None = None, *, wrapped: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*wrapped, sys.executable, str(CACHER), *([] if uid is None else [str(uid)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=node.environment(),
            cwd="/",
        )

    def tell(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(PATIENCE_S)}"
        return json.loads(line)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def ready(cachers: Sequence[Cacher], within_s: float) -> list[Cacher]:
    """Those that have an answer, as soon as one has."""
    pipes = {cacher.process.stdout: cacher for cacher in cachers}
    return [pipes[pipe] for pipe in select.select(list(pipes), [], [], within_s)[0]]


@pytest.fixture
def cachers(node: Node) -> Iterator[Callable[..., Cacher]]:
    made: list[Cacher] = []

    def make(uid: int | None = None) -> Cacher:
        made.append(Cacher(node, uid))
        return made[-1]

    yield make
    for cacher in made:
        cacher.close()


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    made = Client({"NPGXD_SOCKET": str(node.socket)}, patience=PATIENT)
    yield made
    made.close()


def open_to_all(node: Node) -> None:
    """As if all users were in the group of the socket."""
    node.runtime.chmod(0o755)
    node.socket.chmod(0o666)


def kept(node: Node) -> list[str]:
    """Everything of the compile cache that lies on the disk, whole or not."""
    return [str(path) for place in ("artifacts", "staging") for path in (node.state / place).rglob("*") if path.is_file()]


# ---- single flight ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sixteen_processes_at_once_have_one_builder_a_round_and_a_killed_one_has_one_successor(
    node: Node, cachers: Callable[..., Cacher]
) -> None:
    crowd = [cachers() for _ in range(PROCESSES)]
    killed = 0
    for number in range(ROUNDS):
        name, data = key(f"round {number}"), secrets.token_bytes(3000)
        for cacher in crowd:
            cacher.tell("lookup", key=name, label="Model.decode", deadline_s=120)
        waiting = list(crowd)
        builder = the_builder(waiting)
        if number % 2:
            builder.kill()
            crowd[crowd.index(builder)] = cachers()
            killed += 1
            builder = the_builder(waiting)
        assert builder.ask("publish", key=name, data=data.hex()) == {"ok": True, "reason": ""}
        told = [cacher.answer() for cacher in waiting]
        assert [(each["state"], each["data"]) for each in told] == [("HIT", data.hex())] * len(waiting)
    status = node.status()
    assert status is not None
    assert status["artifacts"]["published"] == status["artifacts"]["entries"] == ROUNDS
    # A builder may be killed before anybody else has asked; then the next one that asks builds, and nothing is handed on.
    assert ROUNDS <= status["artifacts"]["misses"] <= ROUNDS + killed
    assert (killed, status["artifacts"]["building"], status["artifacts"]["waiting"]) == (ROUNDS // 2, 0, 0)


def the_builder(waiting: list[Cacher]) -> Cacher:
    """The one that is told to build; it leaves those who wait, and nobody else has an answer."""
    found = ready(waiting, PATIENCE_S)
    assert len(found) == 1
    told = found[0].answer()
    assert (told["state"], told["alone"]) == ("MISS", False), told
    waiting.remove(found[0])
    assert ready(waiting, 0) == []
    return found[0]


def test_a_builder_that_gives_up_is_followed_by_one_and_one_that_cannot_cache_tells_all(
    cachers: Callable[..., Cacher],
) -> None:
    crowd = [cachers() for _ in range(3)]
    waiting = list(crowd)
    for cacher in crowd:
        cacher.tell("lookup", key=key("a"), deadline_s=120)
    first = the_builder(waiting)
    assert first.ask("release", key=key("a"))["ok"]
    second = the_builder(waiting)
    assert second.ask("not_cacheable", key=key("a"), code="RNG", reason="draws random numbers")["ok"]
    for told in (waiting[0].answer(), first.ask("lookup", key=key("a"))):
        assert (told["state"], told["code"], told["reason"]) == ("NOT_CACHEABLE", "RNG", "draws random numbers")


def test_a_wait_ends_at_the_clients_deadline_when_the_builder_hangs_and_nobody_is_made_builder_who_left(
    cachers: Callable[..., Cacher],
) -> None:
    hangs, hasty, patient = (cachers() for _ in range(3))
    assert hangs.ask("lookup", key=key("a"))["state"] == "MISS"
    patient.tell("lookup", key=key("a"), deadline_s=120)
    begun = time.monotonic()
    told = hasty.ask("lookup", key=key("a"), deadline_s=0.5)
    assert (told["state"], told["alone"], told["code"]) == ("MISS", True, "DEADLINE")
    assert time.monotonic() - begun < PATIENCE_S
    hangs.kill()
    told = patient.answer()
    assert (told["state"], told["alone"], told["code"]) == ("MISS", False, "HANDED_ON")
    assert hasty.ask("lookup", key=key("a"), deadline_s=0)["code"] == "BUILDING"


def test_a_builder_that_takes_too_long_is_followed_and_may_still_publish(
    make_node: Callable[..., Node], request: pytest.FixtureRequest
) -> None:
    node = make_node()
    node.settings["cache"] = {"build_s": 1.0}
    node.start()
    slow, other = Cacher(node), Cacher(node)
    request.addfinalizer(slow.close)
    request.addfinalizer(other.close)
    assert slow.ask("lookup", key=key("a"))["state"] == "MISS"
    assert other.ask("lookup", key=key("a"), deadline_s=120)["code"] == "HANDED_ON"
    assert slow.ask("publish", key=key("a"), data=b"slow".hex())["ok"]
    assert other.ask("lookup", key=key("a"))["data"] == b"slow".hex()
    assert other.ask("publish", key=key("a"), data=b"too late".hex())["ok"]
    assert other.ask("lookup", key=key("a"))["data"] == b"slow".hex()
    assert "other bytes" in node.log.read_text()


def test_processes_that_wait_for_a_daemon_that_is_killed_find_one_builder_at_the_next(
    node: Node, cachers: Callable[..., Cacher]
) -> None:
    builder, *waiting = crowd = [cachers() for _ in range(4)]
    assert builder.ask("lookup", key=key("a"))["state"] == "MISS"
    for cacher in waiting:
        cacher.tell("lookup", key=key("a"), deadline_s=120)
    eventually(lambda: (node.status() or {})["artifacts"]["waiting"] == 3, "three wait")
    node.kill()
    node.start()
    successor = the_builder(waiting)
    assert builder.ask("publish", key=key("a"), data=b"first".hex())["ok"]
    assert [cacher.answer()["data"] for cacher in waiting] == [b"first".hex()] * 2
    assert successor.ask("publish", key=key("a"), data=b"second".hex())["ok"]
    assert [cacher.ask("lookup", key=key("a"))["data"] for cacher in crowd] == [b"first".hex()] * 4


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_a_hit_after_the_daemon_was_killed(node: Node, client: Client) -> None:
    large = os.urandom(3 * ARTIFACT_PART_BYTES + 5)
    assert client.publish(key("a"), b"small", label="Model.prompt", meta={"torch": "2.13"})
    assert client.publish(key("b"), large)
    assert client.not_cacheable(key("c"), "RNG", "dropout")
    node.kill()
    node.start()
    assert client.lookup(key("a")).data == b"small"
    assert client.lookup(key("b")).data == large
    assert client.lookup(key("c")).code == "RNG"
    node.kill()
    for path in node.state.glob("catalog.sqlite*"):
        path.unlink()
    node.start()
    assert (client.lookup(key("a")).data, client.lookup(key("b")).data == large) == (b"small", True)


def test_fc07_an_entry_that_is_twice_reported_bad_is_built_anew_once_and_then_not_any_more(node: Node, client: Client) -> None:
    for expected in ("REBUILD", "LOAD_FAILED"):
        client.lookup(key("a"))
        assert client.publish(key("a"), b"bad")
        found = client.lookup(key("a"))
        assert client.bad_artifact(key("a"), found.digest, "an assertion in it failed")
        assert client.lookup(key("a")).state is ArtifactState.HIT
        assert client.bad_artifact(key("a"), found.digest, "it failed again")
        found = client.lookup(key("a"))
        assert (found.code, "an assertion in it failed" in found.reason) == (expected, True)
    assert found.state is ArtifactState.NOT_CACHEABLE
    assert not client.publish(key("a"), b"bad")
    reasons = [path.read_text() for path in (node.state / "quarantine").glob("*.reason")]
    assert len(reasons) == 2
    assert all("an assertion in it failed" in reason for reason in reasons)


def test_fc05_an_entry_that_its_publisher_could_not_load_back_is_gone_and_why_is_told(client: Client) -> None:
    assert client.publish(key("a"), b"with handles of one process")
    assert client.not_cacheable(key("a"), "PROCESS_LOCAL", "Triton kernel index 3")
    found = client.lookup(key("a"))
    assert (found.state, found.code, found.reason) == (ArtifactState.NOT_CACHEABLE, "PROCESS_LOCAL", "Triton kernel index 3")
    assert not client.publish(key("a"), b"again")


def test_an_entry_that_loaded_well_is_proven_and_its_past_forgotten(client: Client) -> None:
    assert client.publish(key("a"), b"bad")
    digest = client.lookup(key("a")).digest
    for _ in range(2):
        assert client.bad_artifact(key("a"), digest, "no")
    assert client.publish(key("a"), b"good")
    found = client.lookup(key("a"))
    assert (found.data, found.proven) == (b"good", False)
    assert client.proven(key("a"), found.digest)
    assert client.lookup(key("a")).proven
    for _ in range(2):
        assert client.bad_artifact(key("a"), found.digest, "a memory error")
    assert client.lookup(key("a")).code == "REBUILD"


# ---- whose it is -----------------------------------------------------------------------------------------------------


@AS_ROOT
def test_fc58_another_user_never_gets_an_entry_and_cannot_touch_it(
    node: Node, client: Client, cachers: Callable[..., Cacher]
) -> None:
    open_to_all(node)
    assert client.publish(key("a"), b"mine", label="Secret.forward")
    digest = client.lookup(key("a")).digest
    assert client.proven(key("a"), digest)
    stranger = cachers(NOBODY)
    assert stranger.ask("lookup", key=key("a"))["state"] == "MISS"
    assert stranger.ask("publish", key=key("a"), data=b"theirs".hex())["ok"]
    for _ in range(3):
        assert stranger.ask("bad_artifact", key=key("a"), digest=digest, reason="let it go")["ok"]
    assert stranger.ask("not_cacheable", key=key("a"), code="NO", reason="let it go")["ok"]
    assert client.lookup(key("a")).data == b"mine"
    assert client.lookup(key("a")).publisher == 0
    assert all(path.stat().st_uid == 0 for path in (node.state / "artifacts").rglob("*"))


def test_fc58_a_process_in_another_user_namespace_has_entries_of_its_own(
    node: Node, client: Client, request: pytest.FixtureRequest
) -> None:
    able = subprocess.run(["unshare", "--user", "--map-current-user", "true"], capture_output=True, check=False)
    if able.returncode:
        pytest.skip(f"no user namespace can be had here: {able.stderr.decode().strip()}")
    assert client.publish(key("a"), b"the node's")
    contained = Cacher(node, wrapped=("unshare", "--user", "--map-current-user"))
    request.addfinalizer(contained.close)
    assert contained.ask("lookup", key=key("a"))["state"] == "MISS"
    assert contained.ask("publish", key=key("a"), data=b"the container's".hex())["ok"]
    assert contained.ask("lookup", key=key("a"))["data"] == b"the container's".hex()
    assert client.lookup(key("a")).data == b"the node's"


@AS_ROOT
def test_a_trusted_publishers_entry_goes_to_others_once_it_is_proven_and_one_user_alone_can_refuse_it(
    make_node: Callable[..., Node], request: pytest.FixtureRequest
) -> None:
    node = make_node()
    node.settings["cache"] = {"trusted_uids": [0]}
    node.start()
    open_to_all(node)
    publisher, other, third = Cacher(node, 0), Cacher(node, NOBODY), Cacher(node, NOBODY - 1)
    for each in (publisher, other, third):
        request.addfinalizer(each.close)
    assert publisher.ask("publish", key=key("a"), data=b"shared".hex())["ok"]
    assert other.ask("lookup", key=key("a"))["state"] == "MISS"
    assert other.ask("release", key=key("a"))["ok"]
    digest = publisher.ask("lookup", key=key("a"))["digest"]
    assert publisher.ask("proven", key=key("a"), digest=digest)["ok"]
    told = other.ask("lookup", key=key("a"))
    assert (told["data"], told["publisher"], told["proven"]) == (b"shared".hex(), 0, True)
    assert other.ask("bad_artifact", key=key("a"), digest=digest, reason="not here")["ok"]
    assert other.ask("lookup", key=key("a"))["code"] == "REBUILD"
    assert third.ask("lookup", key=key("a"))["data"] == b"shared".hex()
    assert publisher.ask("lookup", key=key("a"))["data"] == b"shared".hex()


# ---- what clients may send -------------------------------------------------------------------------------------------


def test_entries_beyond_a_limit_are_refused_clearly_or_push_out_what_was_not_used(
    make_node: Callable[..., Node], request: pytest.FixtureRequest
) -> None:
    node = make_node()
    node.settings["cache"] = {"max_artifact_mb": 1, "max_uid_gb": 0.002, "max_entries": 3}
    node.start()
    client = Client({"NPGXD_SOCKET": str(node.socket)}, patience=PATIENT)
    request.addfinalizer(client.close)
    waiter = Cacher(node)
    request.addfinalizer(waiter.close)
    client.lookup(key("large"))
    waiter.tell("lookup", key=key("large"), deadline_s=120)
    eventually(lambda: (node.status() or {})["artifacts"]["waiting"] == 1, "one waits")
    told = client.publish(key("large"), bytes(1_100_000))
    assert (told.ok, "max_artifact_mb" in told.reason) == (False, True)
    assert (answer := waiter.answer())["state"] == "NOT_CACHEABLE"
    assert "max_artifact_mb" in answer["reason"]
    assert kept(node) == []
    for name in ("a", "b", "c"):
        assert client.publish(key(name), bytes(600_000))
    client.lookup(key("a"))
    assert client.publish(key("d"), bytes(600_000))
    states = {name: client.lookup(key(name), deadline_s=0).state for name in ("a", "b", "c", "d")}
    assert states == dict.fromkeys("acd", ArtifactState.HIT) | {"b": ArtifactState.MISS}
    status = node.status()
    assert status is not None
    assert (status["artifacts"]["entries"], status["artifacts"]["evicted"]) == (3, 1)


def test_users_see_what_is_cached_for_them_and_why_something_was_compiled_again(node: Node, client: Client) -> None:
    assert client.publish(key("a"), b"x", label="Model.prompt", meta={"torch": "2.13"})
    assert client.cache_note(key("a"), "Model.prompt", "MISFIT", "the global SCALE is 2, and was 1")
    assert client.not_cacheable(key("b"), "RNG", "dropout", label="Model.train")
    command = [sys.executable, "-m", "npgxd.cli.main", "cache"]

    def said(*words: str, code: int = 0) -> str:
        ran = subprocess.run([*command, *words], env=node.environment(), capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stderr
        return ran.stdout

    listed = said("ls")
    assert re.search(rf"Model.prompt unproven +{key('a')[:12]}", listed)
    assert "Model.train not cacheable" in listed
    assert "SCALE is 2" in said("why", "Model.prompt")
    assert json.loads(said("show", key("a")[:8], "--json"))["entries"][0]["meta"] == {"torch": "2.13"}
    said("show", "nothing", code=1)
    assert "1 entry" in said("rm", key("a")[:8])
    assert "1 verdict forgotten" in said("clear")
    assert client.lookup(key("b"), deadline_s=0).state is ArtifactState.MISS
