"""What is done before a crash, and what must hold afterwards: one class for each."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar

from npgxd.errors import NpgxError
from npgxd.oplib.pins import Pins
from npgxd.oplib.removal import Budget, Marks, Removal
from npgxd.oplib.sweeping import Step
from tests.crash.ground import AFTER, Ground, recovered_twice, wrong_after
from tests.store.made import digest, making, round_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

NAMES = ("a", "b", "c")


class Scenario:
    """Prepare, act (what is acknowledged is told to ``mark``), and check the state after a crash and a restart."""

    known: ClassVar[dict[str, set[bytes]]] = {}
    quarantine: ClassVar[bool] = False

    def prepare(self, root: Path) -> None:
        """Nothing but an opened state directory."""
        self.opened(root).close()

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        raise NotImplementedError

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        """What of the acknowledged is not there."""
        raise NotImplementedError

    def opened(self, root: Path) -> Ground:
        return Ground(root)

    def check(self, root: Path, marks: frozenset[str]) -> list[str]:
        """Everything that is wrong with a crash's state, after restarts."""
        try:
            ground = Ground(root, AFTER)
        except NpgxError as error:
            return [f"it does not start: {error}"]
        try:
            problems = wrong_after(ground, self.known, quarantine=self.quarantine)
            ground, again = recovered_twice(root, ground)
            return problems + again + self.lost(ground, marks)
        finally:
            ground.close()


class Creation(Scenario):
    """A state directory is made, with the directories above it, and a first round is accepted."""

    def prepare(self, root: Path) -> None:
        """Nothing at all is there."""

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        mark(f"id {ground.house.state.store_id}")
        ground.house.rounds.accept(round_entry())
        mark("accepted")
        ground.close()

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        problems = [] if "accepted" not in marks or ground.house.rounds.pending() == [round_entry()] else ["the round"]
        told = [mark for mark in marks if mark.startswith("id ")]
        return problems + [mark for mark in told if mark != f"id {ground.house.state.store_id}"]


class Publish(Scenario):
    """Three kernels are staged and published, the last with a shelf of its own."""

    known: ClassVar = {"a": {b"A"}, "b": {b"B"}, "c": {b"C"}}

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        ground.publish({"a": b"A", "b": b"B", "c": b"C"})
        mark("published")
        ground.close()

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        missing = [name for name in self.known if ground.content(name) is None] if "published" in marks else []
        ground.publish({name: min(contents) for name, contents in self.known.items()})  # and it can be done again
        return missing + [f"{name} again" for name in self.known if ground.content(name) is None]


class PublishAgain(Publish):
    """One is there already byte for byte, one with other bytes, one not at all; and then the older bytes come once more."""

    known: ClassVar = {"a": {b"A"}, "b": {b"older", b"newer"}, "c": {b"C"}}

    def prepare(self, root: Path) -> None:
        ground = self.opened(root)
        ground.publish({"a": b"A", "b": b"older"}, job="first")
        ground.close()

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        ground.publish({"a": b"A", "b": b"newer", "c": b"C"})
        mark("published")
        ground.publish({"b": b"older"}, job="third")
        ground.close()


class Package(Scenario):
    """A run package is staged as a worker does it, and published."""

    BYTES: ClassVar = b"#!/bin/sh\n" * 300
    DIGEST: ClassVar = hashlib.sha256(BYTES).hexdigest()

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        state = ground.house.state
        source = ground.house.scratch / "made.run"
        source.parent.mkdir(exist_ok=True)
        source.write_bytes(self.BYTES)
        state.disk.make_directory(state.staging / "job", 0o700)
        state.disk.copy_file(source, state.staging / "job" / "package.run")
        state.disk.fsync_directory(state.staging / "job")
        ground.house.packages.publish(state.staging / "job" / "package.run", self.DIGEST, "p.run")
        mark("published")
        ground.close()

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        path = ground.house.packages.path(self.DIGEST)
        if not path.exists():
            return ["the package"] if "published" in marks else []
        return [] if path.read_bytes() == self.BYTES and path.stat().st_mode & 0o777 == 0o644 else ["the package's bytes or mode"]


class Journal(Scenario):
    """A round is accepted, another too, the first is settled, a third is accepted."""

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        rounds = ground.house.rounds
        rounds.accept(round_entry(1))
        mark("1")
        rounds.accept(round_entry(2))
        mark("2")
        mark("settling 1")
        rounds.settle(round_entry(1).round)
        rounds.accept(round_entry(3))
        mark("3")
        ground.close()

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        pending = ground.house.rounds.pending()
        expected = [round_entry(number) for number in (1, 2, 3)]
        missing = [f"round {number}" for number in (1, 2, 3) if str(number) in marks and expected[number - 1] not in pending]
        if "settling 1" in marks:
            missing = [name for name in missing if name != "round 1"]
        return missing + [f"not as it was accepted: {entry}" for entry in pending if entry not in expected]


