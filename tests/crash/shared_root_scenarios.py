"""What is done to a shared root before a power loss, and what must hold afterwards: one class for each.

The whole strategy acts here; the store that it brings kernels from lies beside the modelled root, since nothing of it changes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from npgxd.oplib.shared_root import MARKER, SharedRoot
from npgxd.oplib.shared_root_choice import directory_of, place_of
from npgxd.oplib.shared_root_index import TotalIndex
from npgxd.oplib.shared_root_place import LibraryError
from npgxd.store.disk import DISK, TEMPORARY_PREFIX
from npgxd.store.kernels import SHELF_DIGITS
from tests.crash.ground import listing
from tests.crash.scenarios import Scenario
from tests.oplib.shared_root_made import foreign, index_of
from tests.store.made import FAMILY, SOC, House
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from npgxd.store.manifest import KernelManifest

FOREIGNERS = ("theirs", "others")
RESTARTS = 2


class Root(Scenario):
    """Kernels ``before`` are installed, and others' too; then each of ``steps`` is wanted in turn, and what has left is removed."""

    foreigners: ClassVar[bool] = True
    before: ClassVar[str] = ""
    steps: ClassVar[tuple[str, ...]] = ("abc",)
    torn_by_others: ClassVar[bool] = False
    """Somebody writes the index in place, and it is his act that a power loss may tear."""

    kernels: dict[str, KernelManifest]
    place: Path
    told: list[tuple[str, str]]
    """What was wanted and what was acknowledged, over all lives: the mark, and the names."""

    def prepare(self, root: Path) -> None:
        self.place, self.told = root.parent, []
        house = House(self.place / "store", self.place / "scratch")
        self.kernels = {name: house.publish(name, name.encode()) for name in "abc"}
        self.kernels["A"] = house.publish("a", b"a newer one of the same record")
        house.close()
        opp = root / "opp"
        opp.mkdir()
        if self.foreigners:
            for name in FOREIGNERS:
                foreign(opp, name, f"{name}/d0/x")
        if self.before:
            with self.opened_root(root) as shared:
                shared.sync(self.wanted(self.before))
        if self.foreigners and not self.before:
            for path in (opp / "static_kernel", *(opp / "static_kernel").rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        self.damage(opp)

    def damage(self, opp: Path) -> None:
        """What others did before, and is on the disk."""

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        if self.torn_by_others and not whole(root / "opp"):
            return  # the kill came in the midst of what others do, and then the index is left alone
        with self.opened_root(root) as shared:
            shared.present()
            for number, names in enumerate(self.steps):
                self.tell(f"{len(self.told)} wants", names, mark)
                shared.sync(self.wanted(names))
                self.tell(f"{len(self.told)} has", names, mark)
                self.meanwhile(shared, number)
                shared.remove(shared.leftovers())

    def tell(self, what: str, names: str, mark: Callable[[str], None]) -> None:
        self.told.append((f"{what} {names}", names))
        mark(self.told[-1][0])

    def meanwhile(self, shared: SharedRoot, number: int) -> None:
        """What others do after the step, without forcing it to the disk."""

    def wanted(self, names: str) -> list[KernelManifest]:
        return [self.kernels[name] for name in names]

    @contextmanager
    def opened_root(self, root: Path) -> Iterator[SharedRoot]:
        shared = SharedRoot(
            root / "opp", FAMILY, lambda k: self.place / "store/kernels" / k[:SHELF_DIGITS] / k, disk=DISK, torn_s=0.0
        )
        try:
            yield shared
        finally:
            shared.close()

    # ---- afterwards ----

    def check(self, root: Path, marks: frozenset[str]) -> list[str]:
        opp = root / "opp"
        problems = self.seen(opp, self.certain(marks))
        if self.torn_by_others and not whole(opp):
            return problems
        goal = self.steps[-1]
        before: object = None
        for number in range(RESTARTS):
            try:
                with self.opened_root(root) as shared:
                    shared.present()
                    shared.sync(self.wanted(goal))
                    shared.remove(shared.leftovers())
            except LibraryError as error:
                return [*problems, f"start {number}: {error}"]
            problems += [f"start {number}: {one}" for one in self.seen(opp, set(goal), exactly=True)]
            found = {entry for entry in listing(root) if not entry[0].endswith((".npgxd.lock",))}
            problems += [f"start {number} changed something"] if before not in (None, found) else []
            before = found
        ai_core = opp / "static_kernel/ai_core"
        ours = {path.name for path in ai_core.iterdir() if path.name.startswith(("npgxd_", ".npgxd"))}
        wanted = {directory_of(kernel.id) for kernel in self.wanted(goal)} | {MARKER, ".npgxd.lock"}
        problems += [f"left, or missing: {sorted(ours ^ wanted)}"] if ours != wanted else []
        return problems + [f"left: {path}" for path in root.rglob(f"{TEMPORARY_PREFIX}*")]

    def certain(self, marks: frozenset[str]) -> set[str]:
        """The kernels that are there at any rate: what one step had and the next one still wants."""
        counted, need = Counter(self.before), 1
        for said, names in self.told:
            if said in marks and " has " in said:
                counted, need = Counter(names), 1
            elif said in marks:
                counted.update(names)
                need += 1
        return {name for name, times in counted.items() if times >= need}

    def seen(self, opp: Path, certain: set[str], *, exactly: bool = False) -> list[str]:
        """What is wrong for whoever loads the root now."""
        if not (opp / "static_kernel").exists():
            return [] if not certain else ["the tree is gone"]
        if self.torn_by_others and not exactly and not whole(opp):
            return []
        reader = Reader(SOC)
        report = reader.load(opp)
        problems = [f"torn: {one}" for one in (*report.torn, *reader.verify()) if "index is missing" not in one.reason]
        raw = index_of(opp).read_bytes() if index_of(opp).exists() else b"{}"
        total = TotalIndex.parse(raw)
        ours = {entry.ours for entry in total.entries() if entry.ours}
        by_digits = {kernel.id[:16]: (name, kernel) for name, kernel in self.kernels.items()}
        for digits in ours:
            name, kernel = by_digits[digits]
            problems += [f"{name}: {told}" for told in wrong_files(opp, kernel)]
        names = {by_digits[digits][0] for digits in ours}
        if not certain <= names or (exactly and names != certain):
            problems.append(f"ours are {sorted(names)}, and {sorted(certain)} are certain")
        return problems + (self.wrong_foreigners(opp, total) if self.foreigners else [])

    def wrong_foreigners(self, opp: Path, total: TotalIndex) -> list[str]:
        theirs = {name: [json.loads(e.raw) for e in total.entries() if f"{name}/d0/x" in e.keys] for name in FOREIGNERS}
        problems = [f"{name} has the entries {found}" for name, found in theirs.items() if len(found) != 1]
        for name in FOREIGNERS:
            path = opp / "static_kernel/ai_core/static_kernel_1_2" / FAMILY / "Add" / f"{name}.o"
            if path.read_bytes() != name.encode() * 100 or not path.with_suffix(".json").exists():
                problems.append(f"{name}'s files were touched")
        return problems


def whole(opp: Path) -> bool:
    """Whether the index is there, as far as its writer got, and can be read."""
    try:
        return bool(json.loads(index_of(opp).read_bytes()))
    except (OSError, ValueError):
        return False


def wrong_files(opp: Path, kernel: KernelManifest) -> list[str]:
    place = opp / "static_kernel/ai_core" / place_of(kernel)
    wrong = []
    for member in kernel.members:
        path = place / member.name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != member.sha256:
            wrong.append(f"{member.name} is gone, or has other bytes")
        elif path.stat().st_mode & 0o777 != 0o644:
            wrong.append(f"{member.name} has mode {path.stat().st_mode:o}")
    return wrong


class Empty(Root):
    """The first install into a root without a tree."""

    foreigners = False


class BesideOthers(Root):
    """The first install into a root that holds packages of others."""


class Second(Root):
    """A second install beside those that run, then one more."""

    before = "a"
    steps = ("ab", "abc")


class Removed(Root):
    """Kernels leave, and their files; one of them comes back."""

    before = "abc"
    steps = ("a", "ab")


class Replaced(Root):
    """A newer kernel of a record takes the older one's place, whose files go then."""

    before = "ab"
    steps = ("Ab", "Ab")


class Damaged(Root):
    """Others have removed, overwritten and replaced things of ours, and some of our entries; all is put back."""

    before = "abc"

    def damage(self, opp: Path) -> None:
        places = [opp / "static_kernel/ai_core" / place_of(self.kernels[name]) for name in "abc"]
        next(places[0].glob("*.o")).write_bytes(b"overwritten")
        next(places[1].glob("*.json")).unlink()
        shutil.rmtree(places[2].parents[1])
        places[2].parents[1].write_text("a file in the way")
        total = json.loads(index_of(opp).read_bytes())
        total["MatMulV2"]["staticList"] = total["MatMulV2"]["staticList"][1:]
        index_of(opp).write_text(json.dumps(total))

    def seen(self, opp: Path, certain: set[str], *, exactly: bool = False) -> list[str]:
        # Until they are mended, damaged files are named by the index as others left it.
        return super().seen(opp, certain, exactly=exactly) if exactly or certain else []

    def certain(self, marks: frozenset[str]) -> set[str]:
        return super().certain(marks) if any(" has " in mark for mark in marks) else set()


class DroppedByOthers(Root):
    """Another installer drops the entry of one of ours and forces nothing to the disk; its files go, once nobody needs it."""

    before = "ab"
    steps = ("ab", "a")
    torn_by_others = True

    def meanwhile(self, shared: SharedRoot, number: int) -> None:
        if number == 0:
            path = index_of(shared.root)
            total = TotalIndex.parse(path.read_bytes())
            keep = {"MatMulV2": [e.raw for e in total.entries() if e.ours and e.ours in self.kernels["a"].id]}
            DISK.rewrite_staged(path, total.with_ours(keep))

    def certain(self, marks: frozenset[str]) -> set[str]:
        return super().certain(marks) - {"b"}


SCENARIOS: dict[str, type[Root]] = {
    "empty": Empty,
    "beside-others": BesideOthers,
    "second": Second,
    "removed": Removed,
    "replaced": Replaced,
    "damaged": Damaged,
    "dropped-by-others": DroppedByOthers,
}
