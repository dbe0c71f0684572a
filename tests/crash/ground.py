"""The state directory of a scenario, opened as a daemon's start opens it, and what must be true of it after any crash."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from npgxd.oplib.checking import Checking
from npgxd.oplib.leases import Leases
from npgxd.oplib.pins import Pins
from npgxd.oplib.recovery import Recovery, recover
from npgxd.oplib.views import Views
from npgxd.store.disk import TEMPORARY_PREFIX
from npgxd.store.staging import stage_kernel
from tests.store.made import House, digest, files, making, origin
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from npgxd.daemon.keeping.stores import Stores
    from npgxd.store.manifest import KernelManifest

T = TypeVar("T")
BEFORE = "the boot before"
AFTER = "the boot after"
STATE = "state"
SCRATCH = "scratch"
"""Beside the modelled root: what compilers leave is nobody's state."""


@dataclass(slots=True)
class Ground:
    """A house with its op library, opened and recovered like a daemon at its start."""

    root: Path
    boot: str = BEFORE
    house: House = field(init=False)
    views: Views = field(init=False)
    leases: Leases = field(init=False)
    recovery: Recovery = field(init=False)

    def __post_init__(self) -> None:
        self.house = House(self.root / STATE, self.root.parent / SCRATCH)
        self.views = Views(self.house.state, self.house.kernels, self.boot)
        self.leases = Leases(self.house.state, self.boot)
        self.recovery = recover(self.house.state, self.views, self.leases)
        self.house.artifacts.reconcile()

    def close(self) -> None:
        self.house.close()

    def stage(self, name: str, content: bytes, *, job: str = "job") -> Path:
        """As a worker does it: many kernels below one directory, then one fsync of the tree."""
        place = self.house.state.staging / job
        disk = self.house.state.disk
        disk.make_directory(place, 0o700, exist_ok=True)
        target = place / digest(name)
        scratch = self.house.scratch / f"{self.root.name}-{job}-{name}"
        stage_kernel(target, origin(name), making(), files(scratch, name, content), disk=disk, durable=False)
        return target

    def publish(self, kernels: dict[str, bytes], *, job: str = "job") -> list[KernelManifest]:
        staged = [self.stage(name, content, job=job) for name, content in kernels.items()]
        self.house.state.disk.fsync_tree(self.house.state.staging / job)
        published = self.house.kernels.publish(staged)
        self.house.state.disk.remove_tree(self.house.state.staging / job)
        return published

    def content(self, name: str) -> bytes | None:
        """The bytes that would be served for a record, without the suffix that ``files`` puts behind them."""
        found = self.house.kernels.find(digest(name))
        if found is None:
            return None
        member = next(member.name for member in found.members if member.name.endswith(".o"))
        return (self.house.kernels.directory(found.id) / member).read_bytes().removesuffix(b"d0")


def drained(steps: Generator[object, None, T]) -> T:
    """Do all of an act that is done bit by bit; what it comes to."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]


def verified(house: House | Stores, views: Views, leases: Leases) -> list[str]:
    """What ``npgxctl verify`` would find."""
    checking = Checking(
        house.state, house.catalog, views, leases, house.packages, house.rounds, Pins(house.state), house.artifacts
    )
    return [f"verify: {p.kind} {p.name[:16]}: {p.detail}" for p in drained(checking.check(repair=False)).problems]


def wrong_after(ground: Ground, known: dict[str, set[bytes]], *, quarantine: bool = False) -> list[str]:
    """What is wrong with a recovered state directory. ``known``: for each record, the bytes that a kernel of it may have."""
    state, kernels = ground.house.state, ground.house.kernels
    problems = [f"recovery: {problem}" for problem in ground.recovery.problems]
    if not quarantine:
        problems += [
            f"set aside after a mere crash: {path.name}" for path in state.quarantine.iterdir() if "catalog" not in path.name
        ]
    problems += [f"left in staging: {path.name}" for path in state.staging.iterdir()]
    problems += [f"left: {path}" for path in state.path.rglob(f"{TEMPORARY_PREFIX}*")]
    there = {path.name for shelf in state.kernels.iterdir() for path in shelf.iterdir()}
    if there != ground.house.catalog.all_kernel_ids():
        problems.append("the catalog and the disk differ")
    for kernel in sorted(there):
        kernels.verify(kernel)
        problems += _modes(kernels.directory(kernel))
    problems += [f"a view of the boot before: {path.name}" for path in state.views.iterdir()]
    problems += verified(ground.house, ground.views, ground.leases)
    problems += _wrong_served(ground, known)
    return problems


def _wrong_served(ground: Ground, known: dict[str, set[bytes]]) -> list[str]:
    problems = []
    found = ground.house.kernels.find_many([digest(name) for name in known])
    for name, contents in known.items():
        served = ground.content(name)
        if served is not None and served not in contents:
            problems.append(f"{name} is served with the bytes {served!r}")
    if found:
        view = ground.views.assemble(list(found.values()))
        reader = Reader("Ascend910B3")
        report = reader.load(view.path)
        if report.torn or reader.verify() or len(reader.selected) != len(found):
            problems.append(f"torn: {report.torn} {reader.verify()} {sorted(reader.selected)}")
        ground.views.drop_unleased(keep=())
    return problems


def _modes(root: Path) -> list[str]:
    wrong = []
    for path in (root.parent, root, *root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o755 if path.is_dir() else 0o644):
            wrong.append(f"mode {mode:o} of {path.name}")
    return wrong


def recovered_twice(root: Path, ground: Ground) -> tuple[Ground, list[str]]:
    """Restart once more: nothing may be left to do, and nothing may change."""
    before = listing(root)
    ground.close()
    again = Ground(root, ground.boot)
    done = again.recovery
    problems = []
    if any((done.staged, done.temporary, done.leases, done.views, done.adopted, done.problems)):
        problems.append(f"a second recovery found something to do: {done}")
    if listing(root) != before:
        problems.append(f"a second recovery changed {before ^ listing(root)}")
    return again, problems


def listing(root: Path) -> set[tuple[str, int, bytes]]:
    """Names, modes and bytes of everything but the catalog and the lock."""
    found = set()
    for path in root.rglob("*"):
        if not path.name.startswith("catalog.sqlite") and path.name != "instance.lock":
            facts = path.lstat()
            found.add((os.fspath(path.relative_to(root)), facts.st_mode, path.read_bytes() if path.is_file() else b""))
    return found