class ColdRound(Publish):
    """A whole cold round: accepted, compiled, published, a view of it assembled and leased, settled, and the view dropped."""

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        ground.house.rounds.accept(round_entry())
        mark("accepted")
        published = ground.publish({"a": b"A", "b": b"B", "c": b"C"})
        mark("published")
        view = ground.views.assemble(published)
        ground.house.rounds.settle(round_entry().round)
        ground.leases.offer(view.digest, session="s", uid=1, pid=1, started=1.0)
        mark("told")
        ground.leases.session_ended("s")
        ground.leases.release_dead()
        ground.views.drop_unleased(keep=())
        ground.close()

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        pending = ground.house.rounds.pending()
        missing = [name for name in self.known if ground.content(name) is None]
        if missing and "accepted" in marks and pending != [round_entry()]:
            return [f"the round: neither pending nor published ({missing} missing)"]
        return [f"{name}, told as installed" for name in missing if "published" in marks]


class SetAside(Publish):
    """Two of three kernels have been damaged by somebody; they are found when they are to be served."""

    quarantine: ClassVar = True

    def prepare(self, root: Path) -> None:
        ground = self.opened(root)
        for manifest in ground.publish({"a": b"A", "b": b"B", "c": b"C"})[:2]:
            next(ground.house.kernels.directory(manifest.id).glob("*.o")).write_bytes(b"damaged")
        ground.close()

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        ground.house.kernels.find_many([digest(name) for name in NAMES])
        ground.publish({"a": b"A"})
        mark("a")
        ground.close()

    def check(self, root: Path, marks: frozenset[str]) -> list[str]:
        # Until somebody looks, damaged bytes lie there: what is checked is what is served.
        ground = Ground(root, AFTER)
        try:
            served = {name: ground.content(name) for name in NAMES}
            problems = [f"{name}: {found!r}" for name, found in served.items() if found not in (None, name.upper().encode())]
            problems += ["c is lost"] if served["c"] is None else []
            problems += ["a is lost"] if "a" in marks and served["a"] is None else []
        finally:
            ground.close()
        return problems + super().check(root, frozenset())


class Removed(Publish):
    """Three kernels with a run package; one is pinned, and removal takes all that it may."""

    def prepare(self, root: Path) -> None:
        ground = self.opened(root)
        staged = ground.house.state.staging / "p.run"
        ground.house.state.disk.write_file(staged, b"package")
        ground.house.packages.publish(staged, making().package, "p.run")
        ground.publish({"a": b"A", "b": b"B", "c": b"C"})
        ground.close()

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        state, house = ground.house.state, ground.house
        pins = Pins(state)
        pins.put("keep", [digest("a")], 1.0)
        mark("pinned")
        mark("removing")
        removal = Removal(state, ground.views, ground.leases, house.packages, pins)
        for _ in removal.collect(Budget(max_bytes=1), _nothing_marked, lambda _row: False):
            pass
        mark("removed")
        ground.close()

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        problems = []
        if "pinned" in marks and Pins(ground.house.state).keys() != {digest("a")}:
            problems.append("the pin")
        kept = {"a"} if "removing" in marks else {"a", "b", "c"}
        problems += [name for name in sorted(kept) if ground.content(name) is None]
        if ground.content("a") is not None and not ground.house.packages.path(making().package).exists():
            problems.append("the package of a kernel that is kept")
        return problems


class Artifacts(Scenario):
    """Compile-cache entries are published, one of them again, and one is removed."""

    entries: ClassVar = {"a": b"A" * 40, "b": b"B", "c": b"C"}

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        store = ground.house.artifacts
        for name in ("a", "b", "b", "c"):
            self._publish(ground, name)
            mark(name)
        found = store.find("1000", digest("c"))
        assert found is not None
        mark("removing c")
        store.remove([found.id])
        ground.close()

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        problems = []
        for name, data in self.entries.items():
            row = ground.house.artifacts.find("1000", digest(name))
            if row is None:
                problems += [name] if name in marks and f"removing {name}" not in marks else []
                continue
            path = ground.house.artifacts.path(row.id)
            whole = path.read_bytes()[: row.size] == data
            if not whole or path.stat().st_mode & 0o777 != 0o600 or path.parent.stat().st_mode & 0o777 != 0o700:
                problems.append(f"{name} has other bytes or another mode")
        for name in self.entries:
            self._publish(ground, name)  # and it can be done again
        return problems

    def _publish(self, ground: Ground, name: str) -> None:
        store = ground.house.artifacts
        staged = store.stage()
        store.extend(staged, self.entries[name])
        store.publish(staged, key=digest(name), scope="1000", uid=1000, label=name, meta={}, made_at=1.0)


def _nothing_marked() -> Generator[Step, None, Marks]:
    yield Step("leases", 0, 0)
    return Marks()


SCENARIOS: dict[str, type[Scenario]] = {
    "creation": Creation,
    "publish": Publish,
    "publish-again": PublishAgain,
    "package": Package,
    "journal": Journal,
    "cold-round": ColdRound,
    "set-aside": SetAside,
    "removal": Removed,
    "artifacts": Artifacts,
}
