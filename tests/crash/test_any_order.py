"""Anything in any order: submit, lease, die, restart, remove, pin, replace an op, damage a kernel, lose the catalog; checked after each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from npgxd.oplib.leases import Leases
from npgxd.oplib.pins import Pins
from npgxd.oplib.recovery import recover
from npgxd.oplib.removal import Budget, Marks, Removal
from npgxd.oplib.sweeping import Step
from npgxd.oplib.views import Views
from npgxd.store.staging import stage_kernel
from tests.crash.ground import drained, verified
from tests.memory import room_in_memory
from tests.store.made import House, digest, files, making, origin, round_entry
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Generator

    from npgxd.oplib.leases import LeaseFacts
    from npgxd.oplib.views import View
    from npgxd.store.manifest import KernelManifest

EXAMPLES = int(os.environ.get("NPGXD_CRASH_EXAMPLES", "30"))
OPS = ("a", "b", "c", "d", "e")
SOME = st.lists(st.sampled_from(OPS), min_size=1, max_size=4, unique=True)
MOMENTS = ("never", "accepted", "published", "viewed", "settled", "offered", "locked")


class Killed(Exception):
    """The daemon was killed at the moment that the rule chose."""


class Node(RuleBasedStateMachine):
    """The store and the op library of one node, with the daemon's order of acts, and clients as held locks."""

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="npgxd-any-", dir=room_in_memory()))
        self.boot = 0
        self.jobs = 0
        self.toolchain = dict.fromkeys(OPS, 0)
        self.unsettled: dict[str, tuple[str, ...]] = {}
        self.held: list[tuple[LeaseFacts, int, View]] = []
        self.pinned: dict[str, str] = {}
        self.damaged: set[str] = set()
        self.start()

    def start(self) -> None:
        self.house = House(self.place / "state", self.place / "scratch")
        self.views = Views(self.house.state, self.house.kernels, f"boot {self.boot}")
        self.leases = Leases(self.house.state, f"boot {self.boot}")
        self.recovery = recover(self.house.state, self.views, self.leases)
        self.pins = Pins(self.house.state)
        assert self.recovery.problems == ()

    def teardown(self) -> None:
        for _, fd, _ in self.held:
            os.close(fd)
        self.house.close()
        shutil.rmtree(self.place)

    # ---- what the daemon does ----

    def key(self, op: str) -> str:
        """Its toolchain's fingerprint is in a kernel's key."""
        return digest(f"{op} {self.toolchain[op]}")

    def compile(self, op: str) -> Path:
        """Compilers are not reproducible: each run gives other bytes."""
        self.jobs += 1
        job = self.house.state.staging / f"job-{self.jobs}"
        made = files(self.place / "scratch" / str(self.jobs), op, f"{op}{self.toolchain[op]} {self.jobs} ".encode())
        facts = replace(origin(op), key=self.key(op), fingerprint=digest(str(self.toolchain[op])))
        stage_kernel(job, facts, making(), made)
        return job

    def serve(self, round_id: str, ops: tuple[str, ...], die: str) -> None:
        """From an accepted round to a lease that a client holds."""
        found = dict(self.house.kernels.find_many([self.key(op) for op in ops]))
        published = self.house.kernels.publish([self.compile(op) for op in ops if self.key(op) not in found])
        self.damaged -= {manifest.id for manifest in published}
        if die == "published":
            raise Killed
        manifests = [*found.values(), *published]
        assert {manifest.key for manifest in manifests} == {self.key(op) for op in ops}
        view = self.views.assemble(manifests)
        if die == "viewed":
            raise Killed
        self.house.rounds.settle(round_id)
        del self.unsettled[round_id]
        if die == "settled":
            raise Killed
        lease = self.leases.offer(view.digest, session=round_id, uid=1, pid=1, started=1.0)
        if die == "offered":
            raise Killed
        fd = os.open(self.house.state.leases / lease.lease, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self.held.append((lease, fd, view))
        if die == "locked":
            raise Killed
        self.leases.confirm(lease.lease)

    def restart(self) -> None:
        """The next life takes up what was accepted; nobody is there any more to lease it."""
        self.house.close()
        self.start()
        pending = {entry.round: tuple(name for name, _ in entry.records) for entry in self.house.rounds.pending()}
        assert pending == self.unsettled, "acknowledged work is lost, or made up"
        for round_id, ops in pending.items():
            self.serve(round_id, ops, "never")
            _, fd, _ = self.held.pop()
            os.close(fd)

    # ---- what may happen ----

    @rule(ops=SOME, die=st.sampled_from(MOMENTS), number=st.integers(1, 2**60))
    def submit(self, ops: list[str], die: str, number: int) -> None:
        entry = round_entry(number, records=tuple((op, b"{}") for op in ops))
        self.house.rounds.accept(entry)
        self.unsettled[entry.round] = tuple(ops)
        try:
            if die == "accepted":
                raise Killed
            self.serve(entry.round, tuple(ops), die)
        except Killed:
            self.restart()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def client_ends(self, data: st.DataObject) -> None:
        _, fd, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        os.close(fd)

    @rule()
    def look_at_leases(self) -> None:
        self.leases.release_dead()
        self.views.drop_unleased(keep=self.leases.views_in_use())

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule()
    def reboot(self) -> None:
        """Every client ends with the machine."""
        while self.held:
            os.close(self.held.pop()[1])
        self.boot += 1
        self.restart()
        assert self.views.count() == self.leases.count() or self.unsettled == {}

    @rule(most=st.sampled_from([1, 30_000, 60_000]))
    def remove(self, most: int) -> None:
        before = self.house.catalog.all_kernel_ids()
        removal = Removal(self.house.state, self.views, self.leases, self.house.packages, self.pins)
        report = drained(removal.collect(Budget(max_bytes=most), self.marking, lambda row: row.fingerprint not in self.current()))
        left = self.house.catalog.all_kernel_ids()
        assert len(before - left) == report.removed
        for op, key in self.pinned.items():
            had = {kernel for kernel in before if self.house.catalog.kernel_ids([key]).get(key) == kernel}
            assert had <= left, f"{op} is pinned"

    def current(self) -> set[str]:
        return {digest(str(number)) for number in self.toolchain.values()}

    def marking(self) -> Generator[Step, None, Marks]:
        used = self.leases.views_in_use()
        yield Step("leases", 0, 0)
        return Marks(frozenset(used), {kernel: "leased" for view in used for kernel in self.views.kernels_of(view)})

    @rule(op=st.sampled_from(OPS))
    def pin(self, op: str) -> None:
        self.pins.put(op, [self.key(op)], 1.0)
        self.pinned[op] = self.key(op)

    @rule(op=st.sampled_from(OPS))
    def unpin(self, op: str) -> None:
        self.pins.remove(op)
        self.pinned.pop(op, None)

    @rule(op=st.sampled_from(OPS))
    def replace_op(self, op: str) -> None:
        self.toolchain[op] += 1

    @rule(op=st.sampled_from(OPS))
    def damage(self, op: str) -> None:
        """While no daemon runs, a kernel's object is replaced; the links that views have keep the bytes that they had."""
        kernel = self.house.catalog.kernel_ids([self.key(op)]).get(self.key(op))
        if kernel is None:
            return
        victim = next(self.house.kernels.directory(kernel).glob("*.o"))
        victim.unlink()
        victim.write_bytes(b"damaged")
        self.damaged.add(kernel)
        self.restart()

    @rule()
    def lose_catalog(self) -> None:
        self.house.close()
        for path in self.place.glob("state/catalog.sqlite*"):
            path.unlink()
        self.start()

    # ---- what always holds ----

    @invariant()
    def everything_holds(self) -> None:
        state = self.house.state
        assert {entry.round for entry in self.house.rounds.pending()} == set(self.unsettled)
        assert {path.name for shelf in state.kernels.iterdir() for path in shelf.iterdir()} == self.house.catalog.all_kernel_ids()
        assert list(state.staging.iterdir()) == []
        for lease, _, view in self.held:
            assert self.leases.is_held(lease.lease)
            self.whole(view.path, len(view.kernels))
        for path in state.views.iterdir():
            self.whole(path, len(self.views.kernels_of(path.name)))
        wrong = [line for line in verified(self.house, self.views, self.leases) if "_damaged" not in line or not self.damaged]
        assert wrong == []
        self.damaged &= self.house.catalog.all_kernel_ids()
        assert self.pins.keys() == set(self.pinned.values())

    @invariant()
    def hits_are_for_the_present_toolchain_and_have_their_own_bytes(self) -> None:
        asked = {self.key(op): op for op in OPS}
        for key, kernel in self.house.catalog.kernel_ids(list(asked)).items():
            if kernel in self.damaged:
                continue
            manifest: KernelManifest = self.house.kernels.verify(kernel)
            op = asked[key]
            assert manifest.origin.fingerprint == digest(str(self.toolchain[op]))
            member = next(member.name for member in manifest.members if member.name.endswith(".o"))
            content = (self.house.kernels.directory(kernel) / member).read_bytes()
            assert content.startswith(f"{op}{self.toolchain[op]} ".encode())

    @staticmethod
    def whole(view: Path, kernels: int) -> None:
        reader = Reader("Ascend910B3")
        report = reader.load(view)
        assert (report.torn, reader.verify(), len(reader.selected)) == ((), (), kernels)
        for path in view.rglob("*.o"):
            told = json.loads(path.with_suffix(".json").read_bytes())
            assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]


TestAnyOrder = Node.TestCase
TestAnyOrder.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    derandomize="NPGXD_CRASH_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
