"""Many clients at once: each key is compiled once, whatever they say of themselves, and what was acknowledged is kept."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import PATIENCE_S, PATIENT, RANK, Node, matmuls, named

from npgxd.client import Client
from npgxd.store.rounds import RoundJournal
from npgxd.store.state import StateDirectory
from npgxd.toolchain.record import parse_record
from npgxd.wire.messages import Follow, RoundProgress
from tools.cann_sim import records

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

CLIENTS = 8

SUBMITTER = """
import json, os, signal, sys
from pathlib import Path
from npgxd.client import Client, Patience
from npgxd.wire.codec import pack_records
from npgxd.wire.messages import RoundProgress, Submit
ask, how, told, patience = sys.argv[1:]
items = [(name, text.encode()) for name, text in json.loads(Path(ask).read_text())]
name = os.urandom(16).hex()
session = Client(patience=Patience(**json.loads(patience)))._session
frames = pack_records(items)
pieces = [frames[at : at + 4] for at in range(0, len(frames), 4)]
for number, piece in enumerate(pieces):
    reply = session.request(Submit(round=name, part=number, parts=len(pieces)), piece)
assert isinstance(reply.message, RoundProgress) and reply.message.records == len(items), reply
os.write(os.open(told, os.O_WRONLY | os.O_CREAT, 0o600), name.encode())
os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(0)
"""
ELSEWHERE = """
import ctypes, os, runpy, socket, sys
CLONE_NEWUTS = 0x04000000
if ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0:
    socket.sethostname("elsewhere")
_, directory, *sys.argv = sys.argv
os.chdir(directory)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def client(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of this process."""
    monkeypatch.setenv("NPGXD_SOCKET", str(node.socket))
    made = Client()
    yield made
    made.close()


@pytest.mark.slow
def test_fc37_of_8_independent_cold_clients_in_20_rounds_none_fails_and_each_key_is_compiled_once(node: Node) -> None:
    rounds = [matmuls(16 * turn) for turn in range(1, 21)]
    ranks = [node.rank([], options={"rounds": rounds}, MASTER_PORT=str(port)) for port in range(CLIENTS)]
    for rank in ranks:
        outcome = rank.outcome()
        assert [one["state"] for one in outcome["rounds"]] == ["INSTALLED"] * 20
        assert (outcome["missing"], outcome["extra"], outcome["torn"]) == (0, 0, 0)
    assert len(node.compiled()) == len(set(node.compiled())) == 20


def test_fc16_a_known_set_is_a_hit_in_any_order_from_any_directory_host_and_rank(node: Node) -> None:
    sizes = list(range(16, 16 + 125))
    node.rank(matmuls(*sizes[:120])).outcome()
    outcome = node.rank(matmuls(*sizes)).outcome()
    assert (outcome["hits"], outcome["compiled"]) == (120, 5)
    compiled = len(node.compiled())
    assert compiled == 125
    elsewhere = node.directory / "elsewhere"
    elsewhere.mkdir()
    renamed = [(f"other_{number}.json", text) for number, (_, text) in enumerate(reversed(matmuls(*sizes)))]
    variables = {
        "RANK": "5",
        "LOCAL_RANK": "5",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "9",
        "ASCEND_GLOBAL_LOG_LEVEL": "0",
    }
    outcome = node.rank(renamed, launch=("-c", ELSEWHERE, str(elsewhere), str(RANK)), **variables).outcome()
    assert (outcome["state"], outcome["reason"], outcome["hits"], outcome["compiled"]) == ("INSTALLED", "hit", 125, 0)
    assert (outcome["missing"], outcome["extra"]) == (0, 0)
    assert len(node.compiled()) == compiled


def test_fc31_8_ranks_that_say_nothing_or_nonsense_of_their_number_are_all_installed_by_one_compile_a_key(node: Node) -> None:
    sizes = [None, "8", "3", "x", "-1", "16", "", "8"]
    ranks = []
    for rank, size in enumerate(sizes):
        more = {} if size is None else {"LOCAL_WORLD_SIZE": size}
        ranks.append(node.rank(matmuls(16, 32, 48), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="8", **more))
    outcomes = [rank.outcome() for rank in ranks]
    assert [outcome["state"] for outcome in outcomes] == ["INSTALLED"] * CLIENTS
    assert {(o["missing"], o["extra"], o["torn"]) for o in outcomes} == {(0, 0, 0)}
    assert len(node.compiled()) == len(set(node.compiled())) == 3
    assert any("LOCAL_WORLD_SIZE" in job["note"] for job in (node.status() or {})["jobs"])


def test_fc23_what_was_acknowledged_is_there_after_the_client_and_the_daemon_are_killed(node: Node, client: Client) -> None:
    node.cann.order("*", "hang")  # so that no round is settled before the daemon is killed
    sent = {number: [records.matmul(size, 16 * (number + 1), 64) for size in range(1, 1001)] for number in range(CLIENTS)}
    told = {number: node.directory / f"acknowledged{number}" for number in sent}
    submitters: dict[int, subprocess.Popen[bytes]] = {}
    for number, items in sent.items():
        ask = node.directory / f"submit{number}.json"
        ask.write_text(json.dumps(named(*items)))
        how = "kill" if number % 2 else "exit"
        command = ("-c", SUBMITTER, str(ask), how, str(told[number]), json.dumps(PATIENT))
        submitters[number] = node.spawn(*command, stderr=node.directory / "submit.err")
    for number, process in submitters.items():
        code = process.wait(PATIENCE_S)
        assert code == (-signal.SIGKILL if number % 2 else 0), (node.directory / "submit.err").read_text()
    node.kill()
    names = {number: path.read_text() for number, path in told.items()}
    state = StateDirectory.open(node.state)
    journal = {entry.round: entry for entry in RoundJournal(state).pending()}
    state.close()
    for number, name in names.items():
        assert {raw for _, raw in journal[name].records} == {_canonical(item) for item in sent[number]}
    node.start()
    for name in names.values():
        told_now = client._session.request(Follow(round=name)).message
        assert isinstance(told_now, RoundProgress)
        assert (told_now.round, told_now.records) == (name, 1000)


def _canonical(item: dict[str, Any]) -> bytes:
    return parse_record("r", records.encode(item)).canonical
