"""Readers that never pause, while views come and go and two writers disagree. The long profiles: ``NPGXD_CRASH_LONG=1``."""

# ruff: noqa: T201 -- the long profiles report their numbers (pytest -rP shows them)
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npgxd.oplib.leases import Leases
from npgxd.oplib.views import Views
from tests.crash.ground import Ground, verified
from tests.crash.looking import memory_directory
from tests.store.made import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npgxd.store.manifest import KernelManifest

ROOT = Path(__file__).resolve().parents[2]
LONG = bool(os.environ.get("NPGXD_CRASH_LONG"))
READERS = 8 if LONG else 2
ROUNDS = 1000 if LONG else 40
PUBLISHED = 1000 if LONG else 200


class Readers:
    """Processes that read until they are told to stop."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.all: list[subprocess.Popen[str]] = []

    def start(self, kind: str, number: int) -> None:
        for _ in range(number):
            command = [sys.executable, "-m", "tests.crash.reading", str(self.state), kind]
            self.all.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        for process in self.all[-number:]:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"

    def stop(self) -> list[dict[str, object]]:
        (self.state.parent / "stop").touch()
        return [json.loads(process.communicate(timeout=120)[0]) for process in self.all]

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def ground() -> Iterator[Ground]:
    with memory_directory() as place:
        made = Ground(Path(place))
        yield made
        made.close()


@pytest.fixture
def readers(ground: Ground) -> Iterator[Readers]:
    made = Readers(ground.house.path)
    yield made
    made.end()


@pytest.mark.timeout(1800)
def test_fc09_two_writers_with_different_bytes_for_one_key_and_readers_that_see_one_complete_set(
    ground: Ground, readers: Readers
) -> None:
    house = ground.house
    house.publish("op", b"A0", suffixes=("d0", "d1"))
    readers.start("kernels", READERS)
    kept: list[KernelManifest] = []
    for number in range(ROUNDS):
        writers = [b"A", b"B"] if number % 2 else [b"B", b"A"]
        staged = [house.stage("op", writer + str(number).encode(), suffixes=("d0", "d1")) for writer in writers]
        for writer, path in zip(writers, staged, strict=True):
            kept += house.kernels.publish([path])
            found = house.kernels.find(digest("op"))
            assert found is not None
            member = next(member.name for member in found.members if member.name.endswith(".o"))
            assert (house.kernels.directory(found.id) / member).read_bytes()[:1] == writer
        while len(kept) > 20:  # so that the readers come round often
            gone = kept.pop(0)
            house.kernels.forget([gone.id])
            away = house.state.staging / f"dropped-{gone.id}"
            house.state.disk.move(house.kernels.directory(gone.id), away, durable=False)
            if number % 50 == 0:
                for path in house.state.staging.iterdir():
                    house.state.disk.remove_tree(path)
    told = readers.stop()
    print(f"{ROUNDS} rounds, {READERS} readers: {sum(int(str(one['reads'])) for one in told)} reads of whole kernels")
    assert [one["torn"] for one in told] == [[]] * READERS
    assert all(one["seen"] == ["A", "B"] for one in told)


@pytest.mark.timeout(1800)
def test_fc34_index_and_members_are_whole_at_every_instant_while_views_are_published_and_dropped(
    ground: Ground, readers: Readers
) -> None:
    kernels = [ground.house.publish(f"op{number}") for number in range(12)]
    readers.start("views", READERS)
    for number in range(PUBLISHED):
        ground.views.assemble(kernels[number % 7 : number % 7 + 1 + number % 5])
        if number % 3:
            ground.views.drop_unleased(keep=())
    told = readers.stop()
    print(f"{PUBLISHED} views, {READERS} readers: {sum(int(str(one['reads'])) for one in told)} loads of whole views")
    assert [one["torn"] for one in told] == [[]] * READERS
    assert all(one["loops"] for one in told)
    ground.views.drop_unleased(keep=())
    assert verified(ground.house, Views(ground.house.state, ground.house.kernels, "b"), Leases(ground.house.state, "b")) == []
