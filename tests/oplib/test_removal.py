"""Removal on real stores: what is needed stays, the rest goes in order, and no moment shows a row without bytes."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npgxd.errors import StoreError
from npgxd.oplib.checking import Checking
from npgxd.oplib.pins import Pins
from npgxd.oplib.removal import OVERHEAD, Budget, Marks, Removal, Report, choose, order
from npgxd.store.uses import Standing
from tests.oplib.conftest import OpLibrary
from tests.store.made import House, digest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from npgxd.oplib.leases import LeaseFacts
    from npgxd.oplib.views import View

T = TypeVar("T")


def drain(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


NOTHING = Budget(max_bytes=1)
EVERYTHING = Budget()


@dataclass(slots=True)
class Swept:
    """An op library with its removal; ``free`` is what the disk is said to have."""

    oplib: OpLibrary
    told: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    free: int = 10**12

    def __post_init__(self) -> None:
        self.open()

    pins: Pins = field(init=False)
    removal: Removal = field(init=False)

    def open(self) -> None:
        house = self.oplib.house
        self.pins = Pins(house.state)
        self.removal = Removal(
            house.state, self.oplib.views, self.oplib.leases, house.packages, self.pins, free=lambda: self.free
        )

    def marking(self) -> Generator[Any, None, Marks]:
        views = self.oplib.leases.views_in_use() | self.told
        held = {kernel: "leased" for view in views for kernel in self.oplib.views.kernels_of(view)}
        return Marks(frozenset(views), held)
        yield

    def steps(self, budget: Budget, *, dry_run: bool = False) -> Generator[Any, None, Report]:
        self.oplib.leases.release_dead()
        return self.removal.collect(budget, self.marking, lambda row: row.id in self.retired, dry_run=dry_run)

    def collect(self, budget: Budget = NOTHING, *, dry_run: bool = False) -> Report:
        return drain(self.steps(budget, dry_run=dry_run))

    def names(self, *names: str) -> set[str]:
        """Which of these have a kernel that answers, whole."""
        return {name for name in names if self.oplib.house.kernels.find(digest(name)) is not None}

    def check(self) -> None:
        """Every row resolves to bytes with the right digests; every kernel of a leased view is there."""
        house = self.oplib.house
        for kernel in house.catalog.all_kernel_ids():
            house.kernels.verify(kernel)
        for view in self.oplib.leases.views_in_use():
            for kernel in self.oplib.views.kernels_of(view):
                manifest = house.kernels.verify(kernel)
                for member in manifest.members:
                    (linked,) = self.oplib.views.path(view).rglob(member.name)
                    assert hashlib.sha256(linked.read_bytes()).hexdigest() == member.sha256


@pytest.fixture
def swept(oplib: OpLibrary) -> Swept:
    return Swept(oplib)


def standing(name: str, used: int = 0, *, size: int = 100, package: str = "p", sequence: int = 0) -> Standing:
    return Standing(sequence, name, f"key-{name}", "Add", size, package, used, "f")


def test_retired_go_first_then_the_longest_unused_then_the_oldest():
    rows = [standing("a", 5), standing("b", 1, sequence=2), standing("c", 1, sequence=1), standing("d", 9)]
    assert [row.id for row in order(rows, {"d"})] == ["d", "c", "b", "a"]


def test_no_more_is_chosen_than_needed_and_a_package_counts_with_its_last_kernel():
    rows = [standing("a"), standing("b"), standing("c", package="q")]
    packages = {"p": (10**6, 2), "q": (10**6, 1)}
    assert choose(rows, packages, 0, 0) == []
    assert [row.id for row in choose(rows, packages, 1, 0)] == ["a"]
    assert [row.id for row in choose(rows, packages, 100 + OVERHEAD + 1, 0)] == ["a", "b"]
    assert [row.id for row in choose(rows, packages, 2 * (100 + OVERHEAD) + 10**6, 0)] == ["a", "b"]


def test_the_longest_unused_goes_and_a_look_up_counts_as_use(swept):
    for name in "abcd":
        swept.oplib.house.publish(name)
    swept.oplib.house.kernels.find_many([digest("a")])
    swept.oplib.house.catalog.kernel_bytes()
    total = swept.collect(EVERYTHING, dry_run=True).bytes
    report = swept.collect(Budget(max_bytes=total - 1))
    assert (report.removed, report.kept) == (1, {"within the limits": 3})
    assert swept.names(*"abcd") == set("acd")
    swept.check()


def test_last_use_survives_a_restart_and_no_clock_is_asked(swept):
    for name in "abc":
        swept.oplib.house.publish(name)
    swept.oplib.house.kernels.find_many([digest("a")])
    swept.oplib.house.kernels.uses.flush()
    swept.oplib.restart()
    swept.open()
    total = swept.collect(EVERYTHING, dry_run=True).bytes
    swept.collect(Budget(max_bytes=total - 1))
    assert swept.names(*"abc") == set("ac")


def test_a_superseded_kernel_and_one_of_a_replaced_toolchain_go_first(swept):
    old = swept.oplib.house.publish("a", b"old")
    swept.oplib.house.publish("b")
    swept.oplib.house.publish("c")
    swept.oplib.house.publish("a", b"new")
    swept.oplib.house.kernels.find_many([digest("b")])
    swept.retired = {swept.oplib.house.kernels.find(digest("b")).id}
    dry = swept.collect(EVERYTHING, dry_run=True)
    assert dry.retired == 2
    assert swept.collect(Budget(max_bytes=dry.bytes - 2 * OVERHEAD)).removed == 2
    assert swept.names(*"abc") == set("ac")
    assert not swept.oplib.house.kernels.directory(old.id).exists()


def test_a_leased_view_survives_gc_and_goes_when_its_process_has_ended(swept, holders):
    view = swept.oplib.view("a", "b")
    swept.oplib.house.publish("c")
    lease = swept.oplib.offer(view)
    process = holders.hold(swept.oplib.path(lease))
    swept.oplib.leases.confirm(lease.lease)
    report = swept.collect()
    assert (report.removed, report.kept, report.over) == (1, {"leased": 2}, True)
    swept.check()
    holders.kill(process)
    assert swept.collect().removed == 2
    assert not list(swept.oplib.house.state.views.iterdir())
    assert not list(swept.oplib.house.state.staging.iterdir())


def test_what_is_pinned_told_or_published_lately_stays(swept):
    swept.oplib.house.publish("a")
    told = swept.oplib.view("b")
    swept.pins.put("a", [digest("a")], 1.0)
    swept.told = {told.digest}
    assert swept.collect().kept == {"pinned": 1, "leased": 1}
    swept.told = set()
    assert swept.collect(Budget(max_bytes=1, recent_s=1000)).kept == {"pinned": 1, "published lately": 1}
    assert swept.collect().kept == {"pinned": 1}


@pytest.mark.parametrize("moment", ["kernels", "removing"])
def test_what_comes_to_be_needed_while_a_pass_is_under_way_stays(swept, moment):
    for name in "abcd":
        swept.oplib.house.publish(name)
    steps = swept.steps(NOTHING)
    for step in steps:
        if step.what == moment:
            break
    swept.oplib.house.kernels.find_many([digest("a")])
    view = swept.oplib.views.assemble([swept.oplib.house.kernels.find(digest("b"))])
    swept.oplib.offer(view)
    swept.pins.put("c", [digest("c")], 1.0)
    report = drain(steps)
    assert report.removed == 1
    assert swept.names(*"abcd") == set("abc")
    assert view.path.exists()
    swept.check()


def test_at_no_step_of_a_pass_is_there_a_row_without_bytes(swept):
    for number in range(70):
        swept.oplib.house.publish(f"k{number}")
    for _ in swept.steps(NOTHING):
        for kernel in swept.oplib.house.catalog.all_kernel_ids():
            assert (swept.oplib.house.kernels.directory(kernel) / "manifest.json").is_file()
    assert swept.oplib.house.kernels.count() == 0


def test_a_pass_that_is_broken_off_anywhere_leaves_whole_kernels(swept):
    for number in range(40):
        swept.oplib.house.publish(f"k{number}")
    total = sum(1 for _ in swept.steps(NOTHING, dry_run=True))
    rng = random.Random(7)
    for _ in range(6):
        steps = swept.steps(NOTHING)
        for _ in range(rng.randrange(1, total + 20)):
            next(steps, None)
        steps.close()
        swept.oplib.restart()
        swept.open()
        swept.check()
        assert not list(swept.oplib.house.state.staging.iterdir())


def test_free_space_is_made_and_what_is_still_short_is_said(swept):
    for name in "abc":
        swept.oplib.house.publish(name)
    swept.free = 10**6
    report = swept.collect(Budget(min_free=10**6 + OVERHEAD))
    assert (report.removed, report.short) == (1, True), "this disk does not get freer, and that is told"


def test_where_all_that_nobody_needs_would_not_free_enough_of_the_disk_nothing_goes_for_it(swept):
    for name in "abc":
        swept.oplib.house.publish(name)
    swept.free = 10**6
    report = swept.collect(Budget(min_free=10**9))
    assert (report.removed, report.short) == (0, True)
    assert report.kept["within the limits"] == 3
    size = report.bytes // 3
    report = swept.collect(Budget(min_free=10**9, max_bytes=2 * size))
    assert (report.removed, report.over) == (1, False), "the limit on what is kept holds all the same"
    assert swept.names(*"abc") == set("bc"), "the oldest"
    report = swept.collect(Budget(min_free=10**6 + 2 * size))
    assert report.removed == 2


def test_on_hold_nothing_goes(swept):
    swept.oplib.view("a")

    def marking() -> Generator[Any, None, Marks]:
        return Marks(hold="for a test")
        yield

    report = drain(swept.removal.collect(NOTHING, marking, lambda _row: True))
    assert (report.removed, report.views, report.kept, report.hold) == (0, 0, {"on hold": 1}, "for a test")


def test_the_quarantine_is_bounded_the_oldest_goes(swept):
    place = swept.oplib.house.state.quarantine
    for number in range(5):
        (place / f"q{number}").write_bytes(b"x" * 1000)
    report = swept.collect(Budget(quarantine_bytes=2500))
    assert report.quarantine_bytes <= 2500
    assert sorted(path.name for path in place.iterdir()) == ["q3", "q4"]


def test_a_package_stays_as_long_as_one_of_its_kernels(swept):
    house = swept.oplib.house
    (house.state.staging / "p.run").write_bytes(b"run")
    house.packages.publish(house.state.staging / "p.run", digest("package"), "static_kernel_1.run")
    for name in "ab":
        house.publish(name)
    swept.pins.put("a", [digest("a")], 1.0)
    assert (swept.collect().packages, house.packages.path(digest("package")).exists()) == (0, True)
    swept.pins.remove("a")
    assert (swept.collect().packages, house.packages.path(digest("package")).exists()) == (1, False)
    assert house.packages.count() == 0


@pytest.mark.parametrize(("operation", "number"), [("mkdir", 1), ("rename", 1), ("rename", 2), ("rename", 3)])
def test_kernels_that_the_disk_does_not_let_go_are_there_and_go_with_the_next_pass(swept, monkeypatch, operation, number):
    house = swept.oplib.house
    for name in "abc":
        house.publish(name)
    acts = []

    def refuse(act: str, path: Path) -> None:
        acts.extend([act] if act == operation and "dropped-" in str(path) else [])
        if acts and len(acts) == number:
            raise StoreError(f"{path}: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(house.state.disk, "step", refuse)
        with pytest.raises(StoreError, match="Input/output error"):
            swept.collect()
    left = 3 if operation == "mkdir" else 4 - number
    assert (house.kernels.count(), len(swept.names(*"abc"))) == (left, left)
    assert verify(swept) == []
    swept.oplib.restart()
    swept.open()
    assert swept.collect().removed == left


def verify(swept: Swept, *, repair: bool = False) -> list[str]:
    house, oplib = swept.oplib.house, swept.oplib
    checking = Checking(
        house.state, house.catalog, oplib.views, oplib.leases, house.packages, house.rounds, swept.pins, house.artifacts
    )
    return [f"{p.kind}:{'mended' if p.done else 'left'}" for p in drain(checking.check(repair=repair)).problems]


def test_verify_finds_a_kernel_that_nobody_lists_and_lists_it_again(swept):
    made = swept.oplib.house.publish("a")
    swept.oplib.house.catalog.drop_kernel(made.id)
    assert verify(swept) == ["kernel_unlisted:left"]
    assert swept.names("a") == set()
    assert verify(swept, repair=True) == ["kernel_unlisted:mended"]
    assert (verify(swept), swept.names("a")) == ([], {"a"})


def test_a_kernel_that_is_not_listed_yet_is_no_finding_and_one_that_comes_again_is_not_removed_meanwhile(swept):
    house = swept.oplib.house
    house.publish("again")
    staged = [house.kernels.number(house.stage(name)) for name in ("again", "new")]
    passing = swept.steps(NOTHING)
    next(passing)
    publishing = house.kernels.showing(staged)
    wait = next(publishing)
    assert verify(swept) == []
    assert drain(passing).removed == 0
    wait()
    drain(publishing)
    assert (verify(swept), swept.names("again", "new")) == ([], {"again", "new"})
    swept.check()


# ---- FC-27: any sequence of acts -----------------------------------------------------------------------------------------

ACTS = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "get", "view", "lease", "release", "pin", "unpin", "gc", "part", "restart", "rebuild")),
        st.integers(0, 7),
    ),
    min_size=5,
    max_size=25,
)


@dataclass(slots=True)
class Story:
    """What a sequence of acts has done so far."""

    swept: Swept
    views: list[View] = field(default_factory=list)
    leases: list[LeaseFacts] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)

    def act(self, word: str, number: int) -> None:  # noqa: C901, PLR0912 -- one branch an act
        swept, house, name = self.swept, self.swept.oplib.house, f"k{number}"
        if word == "put":
            house.publish(name, f"{number % 3}".encode())
        elif word == "get":
            house.kernels.find(digest(name))
        elif word == "view":
            found = list(house.kernels.find_many([digest(f"k{n}") for n in range(number + 1)]).values())
            if found:
                self.views.append(swept.oplib.views.assemble(found))
        elif word == "lease":
            there = [view for view in self.views if view.digest in swept.oplib.views]
            if there:
                self.leases.append(swept.oplib.offer(there[number % len(there)], session=f"s{len(self.leases)}"))
        elif word == "release" and self.leases:
            swept.oplib.leases.session_ended(self.leases.pop(number % len(self.leases)).session)
        elif word == "pin" and house.kernels.find(digest(name)) is not None:
            swept.pins.put(name, [digest(name)], 1.0)
            self.pinned.add(number)
        elif word == "unpin":
            swept.pins.remove(name)
            self.pinned.discard(number)
        elif word in {"gc", "part"}:
            steps = swept.steps(Budget(max_bytes=1 + number * 20_000))
            for _ in range(10_000 if word == "gc" else number * 3):
                next(steps, None)
            steps.close()
        elif word in {"restart", "rebuild"}:
            house.close()
            if word == "rebuild":
                for path in house.path.glob("catalog.sqlite*"):
                    path.unlink()
            house.open()
            swept.oplib.open()
            self.leases.clear()  # offers live in the daemon; nobody held a lock
            swept.open()
            swept.oplib.house.kernels.reconcile()
            swept.oplib.leases.release_dead()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
def test_fc27_after_any_sequence_every_row_has_its_bytes_and_nothing_leased_or_pinned_is_missing(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    place: Path = tmp_path_factory.mktemp("fuzz")
    house = House(place / "state", place / "scratch")
    story = Story(Swept(OpLibrary(house)))
    try:
        for word, number in acts:
            story.act(word, number)
            story.swept.check()
            assert story.swept.names(*(f"k{n}" for n in story.pinned)) == {f"k{n}" for n in story.pinned}
    finally:
        house.close()
