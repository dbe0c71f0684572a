"""Readers that never stop looking while kernels and views come and go."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.store.made import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oplib.conftest import Holders, OpLibrary

ROOT = Path(__file__).resolve().parents[2]
READER = """
import hashlib, json, os, sys
from pathlib import Path
from tools.cann_sim.reader import Reader

state, kind, wanted = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
loops, torn, seen = 0, [], set()
print("reading", flush=True)


def kernels():
    for shelf in (state / "kernels").iterdir():
        for kernel in shelf.iterdir():
            manifest = json.loads((kernel / "manifest.json").read_bytes())
            for member in manifest["members"]:
                if hashlib.sha256((kernel / member["name"]).read_bytes()).hexdigest() != member["sha256"]:
                    torn.append(f"{kernel.name}: {member['name']}")
            objects = {path.read_bytes()[:1].decode() for path in kernel.glob("*.o")}
            if len(objects) != 1:
                torn.append(f"{kernel.name}: of two writers {objects}")
            seen.update(objects)


def views():
    for name in wanted or os.listdir(state / "views"):
        reader = Reader("Ascend910B3")
        report = reader.load(state / "views" / name)
        torn.extend(str(one) for one in (*report.torn, *reader.verify()))
        if not reader.selected:
            torn.append(f"{name}: nothing loaded")
        for kernel in reader.selected.values():
            seen.add(kernel.open()[:1].decode())


while not (state.parent / "stop").exists():
    {"kernels": kernels, "views": views}[kind]()
    loops += 1
print(json.dumps({"loops": loops, "torn": torn[:5], "seen": sorted(seen)}))
"""


class Readers:
    """Processes that read until they are told to stop."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._all: list[subprocess.Popen[str]] = []

    def start(self, kind: str, *wanted: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", READER, str(self._state), kind, *wanted], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self._all.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"

    def stop(self) -> list[dict[str, object]]:
        (self._state.parent / "stop").touch()
        return [json.loads(process.communicate(timeout=60)[0]) for process in self._all]

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.communicate()


@pytest.fixture
def readers(oplib: OpLibrary) -> Iterator[Readers]:
    made = Readers(oplib.house.path)
    yield made
    made.end()


def test_fc09_two_writers_of_one_key_and_readers_that_only_see_one_complete_set(oplib: OpLibrary, readers: Readers) -> None:
    house = oplib.house
    oplib.views.assemble([house.publish("first", b"A", suffixes=("d0", "d1"))])
    for kind in ("kernels", "views", "views"):
        readers.start(kind)
    for number in range(40):
        staged = {writer: house.stage(f"op{number}", writer, suffixes=("d0", "d1")) for writer in (b"A", b"B")}
        order = (b"A", b"B") if number % 2 else (b"B", b"A")
        for writer in order:
            house.kernels.publish([staged[writer]])
            found = house.kernels.find(digest(f"op{number}"))
            assert found is not None
            oplib.views.assemble([found])
    told = readers.stop()
    assert [reader["torn"] for reader in told] == [[], [], []]
    assert all(reader["loops"] for reader in told)
    assert told[0]["seen"] == ["A", "B"]
    assert house.kernels.count() == 81


def test_fc34_a_leased_view_is_whole_at_every_instant_while_others_come_and_go(
    oplib: OpLibrary, holders: Holders, readers: Readers
) -> None:
    kernels = [oplib.house.publish(f"op{number}") for number in range(12)]
    leased = oplib.views.assemble(kernels[:6])
    lease = oplib.offer(leased)
    holders.hold(oplib.path(lease))
    oplib.leases.confirm(lease.lease)
    for _ in range(2):
        readers.start("views", leased.digest)
    for number in range(60):
        oplib.views.assemble(kernels[number % 6 : number % 6 + 6][: 1 + number % 5])
        assert leased.digest not in oplib.drop_unleased()
    told = readers.stop()
    assert [reader["torn"] for reader in told] == [[], []]
    assert all(reader["loops"] for reader in told)
    assert oplib.views.count() == 1
