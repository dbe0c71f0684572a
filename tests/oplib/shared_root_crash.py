"""Ends a process at every single act on a shared root, one process for each, and looks at what readers see and what a restart makes of it.

``python -m tests.oplib.shared_root_crash SCENARIO DIRECTORY`` prints one line of JSON for each step, as tests.store.crash does.
"""

# ruff: noqa: T201 -- it talks to the test that runs it
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.oplib.shared_root import SharedRoot
from tests.oplib.shared_root_made import FOREIGN_KEY, NoSync, environment, foreign, our_keys
from tests.store.crash import DIED, FINISHED, Dying, in_child
from tests.store.made import FAMILY, SOC, House
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.store.disk import Disk
    from npgxd.store.manifest import KernelManifest


class DyingSoon(Dying, NoSync):
    """Dies as ``Dying`` does, and does not wait for the disk."""


class Stage:
    """A store, a prepared root, and what is wanted of the root in the end."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.house = House(place / "state", place / "scratch")
        self.root = place / "opp"
        self.root.mkdir()
        self.kernels = [self.house.publish(name, suffixes=("d0", "d1")) for name in ("a", "b", "c")]

    def shared(self, root: Path, disk: Disk | None = None) -> SharedRoot:
        return SharedRoot(root, FAMILY, self.house.kernels.directory, disk=disk or NoSync())

    def prepare(self, *kernels: KernelManifest) -> None:
        shared = self.shared(self.root)
        shared.sync(kernels)
        shared.close()


def fresh(stage: Stage) -> Callable[[SharedRoot], object]:
    return lambda root: root.sync(stage.kernels)


def beside_others(stage: Stage) -> Callable[[SharedRoot], object]:
    foreign(stage.root)
    stage.prepare(stage.kernels[0], stage.kernels[1])
    return lambda root: root.sync([stage.kernels[1], stage.kernels[2]])


def damaged(stage: Stage) -> Callable[[SharedRoot], object]:
    stage.prepare(*stage.kernels)
    for number, path in enumerate(sorted(stage.root.glob("static_kernel/ai_core/npgxd_*/*/*/*.o"))):
        path.unlink() if number % 2 else path.write_bytes(b"overwritten")
    return lambda root: root.sync(stage.kernels)


def removal(stage: Stage) -> Callable[[SharedRoot], object]:
    foreign(stage.root)
    stage.prepare(*stage.kernels)

    def act(root: SharedRoot) -> None:
        root.sync(stage.kernels[:1])
        root.remove(root.leftovers())

    return act


SCENARIOS = {"fresh": fresh, "beside-others": beside_others, "damaged": damaged, "removal": removal}


def looked_at(root: Path, *, foreigners: bool, torn_files: bool) -> list[str]:
    """What a process that starts right now sees. ``torn_files``: somebody else had damaged files before."""
    reader = Reader(SOC)
    report = reader.load_default(environment(root))
    problems = [f"torn: {torn}" for torn in report.torn]
    if not torn_files:
        problems += [f"torn at first use: {torn}" for torn in reader.verify()]
    if foreigners and FOREIGN_KEY not in reader.selected:
        problems.append("another installer's kernel is gone")
    return problems


def run(scenario: str, place: Path) -> None:
    stage = Stage(place)
    act = SCENARIOS[scenario](stage)
    foreigners = scenario in {"beside-others", "removal"}
    for last in range(1, 1000):
        root, note = place / f"{last}" / "opp", place / f"{last}.note"
        shutil.copytree(stage.root, root)

        def life(root: Path = root, note: Path = note, last: int = last) -> None:
            act(stage.shared(root, DyingSoon(last, note)))

        status = in_child(life)
        if status not in {FINISHED, DIED}:
            raise SystemExit(f"step {last} failed by itself")
        problems = looked_at(root, foreigners=foreigners, torn_files=scenario == "damaged")
        shared = stage.shared(root)
        shared.sync(stage.kernels)
        shared.close()
        problems += looked_at(root, foreigners=foreigners, torn_files=False)
        reader = Reader(SOC)
        reader.load_default(environment(root))
        if not our_keys(stage.kernels) <= reader.selected.keys():
            problems.append("after the restart not all kernels are there")
        problems += [f"left behind: {path.name}" for path in root.rglob(".npgxd-*")]
        print(json.dumps({"died_before": note.read_text() if note.exists() else "", "problems": problems}), flush=True)
        shutil.rmtree(root.parent)
        if status == FINISHED:
            return


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
