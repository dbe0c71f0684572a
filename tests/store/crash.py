"""Ends a process at every single act on the disk, one process for each, and looks at what is left.

``python -m tests.store.crash SCENARIO DIRECTORY`` prints one line of JSON for each step: what it died before, and what was wrong
afterwards.  A process of its own with one thread, so that it can fork.
"""

# ruff: noqa: T201 -- it talks to the test that runs it
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.errors import StoreError
from npgxd.oplib.leases import Leases
from npgxd.oplib.recovery import recover
from npgxd.oplib.views import Views
from npgxd.store.disk import Disk
from npgxd.store.staging import stage_kernel
from npgxd.store.state import StateDirectory
from tests.store.made import House, digest, files, making, origin, round_entry
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

FINISHED = 0
DIED = 77
BOOT = "this-boot"


class Dying(Disk):
    """The process ends, without any clean-up, before act number ``last``."""

    def __init__(self, last: int, note: Path) -> None:
        super().__init__()
        self.left = last
        self.note = note

    def step(self, operation: str, path: Path) -> None:
        self.left -= 1
        if self.left <= 0:
            self.note.write_text(f"{operation} {path.name}")
            os._exit(DIED)


def views_of(house: House) -> Views:
    return Views(house.state, house.kernels, BOOT)


# ---- scenarios: prepare, act (may die), check (after a restart; ``done`` says whether the act had returned) -----------------


def nothing(house: House) -> None:
    """Nothing to prepare."""


def publish(house: House) -> None:
    house.kernels.publish([house.state.staging / name for name in ("a", "b", "c")])


def stage_three(house: House) -> None:
    for name in ("a", "b", "c"):
        stage_kernel(house.state.staging / name, origin(name), making(), files(house.scratch / name, name, name.encode()))


def published_before(house: House) -> None:
    """``a`` is there already, byte for byte, and ``b`` with other bytes."""
    house.publish("a", b"a")
    house.publish("b", b"older")
    stage_three(house)


def check_kernels(house: House, *, done: bool) -> list[str]:
    problems: list[str] = []
    found = house.kernels.find_many([digest(name) for name in ("a", "b", "c")])
    for manifest in found.values():
        house.kernels.verify(manifest.id)
    if done and len(found) != 3:
        problems.append(f"acknowledged, but only {len(found)} kernels are found")
    on_disk = {path.name for shelf in house.state.kernels.iterdir() for path in shelf.iterdir()}
    if on_disk != house.catalog.all_kernel_ids():
        problems.append("the catalog and the disk differ")
    if list(house.state.quarantine.iterdir()):
        problems.append("something was quarantined after a mere kill")
    stage_three(house)
    publish(house)
    again = house.kernels.find_many([digest(name) for name in ("a", "b", "c")])
    if len(again) != 3 or any(house.kernels.verify(m.id) != m for m in again.values()):
        problems.append("publishing again does not mend it")
    newest = max(house.kernels.get(kernel).making.sequence for kernel in house.catalog.all_kernel_ids())
    if newest >= house.catalog.next_sequence():
        problems.append("a sequence would be given twice")
    return problems


def two_kernels(house: House) -> None:
    house.publish("a", b"A")
    house.publish("b", b"B", suffixes=("d0", "d1"))


def assemble(house: House) -> None:
    found = house.kernels.find_many([digest("a"), digest("b")])
    views_of(house).assemble(list(found.values()))


def look_at_views(path: Path) -> list[str]:
    """Before any restart: what a process that reads the views right now would see."""
    problems: list[str] = []
    for view in sorted((path / "views").iterdir()):
        reader = Reader("Ascend910B3")
        report = reader.load(view)
        if report.torn or reader.verify() or len(reader.selected) != 3:
            problems.append(f"torn: {report.torn} {reader.verify()} {sorted(reader.selected)}")
    return problems


def check_view(house: House, *, done: bool) -> list[str]:
    assemble(house)
    return look_at_views(house.path) + ([] if len(list(house.state.views.iterdir())) == 1 else ["no view, or more than one"])


def a_view(house: House) -> None:
    two_kernels(house)
    assemble(house)


def drop_view(house: House) -> None:
    views_of(house).drop_unleased(keep=())


def accept(house: House) -> None:
    house.rounds.accept(round_entry())


def check_accepted(house: House, *, done: bool) -> list[str]:
    pending = house.rounds.pending()
    problems = [] if pending == [round_entry()] or (not pending and not done) else [f"pending: {pending}, acknowledged: {done}"]
    return problems + (["quarantined"] if list(house.state.quarantine.iterdir()) else [])


