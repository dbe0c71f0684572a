"""Anything in any order, through the live coordinator and op library, with views and with a shared root; checked after each step."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from npgxd.oplib.shared_root_place import default_root
from npgxd.wire.messages import CompileOptions
from npgxd.wire.states import ClientState, Reason
from tests.crash.ground import verified
from tests.crash.live import SIZES, Client, Killed, Live
from tests.memory import room_in_memory
from tests.oplib.shared_root_made import FOREIGN_KEY, foreign, index_of
from tools.cann_sim import records

if TYPE_CHECKING:
    from npgxd.daemon.demand.rounds import Round

EXAMPLES = int(os.environ.get("NPGXD_CRASH_EXAMPLES", "10"))
SOME = st.lists(st.sampled_from(SIZES), min_size=1, max_size=3, unique=True)
WHICH = st.integers(0, 99)
"""One of those that are there: what there is depends on more than what hypothesis has chosen."""
MOMENTS = ("never", "never", "accepted", "published", "settling", "settled", "locked")
MEANWHILE = st.lists(st.sampled_from(["remove", "replace_op", "release", "another", "again"]), max_size=3)
"""What comes between two slices of settling a round; ``another``: a rank that wants the same, ``again``: this one, on a new connection."""
EXPLAINED = {Reason.RESTART_NEEDED, Reason.SHADOWED}
"""Why a round may be degraded: its process has loaded, or may have, what the same keys had before an operator was replaced."""


class Views(RuleBasedStateMachine):
    """A node with CANN 9.1.0."""

    version: ClassVar = "9.1.0"

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="npgxd-live-", dir=room_in_memory()))
        self.live = Live(self.version, self.place)
        self.root = default_root(self.live.cann.env())
        shutil.rmtree(self.root / "static_kernel", ignore_errors=True)
        self.pinned: set[int] = set()
        self.open: dict[str, list[int]] = {}
        """Rounds that were accepted, and not told to anybody yet."""

    def teardown(self) -> None:
        for client in self.live.clients:
            client.end()
        self.live.kill()
        shutil.rmtree(self.place)

    # ---- what may happen ----

    @rule(sizes=SOME, die=st.sampled_from(MOMENTS), again=st.booleans(), meanwhile=MEANWHILE)
    def submit(self, sizes: list[int], die: str, again: bool, meanwhile: list[str]) -> None:
        live = self.live
        client = live.clients[0] if again and live.clients else live.client()
        name = secrets.token_hex(16)
        acts = {
            "remove": self.remove,
            "replace_op": self.replace_op,
            "release": live.release,
            "another": lambda: live.submit(live.client(), sizes, secrets.token_hex(16)),
            "again": lambda: (live.hello(client), live.submit(client, sizes, name)),
        }
        live.meanwhile = [acts[what] for what in meanwhile]
        try:
            taken = live.submit(client, sizes, name)
            self.open[name] = sizes
            if die == "accepted" and taken.result is None:
                raise Killed
            live.work(die)
            if die == "settled":
                raise Killed
            live.lease(client, taken, die)
        except Killed:
            self.restart()
            if client not in live.clients:
                client = live.client()
            taken = live.submit(client, sizes, name)
            live.work()
            live.lease(client, taken, "never")
        live.meanwhile.clear()
        del self.open[name]
        self.told(client, taken)

    def restart(self) -> None:
        """Rounds that are not settled are taken up, also those whose kernels are all there."""
        unsettled = {name for name, known in self.live.coordinator.rounds.items() if known.result is None}
        self.live.restart()
        assert unsettled <= self.live.coordinator.rounds.keys(), "acknowledged work is lost"
        self.live.work()

    def told(self, client: Client, settled: Round) -> None:
        """INSTALLED means: this process runs, for every record of the round, a kernel of the present toolchain made for that record."""
        told = settled.result
        assert told is not None
        if told.state is not ClientState.INSTALLED:
            assert (told.state, told.failed) == (ClientState.DEGRADED, 0)
            assert told.reason in EXPLAINED
        shadowed = {item.key for item in told.shadowed}
        assert bool(shadowed) == (told.state is ClientState.DEGRADED)
        for need in settled.needs.values():
            assert self.live.keyer.is_current(need)
            if need.key not in shadowed:
                kernel = client.reader.selected[f"{need.record.op_type}/{need.record.digest}"]
                assert kernel.open().startswith(self.live.content(need))

    @precondition(lambda self: bool(self.live.clients))
    @rule(which=WHICH)
    def client_ends(self, which: int) -> None:
        self.live.gone(self.live.clients[which % len(self.live.clients)])

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule(seconds=st.sampled_from([3.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(3):
            self.live.now += seconds
            self.live.turn()

    @rule()
    def remove(self) -> None:
        before = {path.parent.name for path in self.live.kernel_files()}
        pinned = self.live.stores.catalog.kernel_ids(sorted(self.live.stores.pins.keys())).values()
        self.live.collect()
        assert before.intersection(pinned) <= {path.parent.name for path in self.live.kernel_files()}

    def key(self, size: int) -> str:
        """A record's key under the present toolchain."""
        parsed, _ = self.live.keyer.parse([("r.json", records.encode(records.matmul(size, 32, 64)))])
        return self.live.keyer.needs(parsed, CompileOptions(), 0)[0].key

    @rule(size=st.sampled_from(SIZES))
    def pin(self, size: int) -> None:
        self.live.stores.pins.put(str(size), [self.key(size)], 1.0)

    @rule(size=st.sampled_from(SIZES))
    def unpin(self, size: int) -> None:
        self.live.stores.pins.remove(str(size))

    @rule()
    def replace_op(self) -> None:
        before = self.key(SIZES[0])
        source = next(self.live.cann.opp.glob("built-in/**/mat_mul_v2.py"))
        source.write_text(source.read_text() + "# another\n")
        self.live.now += 1.0
        self.live.keyer.refresh(self.live.now)
        assert self.key(SIZES[0]) != before

    @rule(which=WHICH)
    def damage(self, which: int) -> None:
        """While no daemon runs, a kernel's object is replaced in the store; the links that views have keep the bytes that they had."""
        there = sorted(self.live.kernel_files())
        if there:
            victim = there[which % len(there)]
            self.live.kill()
            victim.unlink()
            victim.write_bytes(b"damaged")
            self.live.damaged.add(victim.parent.name)
            self.live.start()
            self.live.work()

    @rule()
    def lose_catalog(self) -> None:
        self.live.kill()
        for path in self.place.glob("state/catalog.sqlite*"):
            path.unlink()
        self.live.start()
        self.live.work()

    # ---- what always holds ----

    @invariant()
    def everything_holds(self) -> None:
        stores = self.live.stores
        unsettled = {name for name, known in self.live.coordinator.rounds.items() if known.result is None}
        assert unsettled == {entry.round for entry in stores.rounds.pending()} == set()
        on_disk = {path.name for shelf in stores.state.kernels.iterdir() for path in shelf.iterdir()}
        assert on_disk == stores.catalog.all_kernel_ids()
        assert list(stores.state.staging.iterdir()) == []
        wrong = [
            line for line in verified(stores, stores.views, stores.leases) if "_damaged" not in line or not self.live.damaged
        ]
        assert wrong == []
        for client in self.live.clients:
            assert all(stores.leases.is_held(lease) for lease in client.leases)
            assert client.reader.torn == []
            assert client.reader.verify() == (), "what a living process loaded stays as it is"
        self.live.fresh()


