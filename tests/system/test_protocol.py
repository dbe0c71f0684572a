"""The real daemon against clients that do not keep to docs/protocol.md, and against those that die: it refuses, forgets, and serves on."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import psutil
import pytest
import zmq
from conftest_node import Node, eventually, matmuls

from npgxd.wire import limits
from npgxd.wire.codec import decode, pack_records
from npgxd.wire.credentials import PeerCredentials, send_as

if TYPE_CHECKING:
    from collections.abc import Iterator


class Raw:
    """A DEALER that sends whatever it likes."""

    def __init__(self, node: Node) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self.socket.connect(f"ipc://{node.socket}")
        self.ids = iter(range(1, 1_000_000))

    def ask(self, op: str, frames: list[bytes] | None = None, **fields: Any) -> dict[str, Any]:
        number = next(self.ids)
        self.socket.send_multipart([msgpack.packb({"v": 1, "id": number, "op": op, **fields}), *(frames or [])])
        while True:
            envelope = decode(self.socket.recv_multipart())
            if envelope.id in {number, 0} and (envelope.id == number or envelope.op == "refusal"):
                return envelope.header

    def hello(self, **more: Any) -> dict[str, Any]:
        return self.ask("hello", versions=[1], **more)

    def submit(self, sizes: tuple[int, ...], name: str | None = None, **more: Any) -> dict[str, Any]:
        frames = pack_records((label, text.encode()) for label, text in matmuls(*sizes))
        return self.ask("submit", frames, round=name or secrets.token_hex(16), **more)

    def settled(self, told: dict[str, Any]) -> dict[str, Any]:
        """Follow a round to its end."""
        told = self.ask("follow", round=told["round"])
        while told.get("result") is None:
            told = decode(self.socket.recv_multipart()).header
        return told

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def raw(node: Node) -> Iterator[Raw]:
    made = Raw(node)
    yield made
    made.close()


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch /tmp/npgxd-was-exploited",))


GARBAGE = [
    b"",
    b"\xff" * 100,
    b"not msgpack at all",
    msgpack.packb([1, 2, 3]),
    msgpack.packb({"op": "hello"}),
    msgpack.packb({"v": 1, "id": True, "op": "hello"}),
    msgpack.packb({"v": 1, "id": -1, "op": "hello"}),
    msgpack.packb({"v": 1, "id": 1, "op": 7}),
    msgpack.packb({"v": 99, "id": 1, "op": "submit"}),
    msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": ["1"]}),
    msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": [1], "rank": {"rank": 2**40}}),
    msgpack.packb({"v": 1, "id": 1, "op": "make_coffee"}),
    msgpack.packb({"v": 1, "id": 1, "op": "hello", "x": msgpack.ExtType(4, b"x")}),
    b"\x81" * 10_000,
    b"\xdd\xff\xff\xff\xff",
    pickle.dumps(Exploit()),
]


@pytest.mark.parametrize("part", GARBAGE, ids=range(len(GARBAGE)))
def test_fc57_bytes_that_are_no_message_are_refused_and_the_daemon_serves_on(node: Node, raw: Raw, part: bytes) -> None:
    raw.socket.send_multipart([part])
    answer = decode(raw.socket.recv_multipart())
    assert answer.op == "refusal"
    assert answer.header["message"]
    assert raw.hello()["op"] == "welcome"
    assert not Path("/tmp/npgxd-was-exploited").exists()
    assert node.daemon is not None
    assert node.daemon.poll() is None


def test_fc57_the_daemon_listens_on_no_network(node: Node) -> None:
    assert node.daemon is not None
    kinds = psutil.Process(node.daemon.pid).net_connections(kind="inet")
    assert kinds == []


def test_nothing_but_status_is_answered_before_a_hello(raw: Raw) -> None:
    for op, fields in {
        "report": {"state": "RECORDING"},
        "submit": {"round": "0" * 32},
        "follow": {"round": "0" * 32},
        "gathered": {"round": "0" * 32},
        "lease": {"view": "0" * 64},
        "leased": {"lease": "0" * 32},
        "bye": {},
    }.items():
        assert raw.ask(op, **fields)["code"] == "NEED_HELLO", op
    assert raw.ask("status")["op"] == "status_document"


def test_a_client_of_another_protocol_version_is_told_both(raw: Raw) -> None:
    answer = raw.ask("hello", versions=[2, 3])
    assert answer["code"] == "UNSUPPORTED_VERSION"
    assert "[2, 3]" in answer["message"]


def test_credentials_that_a_client_claims_do_not_count(node: Node) -> None:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(node.socket))
        send_as(connected, PeerCredentials(12345, 12345, 1), msgpack.packb({"v": 1, "id": 1, "op": "hello", "versions": [1]}))
        document = eventually(lambda: (d := node.status()) and d["jobs"] and d, "the forger is connected")
    assert [job["uid"] for job in document["jobs"]] == [os.getuid()]
    assert [rank["pid"] for job in document["jobs"] for rank in job["ranks"]] == [os.getpid()]


def test_the_same_round_sent_twice_is_one_round_also_from_another_connection(node: Node, raw: Raw) -> None:
    raw.hello()
    name = secrets.token_hex(16)
    first = raw.settled(raw.submit((16, 32), name))
    again = raw.submit((16, 32), name)
    assert again["result"]["view"] == first["result"]["view"]
    other = Raw(node)
    other.hello()
    assert other.submit((16, 32), name)["result"]["state"] == "INSTALLED"
    other.close()
    assert len(node.compiled()) == 2


def test_a_view_is_leased_only_to_a_user_who_was_given_it_and_only_with_its_lock(node: Node, raw: Raw) -> None:
    raw.hello()
    assert raw.ask("lease", view="0" * 64)["code"] == "UNKNOWN_VIEW"
    assert raw.ask("lease", view="../../etc/passwd")["code"] == "BAD_REQUEST"
    view = raw.settled(raw.submit((16,)))["result"]["view"]
    offer = raw.ask("lease", view=view)
    assert raw.ask("leased", lease=offer["lease"])["op"] == "refusal", "nobody holds the lock"
    assert raw.ask("leased", lease="f" * 32)["code"] == "UNKNOWN_LEASE"
    assert (node.state / offer["view_path"]).is_dir()


def test_unknown_rounds_and_bad_fields_are_refused_by_name(raw: Raw) -> None:
    raw.hello()
    assert raw.ask("follow", round="0" * 32)["code"] == "UNKNOWN_ROUND"
    assert raw.ask("gathered", round="0" * 32)["code"] == "UNKNOWN_ROUND"
    assert "round" in raw.ask("follow", round="../x")["message"]
    assert raw.ask("submit", round="0" * 32, part=3, parts=2)["op"] == "refusal"
    assert raw.ask("submit", [b"\xc1"], round="0" * 32)["code"] == "BAD_REQUEST"
    assert raw.ask("submit", round="0" * 32, options={"super_kernel": {"-o": "/etc/x"}})["code"] == "BAD_REQUEST"


def test_a_round_without_a_usable_record_is_settled_and_says_so(raw: Raw) -> None:
    raw.hello()
    empty = raw.ask("submit", [], round=secrets.token_hex(16))
    assert (empty["result"]["state"], empty["result"]["reason"]) == ("DISABLED", "nothing_to_compile")
    bad = raw.ask("submit", pack_records([("x.json", b"[]")]), round=secrets.token_hex(16))
    assert (bad["result"]["state"], bad["result"]["reason"]) == ("DEGRADED", "bad_records")


def test_one_user_cannot_fill_the_daemon_with_rounds(node: Node, raw: Raw) -> None:
    node.cann.order("*", "hang")
    raw.hello(rank={"local_world_size": 9, "world_size": 9})
    code = ""
    for _ in range(600):
        answer = raw.submit((16,))
        if answer["op"] == "refusal":
            code = answer["code"]
            break
    assert code == "LIMIT"
    assert raw.ask("status")["op"] == "status_document"


def test_a_recording_rank_is_waited_for_and_one_that_dies_while_recording_is_not(node: Node) -> None:
    node.settings["group"] = {"recording_s": 3000}
    assert node.stop() == 0
    node.start()
    job = {"run_id": "r", "master": "m:1", "launcher": "1:1", "world_size": 2, "local_world_size": 2}
    first, second = Raw(node), Raw(node)
    first.hello(rank={**job, "rank": 0})
    second.hello(rank={**job, "rank": 1})
    second.ask("report", state="RECORDING")
    told = first.submit((16,))
    assert told["state"] == "WAITING"
    # The connection of one process stands for two ranks here, so only its own end can be told: by saying goodbye.
    assert second.ask("bye")["op"] == "done"
    assert first.settled(told)["result"]["state"] == "INSTALLED"
    first.close()
    second.close()


def test_clients_that_come_and_go_leave_no_descriptor_behind(node: Node) -> None:
    assert node.daemon is not None
    process = psutil.Process(node.daemon.pid)

    def churn(times: int) -> None:
        for _ in range(times):
            one = Raw(node)
            one.hello()
            one.submit((16,))
            one.ask("bye")
            one.close()

    churn(3)
    eventually(lambda: not node.children(), "the first compile ends")
    eventually(lambda: (node.status() or {})["jobs"] == [], "all have gone")
    before = process.num_fds()
    churn(40)
    eventually(lambda: process.num_fds() <= before + 2, "descriptors come back")


def test_a_daemon_with_idle_clients_sleeps(node: Node, raw: Raw) -> None:
    raw.hello()
    assert node.daemon is not None
    process = psutil.Process(node.daemon.pid)
    raw.socket.poll(1000)  # what belongs to the hello is done by then
    before = _switches(process)
    raw.socket.poll(3000)
    assert _switches(process) - before < 30, "woken for nothing"


def _switches(process: psutil.Process) -> int:
    counted = process.num_ctx_switches()
    return counted.voluntary + counted.involuntary


def test_a_status_document_is_json_whatever_is_in_it(raw: Raw) -> None:
    raw.hello(program="\N{BELL}\u202e\n" * 50, rank={"run_id": "\x1b[31m" * 10})
    raw.socket.send_multipart([msgpack.packb({"v": 1, "id": 77, "op": "status"})])
    envelope = decode(raw.socket.recv_multipart())
    document = json.loads(b"".join(envelope.frames))
    assert document["schema"] == 1
    assert len(document["jobs"]) == 1


def test_more_than_a_message_may_hold_is_not_even_received(node: Node, raw: Raw) -> None:
    raw.hello()
    other = Raw(node)
    other.hello()
    other.socket.send_multipart([b"x" * (limits.MAX_FRAME_BYTES + limits.MAX_HEADER_BYTES)])
    assert raw.ask("status")["op"] == "status_document"
    other.close()