def settle(house: House) -> None:
    house.rounds.settle(round_entry().round)


def check_settled(house: House, *, done: bool) -> list[str]:
    pending = house.rounds.pending()
    return [] if not pending or (pending == [round_entry()] and not done) else [f"pending: {pending}"]


def damaged_kernel(house: House) -> None:
    for kernel in (house.publish("a", b"a"), house.publish("b", b"b"), house.publish("c", b"c")):
        next(house.kernels.directory(kernel.id).glob("*.o")).write_bytes(b"damaged")
    house.reopen()


def serve_damaged(house: House) -> None:
    house.kernels.find_many([digest(name) for name in ("a", "b", "c")])


def check_set_aside(house: House, *, done: bool) -> list[str]:
    if house.kernels.find_many([digest(name) for name in ("a", "b", "c")]):
        return ["a damaged kernel is served"]
    stage_three(house)
    publish(house)
    return [] if len(house.kernels.find_many([digest(name) for name in ("a", "b", "c")])) == 3 else ["cannot be compiled again"]


def package(house: House) -> None:
    house.packages.publish(house.state.staging / "p.run", digest("p"), "p.run")


def stage_package(house: House) -> None:
    (house.state.staging / "p.run").write_bytes(b"#!/bin/sh\n" * 100)


def check_package(house: House, *, done: bool) -> list[str]:
    path = house.packages.path(digest("p"))
    whole = path.exists() and path.read_bytes() == b"#!/bin/sh\n" * 100
    return [] if whole or (not done and not path.exists()) else ["the package is torn or lost"]


SCENARIOS: dict[str, tuple[Callable[[House], None], Callable[[House], None], Callable[..., list[str]]]] = {
    "publish": (stage_three, publish, check_kernels),
    "publish-again": (published_before, publish, check_kernels),
    "view": (two_kernels, assemble, check_view),
    "drop-view": (a_view, drop_view, check_view),
    "accept": (nothing, accept, check_accepted),
    "settle": (accept, settle, check_settled),
    "set-aside": (damaged_kernel, serve_damaged, check_set_aside),
    "package": (stage_package, package, check_package),
}


def in_child(act: Callable[[], None]) -> int:
    """Run ``act`` in a forked process; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = FINISHED
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def restarted(path: Path, scratch: Path) -> House:
    house = House(path, scratch)
    done = recover(house.state, views_of(house), Leases(house.state, BOOT))
    if done.problems or list(house.state.staging.iterdir()) or list(house.state.path.glob(".npgxd-*")):
        raise StoreError(f"recovery left something: {done.problems} {list(house.state.staging.iterdir())}")
    return house


def run(scenario: str, place: Path) -> None:
    prepare, act, check = SCENARIOS[scenario]
    for last in range(1, 1000):
        path, note = place / f"{last}" / "state", place / f"{last}" / "note"
        house = House(path, path.parent / "scratch")
        prepare(house)
        house.close()

        def life(path: Path = path, note: Path = note, last: int = last) -> None:
            house = House(path, path.parent / "scratch")
            house.state.disk = Dying(last, note)
            act(house)

        status = in_child(life)
        if status not in {FINISHED, DIED}:
            raise SystemExit(f"step {last} failed by itself")
        problems = look_at_views(path)
        house = restarted(path, path.parent / "scratch")
        problems += check(house, done=status == FINISHED)
        house.close()
        print(json.dumps({"died_before": note.read_text() if note.exists() else "", "problems": problems}), flush=True)
        if status == FINISHED:
            return


def run_creation(place: Path) -> None:
    """Making the state directory itself; nothing may ever need ``rm -rf``."""
    for last in range(1, 1000):
        path, note = place / f"{last}" / "state", place / f"{last}" / "note"
        path.parent.mkdir(parents=True)
        status = in_child(lambda: StateDirectory.open(path, disk=Dying(last, note)).close())  # noqa: B023 -- called at once
        state = StateDirectory.open(path)
        modes = {name: oct((path / name).stat().st_mode & 0o777) for name in ("kernels", "views", "leases", "rounds")}
        good = {"kernels": "0o755", "views": "0o755", "leases": "0o711", "rounds": "0o700"}
        problems = [] if modes == good else [f"modes: {modes}"]
        state.close()
        print(json.dumps({"died_before": note.read_text() if note.exists() else "", "problems": problems}), flush=True)
        if status == FINISHED:
            return


if __name__ == "__main__":
    if sys.argv[1] == "create":
        run_creation(Path(sys.argv[2]))
    else:
        run(sys.argv[1], Path(sys.argv[2]))