class SharedRoot(Views):
    """A node with CANN 9.0.0, whose default root holds another installer's kernel, too."""

    version: ClassVar = "9.0.0"

    @initialize()
    def begin(self) -> None:
        super().begin()
        foreign(self.root)
        self.others = index_of(self.root).read_bytes()

    @precondition(lambda self: any(self.root.glob("static_kernel/ai_core/npgxd_*")))
    @rule(which=WHICH, how=st.sampled_from(["directory", "object", "index"]), down=st.booleans())
    def damage_the_root(self, which: int, how: str, down: bool) -> None:
        """Others remove or overwrite what is ours; it is mended by itself, without a compile, unless the store's copy is damaged, too."""
        live, jobs = self.live, self.live.jobs
        ai_core = self.root / "static_kernel/ai_core"
        there = sorted(ai_core.glob("npgxd_*"))
        victim = there[which % len(there)]
        if any(kernel.startswith(victim.name.removeprefix("npgxd_")) for kernel in live.damaged):
            return
        if down:
            live.kill()
        if how == "directory":
            shutil.rmtree(victim)
        elif how == "object":
            next(victim.rglob("*.o")).write_bytes(b"overwritten")
        else:
            index_of(self.root).write_bytes(self.others)
        if down:
            live.start()
        for _ in range(4):
            live.now += 3.0
            live.turn()
        assert live.jobs == jobs

    @invariant()
    def others_are_left_alone(self) -> None:
        assert FOREIGN_KEY in self.live.fresh().selected


def _settings() -> settings:
    return settings(
        max_examples=EXAMPLES,
        stateful_step_count=20,
        deadline=None,
        derandomize="NPGXD_CRASH_EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


TestAnyOrderWithViews = Views.TestCase
TestAnyOrderWithViews.settings = _settings()
TestAnyOrderWithASharedRoot = SharedRoot.TestCase
TestAnyOrderWithASharedRoot.settings = _settings()
