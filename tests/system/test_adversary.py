"""The real daemon under attack and misfortune: what clients send, what the disk and the toolchain do under it. It says so, and serves on."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
from typing import TYPE_CHECKING, Any

import msgpack
import psutil
import pytest
import zmq
from conftest_node import Node, eventually, matmuls

from npgxd.wire.codec import decode, pack_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDE = "\N{GRINNING FACE}"
"""Four bytes in UTF-8, twelve in JSON."""


class Peer:
    """Connections of this process, each a DEALER that sends whatever it likes."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], node: Node) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 30_000)
        self.socket.connect(f"ipc://{node.socket}")
        self._ids = iter(range(1, 1_000_000))

    def tell(self, op: str, frames: list[bytes] | None = None, **fields: Any) -> int:
        number = next(self._ids)
        self.socket.send_multipart([msgpack.packb({"v": 1, "id": number, "op": op, **fields}), *(frames or [])])
        return number

    def ask(self, op: str, frames: list[bytes] | None = None, **fields: Any) -> dict[str, Any]:
        return self.answer(self.tell(op, frames, **fields))

    def answer(self, number: int) -> dict[str, Any]:
        while True:
            envelope = decode(self.socket.recv_multipart())
            if envelope.id == number or (envelope.id == 0 and envelope.op == "refusal"):
                return envelope.header

    def hello(self, **more: Any) -> dict[str, Any]:
        return self.ask("hello", versions=[1], **more)

    def submit(self, *sizes: int, name: str = "", bad: int = 0, **more: Any) -> dict[str, Any]:
        items = [(label, text.encode()) for label, text in matmuls(*sizes)]
        items += [(WIDE * 255, f'{{"{WIDE * 64}": 1, "{WIDE * 64}": 2}}'.encode())] * bad  # the reason quotes the key
        return self.ask("submit", pack_records(items), round=name or secrets.token_hex(16), **more)

    def result(self, told: dict[str, Any]) -> dict[str, Any]:
        """Follow a round to its end."""
        assert told["op"] == "round", told
        told = self.ask("follow", round=told["round"])
        while told["op"] != "round" or told.get("result") is None:
            told = decode(self.socket.recv_multipart()).header
        return told["result"]

    def lease(self, node: Node, view: str) -> int:
        offer = self.ask("lease", view=view)
        held = os.open(node.state / offer["lease_path"], os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert self.ask("leased", lease=offer["lease"])["op"] == "done"
        return held


@pytest.fixture
def peers() -> Iterator[Callable[[Node], Peer]]:
    context = zmq.Context()
    made: list[Peer] = []

    def make(node: Node) -> Peer:
        made.append(Peer(context, node))
        return made[-1]

    yield make
    for peer in made:
        peer.socket.close(linger=0)
    context.destroy(linger=0)


def alive(node: Node) -> bool:
    assert node.daemon is not None
    return node.daemon.poll() is None


# ---- what clients say ------------------------------------------------------------------------------------------------


def test_names_that_a_client_chose_never_make_an_answer_too_large_to_send(node: Node, peers: Callable[[Node], Peer]) -> None:
    peer = peers(node)
    peer.hello()
    told = peer.submit(16, bad=400)
    assert told["op"] == "round"
    result = peer.result(told)
    assert (result["state"], result["reason"], result["compiled"]) == ("DEGRADED", "bad_records", 1)
    assert alive(node)


def test_a_hello_full_of_versions_gets_its_answer(node: Node, peers: Callable[[Node], Peer]) -> None:
    peer = peers(node)
    told = peer.hello(toolchain={"versions": {f"{number:03}{WIDE * 250}": WIDE * 255 for number in range(120)}})
    assert told["op"] == "welcome"
    assert told["differences"]
    assert peer.submit(16)["code"] == "TOOLCHAIN_MISMATCH"


def test_a_status_document_is_whole_json_however_much_clients_say(node: Node, peers: Callable[[Node], Peer]) -> None:
    crowd = [peers(node) for _ in range(400)]
    for number, peer in enumerate(crowd):
        peer.tell("hello", versions=[1], program=WIDE * 4000, rank={"run_id": str(number)})
        peer.tell("report", state="DEGRADED", reason="x", detail=WIDE * 4000, graph=WIDE * 255)
    for peer in crowd:
        peer.answer(2)
    asked = crowd[0].tell("status")
    envelope = decode(crowd[0].socket.recv_multipart())
    assert envelope.id == asked
    document = json.loads(b"".join(envelope.frames))
    assert len(document["jobs"]) == 200


def test_what_a_client_reports_is_one_line_of_the_log(node: Node, peers: Callable[[Node], Peer]) -> None:
    peer = peers(node)
    peer.hello()
    peer.ask("report", state="DEGRADED", reason="no", detail="fine\n2026 npgxd ERROR forged\x1b[2J")
    assert "forged" in node.log.read_text()
    assert not any(line.startswith("2026 npgxd ERROR forged") for line in node.log.read_text().splitlines())
    assert "\x1b" not in node.log.read_text()


def test_a_process_cannot_have_leases_without_end(node: Node, peers: Callable[[Node], Peer]) -> None:
    peer = peers(node)
    peer.hello()
    view = peer.result(peer.submit(16))["view"]
    answers = {(told := peer.ask("lease", view=view))["op"] + told.get("code", "") for _ in range(1030)}
    assert answers == {"lease_offer", "refusalLIMIT"}
    assert len(list((node.state / "leases").iterdir())) == 1024


def test_a_client_that_never_reads_is_not_waited_for_and_costs_little(node: Node, peers: Callable[[Node], Peer]) -> None:
    assert node.daemon is not None
    deaf, other = peers(node), peers(node)
    deaf.socket.setsockopt(zmq.RCVHWM, 1)  # else its libzmq reads a thousand messages for it
    deaf.hello()
    other.hello()
    large = [(name, json.dumps({**json.loads(text), "note": "x" * 200_000}).encode()) for name, text in matmuls(16, 32, 48, 64)]
    name = secrets.token_hex(16)
    assert deaf.result(deaf.ask("submit", pack_records(large), round=name))["state"] == "INSTALLED"
    before = psutil.Process(node.daemon.pid).memory_info().rss
    for number in range(1000):
        deaf.socket.send_multipart([msgpack.packb({"v": 1, "id": number, "op": "gathered", "round": name})])
        other.ask("nothing")  # as many of the deaf one's are answered: who only sends would be cut off
    assert other.result(other.submit(16))["state"] == "INSTALLED"
    eventually(lambda: "does not read" in node.log.read_text(), "the queue of the deaf one is full")
    assert psutil.Process(node.daemon.pid).memory_info().rss - before < 150 * 1024 * 1024


# ---- connections and processes ---------------------------------------------------------------------------------------


def test_a_session_ends_with_its_connection_though_its_process_lives(node: Node, peers: Callable[[Node], Peer]) -> None:
    assert node.daemon is not None
    process = psutil.Process(node.daemon.pid)
    stays = peers(node)
    stays.hello()
    descriptors = process.num_fds()
    for _ in range(60):
        peer = peers(node)
        peer.hello()
        peer.socket.close(linger=0)
    ranks = eventually(lambda: len(r := [r for job in node.status()["jobs"] for r in job["ranks"]]) == 1 and r, "they are gone")
    assert [rank["pid"] for rank in ranks] == [os.getpid()]
    eventually(lambda: process.num_fds() <= descriptors + 2, "their descriptors are given back")
    assert stays.ask("report", state="RECORDING")["op"] == "done"


def test_a_recording_rank_whose_connection_closes_is_not_waited_for(make_node: Callable[..., Node], peers: Any) -> None:
    node = make_node()
    node.settings["group"] = {"recording_s": 3000, "window_s": 0.2}
    node.start()
    job = {"run_id": "r", "master": "m:1", "launcher": "1:1", "world_size": 2, "local_world_size": 2}
    first, second = peers(node), peers(node)
    first.hello(rank={**job, "rank": 0})
    second.hello(rank={**job, "rank": 1})
    second.ask("report", state="RECORDING")
    told = first.submit(16)
    assert told["state"] == "WAITING"
    second.socket.close(linger=0)
    assert first.result(told)["state"] == "INSTALLED"


def test_a_round_that_another_process_takes_over_has_a_view_for_what_that_one_lacks(node: Node, peers: Any) -> None:
    first, second = peers(node), peers(node)
    first.hello()
    held = first.lease(node, first.result(first.submit(16))["view"])
    name = secrets.token_hex(16)
    assert first.result(first.submit(16, name=name)).get("view") is None, "it has the kernel already"
    second.hello()
    taken = second.result(second.submit(16, name=name))
    assert (taken["state"], taken["view_kernels"]) == ("INSTALLED", 1)
    os.close(held)


def test_a_process_without_a_view_that_is_to_lease_it_is_refused(node: Node, peers: Any) -> None:
    peer = peers(node)
    peer.hello()
    view = peer.result(peer.submit(16))["view"]
    offer = peer.ask("lease", view=view)
    held = os.open(node.state / offer["lease_path"], os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(held)
    assert peer.ask("leased", lease=offer["lease"])["op"] == "refusal", "the lock is gone"


# ---- the disk --------------------------------------------------------------------------------------------------------


def test_a_round_that_cannot_be_written_down_is_refused_and_can_be_sent_again(node: Node, peers: Any) -> None:
    peer = peers(node)
    peer.hello()
    journal, name = node.state / "rounds", secrets.token_hex(16)
    journal.rename(node.state / "away")
    journal.write_text("no directory")
    assert peer.submit(16, name=name)["code"] == "STORE"
    assert peer.ask("follow", round=name)["code"] == "UNKNOWN_ROUND"
    journal.unlink()
    (node.state / "away").rename(journal)
    assert peer.result(peer.submit(16, name=name))["state"] == "INSTALLED"


def test_workers_that_cannot_be_started_are_tried_again_with_nobody_asking(node: Node, peers: Any) -> None:
    peer = peers(node)
    peer.hello()
    jobs = node.state / "jobs"
    shutil.rmtree(jobs)
    jobs.write_text("no directory")
    assert peer.submit(16)["op"] == "round"
    eventually(lambda: "cannot start a compile" in node.log.read_text(), "the first try fails")
    jobs.unlink()
    jobs.mkdir()
    eventually(lambda: list((node.state / "kernels").rglob("manifest.json")), "a later one does not")


def test_workers_that_can_never_be_started_degrade_the_round_with_the_reason(node: Node, peers: Any) -> None:
    peer = peers(node)
    peer.hello()
    shutil.rmtree(node.state / "jobs")
    (node.state / "jobs").write_text("no directory")
    result = peer.result(peer.submit(16))
    assert (result["state"], result["reason"]) == ("DEGRADED", "compile_failed")
    assert "jobs" in result["failures"][0]["reason"]
    assert alive(node)


@pytest.mark.parametrize("place", ["views", "kernels", "packages"])
def test_a_place_that_cannot_be_written_degrades_the_round_with_the_reason_and_passes(node: Node, peers: Any, place: str) -> None:
    peer = peers(node)
    peer.hello()
    broken = node.state / place
    broken.rename(node.state / "away")
    broken.write_text("no directory")
    result = peer.result(peer.submit(16, 32))
    assert result["state"] == "DEGRADED"
    assert result.get("view") is None
    assert alive(node)
    broken.unlink()
    (node.state / "away").rename(broken)
    assert peer.result(peer.submit(16, 32))["state"] == "INSTALLED"


def test_the_status_tells_what_it_can_when_the_catalog_cannot_be_read(node: Node, peers: Any) -> None:
    peer = peers(node)
    peer.hello()
    peer.result(peer.submit(16))
    for suffix in ("", "-wal", "-shm"):
        (node.state / f"catalog.sqlite{suffix}").unlink(missing_ok=True)
    (node.state / "catalog.sqlite").mkdir()
    shutil.rmtree(node.state / "leases")
    document = node.status()
    assert document is not None
    assert document["daemon"]["state"] == "READY"


def test_what_was_rejected_is_rejected_also_after_a_restart(node: Node, peers: Any) -> None:
    node.cann.order("*", "hang")
    peer, name = peers(node), secrets.token_hex(16)
    peer.hello()
    assert peer.submit(16, bad=1, name=name)["state"] != "SETTLED"
    node.kill()
    node.cann.cancel_orders()
    node.start()
    later = peers(node)
    later.hello()
    result = later.result(later.ask("follow", round=name))
    assert (result["state"], result["reason"], result["compiled"]) == ("DEGRADED", "bad_records", 1)


def test_garbage_in_the_journal_stops_no_start_and_a_stranger_cannot_take_its_name(node: Node, peers: Any) -> None:
    assert node.stop() == 0
    (node.state / "rounds" / f"{'a' * 32}.round").write_bytes(b"npgxd-round 1\n" + secrets.token_bytes(100))
    (node.state / "rounds" / "directory").mkdir()
    (node.state / "rounds" / "link").symlink_to("/etc/passwd")
    node.start()
    peer = peers(node)
    peer.hello()
    assert peer.result(peer.submit(16, name="a" * 32))["state"] == "INSTALLED"
    assert not list((node.state / "rounds").iterdir())


def test_something_at_the_sockets_place_is_an_error_with_a_name(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.write_config()
    node.socket.mkdir()
    daemon = node.spawn("-m", "npgxd.daemon.main", "--config", str(node.config), stderr=node.log)
    assert daemon.wait(60) == 78
    assert "Traceback" not in node.log.read_text()
    assert "npgxd.sock" in node.log.read_text()


# ---- the toolchain ---------------------------------------------------------------------------------------------------


def test_a_toolchain_that_goes_away_is_told_and_found_again(node: Node, peers: Any) -> None:
    peer, home = peers(node), node.cann.home.resolve()
    peer.hello()
    peer.result(peer.submit(16))
    away = home.with_name("away")
    home.rename(away)
    refused = eventually(lambda: (told := peer.submit(32))["op"] == "refusal" and told, "it is missed")
    assert refused["code"] == "NO_TOOLCHAIN"
    assert (node.status() or {})["toolchain"]["problem"]
    away.rename(home)
    told = eventually(lambda: (told := peer.submit(32))["op"] == "round" and told, "it is found")
    assert peer.result(told)["state"] == "INSTALLED"


def test_a_toolchain_that_goes_away_under_a_compile_ends_its_rounds_honestly(make_node: Callable[..., Node], peers: Any) -> None:
    node = make_node(startup_s=0.4, per_op_s=0.2)
    node.start()
    peer = peers(node)
    peer.hello()
    told = peer.submit(16)
    eventually(node.cann.runs, "it compiles")
    home = node.cann.home.resolve()
    home.rename(home.with_name("away"))
    result = peer.result(told)
    assert (result["state"], result.get("view")) == ("DEGRADED", None)
    assert result["reason"] == "no_toolchain"
    assert alive(node)


def test_another_cann_at_the_same_place_is_the_toolchain_from_then_on(node: Node, peers: Any) -> None:
    peer = peers(node)
    peer.hello()
    peer.result(peer.submit(16))
    for info in node.cann.home.rglob("version.info"):
        info.write_text(info.read_text().replace("9.1.0", "9.0.0"))

    def seen() -> bool:
        peer.submit(32)
        return bool((node.status() or {})["toolchain"]["cann_version"] == "9.0.0")

    eventually(seen, "it is seen")
    assert alive(node)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_drain_refuses_what_is_new_tells_who_waits_and_a_second_signal_ends_it(node: Node, peers: Any) -> None:
    assert node.daemon is not None
    node.cann.order("*", "hang")
    peer = peers(node)
    peer.hello()
    name = peer.submit(16)["round"]
    eventually(node.cann.runs, "it compiles")
    node.daemon.send_signal(signal.SIGTERM)
    eventually(lambda: (node.status() or {})["daemon"]["state"] == "DRAINING", "it drains")
    assert peer.submit(32)["code"] == "DRAINING"
    assert peer.ask("follow", round=name).get("result") is None
    node.daemon.send_signal(signal.SIGTERM)
    assert node.daemon.wait(60) == 0
    assert [path.name for path in (node.state / "rounds").iterdir()] == [f"{name}.round"]
    assert not node.compilers()
