"""A daemon without its sockets and its compilers: the live coordinator, ledger, op library and housekeeping over a real state directory.

Kernels are made up on the spot, as a worker would stage them; everything else is what a daemon does, and a kill may come at named moments.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import secrets
import select
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from npgxd.config import load
from npgxd.daemon.compiling.housekeeping import Housekeeping
from npgxd.daemon.keeping.keyer import Keyer
from npgxd.daemon.keeping.stores import Stores
from npgxd.daemon.library.roots import OpLibrary
from npgxd.daemon.scheduling.coordinator import Coordinator
from npgxd.daemon.sessions import Sessions
from npgxd.store.manifest import Origin
from npgxd.store.staging import stage_kernel
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.messages import Hello, Submit
from npgxd.wire.states import RoundState
from tests.memory import room_in_memory
from tests.store.made import files, making
from tools.cann_sim import Costs, SimulatedCann, create, records
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npgxd.config import Config
    from npgxd.daemon.demand.flights import Need
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.sessions import Session

PATIENCE_S = 30.0
PEER = PeerCredentials(os.getuid(), os.getgid(), 0)
SIZES = (16, 32, 48, 64, 80)


class Killed(Exception):
    """The daemon was killed at the moment that was chosen."""


@functools.cache
def toolchain(version: str) -> tuple[SimulatedCann, Keyer, Path, tempfile.TemporaryDirectory[str]]:
    """One simulated CANN for all examples; its op implementations only ever get longer."""
    place = tempfile.TemporaryDirectory(prefix="npgxd-live-", dir=room_in_memory())
    cann = create(Path(place.name) / "cann", version=version, soc="Ascend910B3", costs=Costs(startup_s=0, per_op_s=0))
    path = Path(place.name) / "npgxd.toml"
    return cann, Keyer(_config(cann, Path(place.name), path).toolchain.settings(), {}, path.with_name("memo.json")), path, place


def _config(cann: SimulatedCann, place: Path, path: Path) -> Config:
    path.write_text(
        f'[daemon]\nstate_dir = "{place / "state"}"\nruntime_dir = "{place / "run"}"\n'
        f'[toolchain]\nhome = "{cann.home}"\nopp = "{cann.opp}"\nsoc = "Ascend910B3"\n'
        '[store]\nmax_gb = 0.00001\nmin_free_gb = 0\nrecent_s = 0\n[op_library]\nleave_after_s = 30.0\nunreadable = "ignore"\n'
    )
    return load(path, user=False, environ={})


@dataclass(eq=False)
class Client:
    """A process that leases; it loads the default root at its start, as every process does."""

    reader: Reader
    session: Session | None = None
    leases: dict[str, int] = field(default_factory=dict)
    """Lease -> the descriptor that holds its lock."""

    def end(self) -> None:
        for fd in self.leases.values():
            os.close(fd)
        self.leases.clear()


class Live:
    """One node: ``start`` a daemon, ``kill`` it, and do with it what ranks and administrators do."""

    last: ClassVar[float] = 1000.0
    """Time does not go back between two examples, which share their toolchain."""

    def __init__(self, version: str, place: Path) -> None:
        self.cann, self.keyer, path, _ = toolchain(version)
        self.place = place
        self.config = _config(self.cann, place, path)
        self.now = Live.last
        self.clients: list[Client] = []
        self.jobs = 0
        self.meanwhile: list[Callable[[], object]] = []
        """What happens while rounds are being settled."""
        self.damaged: set[str] = set()
        """Kernels of which somebody replaced the store's copy."""
        self.start()

    def start(self) -> None:
        self.stores = Stores.open(self.config.state_dir)
        self.stores.recover()
        self.sessions = Sessions()
        self.library = OpLibrary(self.config.op_library, self.stores, self.keyer, self.sessions)
        self.coordinator = Coordinator(self.config, self.stores, self.keyer, self.sessions, self.library)
        self.coordinator.settling.clock = itertools.count().__next__
        self.stores.views.step_files = 1
        self.housekeeping = Housekeeping(self.config.store, self.stores, self.keyer, self.coordinator)
        for client in self.clients:
            self.hello(client)
        self.coordinator.resume(self.stores.rounds.pending(), self.now)

    def kill(self) -> None:
        """Nothing is said to anybody; the process's end lets go of its locks."""
        self.library.close()
        self.stores.close()
        Live.last = self.now + 1.0

    def restart(self) -> None:
        self.kill()
        for client in [client for client in self.clients if not client.leases]:
            self.clients.remove(client)  # of such a process the next daemon cannot know before it says hello
        self.start()

    # ---- ranks ----

    def client(self) -> Client:
        made = Client(Reader("Ascend910B3"))
        made.reader.load_default(self.cann.env())
        self.clients.append(made)
        self.hello(made)
        return made

    def hello(self, client: Client) -> None:
        client.session = self.sessions.open(secrets.token_bytes(5), PEER, Hello(versions=(1,)), self.now)
        for lease in client.leases:
            facts = self.stores.leases.facts_of(lease)
            assert facts is not None, "a lease that is held is there"
            client.session.leases.add(lease)
            self.coordinator.loaded(client.session, facts.view)
        self.library.returned(client.session, self.now)

    def submit(self, client: Client, sizes: list[int], name: str) -> Round:
        assert client.session is not None
        self.keyer.refresh(self.now)
        raw = [(f"{size}.json", records.encode(records.matmul(size, 32, 64))) for size in sizes]
        return self.coordinator.accept(client.session, Submit(round=name), raw, self.now)

    def lease(self, client: Client, settled: Round, die: str) -> None:
        assert client.session is not None
        told = settled.result
        assert told is not None
        if told.view is None:
            return
        assert self.coordinator.may_lease(client.session, told.view)
        offer = self.stores.leases.offer(told.view, session=client.session.id, uid=PEER.uid, pid=0, started=0.0)
        client.session.leases.add(offer.lease)
        fd = os.open(self.stores.state.leases / offer.lease, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        client.leases[offer.lease] = fd
        if told.root:
            client.reader.load_default(self.cann.env())
        else:
            client.reader.load(self.stores.views.path(told.view))
        if die == "locked":  # the lock is what counts: the client goes on with what it has
            raise Killed
        self.coordinator.loaded(client.session, self.stores.leases.confirm(offer.lease))

    def gone(self, client: Client) -> None:
        client.end()
        self.clients.remove(client)
        if client.session is not None:
            self.sessions.end(client.session)
            self.stores.leases.session_ended(client.session.id)
        self.release()

    def release(self) -> None:
        """Look for leases that have ended, and for views that nobody needs."""
        for _ in self.stores.releasing(lambda: self.coordinator.views_in_use(self.now)):
            pass
        assert self.stores.beside.idle(PATIENCE_S)

    # ---- the loop ----

    def work(self, die: str = "never") -> None:
        """Turn until every round is settled and the op library has nothing to do."""
        while any(r.result is None for r in self.coordinator.rounds.values()):
            self.now += 5.0
            self.keyer.refresh(self.now)
            self.coordinator.tick(self.now)
            self.compile(die)
            self.settle(die)
            self.turn()

    def settle(self, die: str = "never") -> None:
        """Make the views of complete rounds, one file at a time; between two of them anything may happen."""
        while self.coordinator.settling:
            self.coordinator.settle(self.now)
            if self.coordinator.settling and self.meanwhile:
                self.meanwhile.pop()()
            elif self.coordinator.settling and die == "settling":
                raise Killed

    def turn(self) -> None:
        """One task of the op library, if it has one."""
        due = self.library.tick(self.now, lambda: self.coordinator.views_in_use(self.now))
        if due == float("inf") and self.cann.version != "9.1.0":
            assert select.select([self.library.fileno()], [], [], PATIENCE_S)[0], "the task ends"
        for name, placed in self.library.take(self.now).items():
            self.coordinator.placed(name, placed, self.now)

    def compile(self, die: str) -> None:
        """What the workers would be given, they have made."""
        waiting = [r for r in self.coordinator.rounds.values() if r.result is None and r.state is not RoundState.WAITING]
        needs = {key: r.needs[key] for r in waiting for key in r.open_keys}
        moved = [key for key, need in needs.items() if not self.keyer.is_current(need)]
        if moved:
            self.coordinator.moved(moved, self.now)
        made = [need for key, need in needs.items() if key not in moved]
        if not made:
            return
        there = self.stores.catalog.kernel_ids([need.key for need in made]).values()
        assert self.damaged.issuperset(there), "what is there is not compiled again"
        self.jobs += 1
        published = self.stores.kernels.publish([self.stage(need) for need in made])
        if die == "published":
            raise Killed
        self.coordinator.landed(published)

    def stage(self, need: Need) -> Path:
        """Compilers are not reproducible: each run gives other bytes."""
        assert self.keyer.toolchain is not None
        content = self.content(need) + f" {self.jobs}".encode()
        key = f"{need.record.op_type}/{need.record.digest}"
        scratch = self.place / "scratch" / f"{self.jobs}-{need.key[:12]}"
        origin = Origin(
            key=need.key,
            op_type=need.record.op_type,
            record=need.record.canonical.decode(),
            record_digest=need.record.digest,
            fingerprint=need.fingerprint,
            soc=self.keyer.toolchain.soc,
            family=self.keyer.toolchain.family,
            cann_version=self.keyer.toolchain.cann_version,
        )
        staged = self.stores.state.staging / f"job-{self.jobs}-{need.key[:12]}"
        stage_kernel(staged, origin, making(), files(scratch, need.record.digest, content, keys=[key]))
        return staged

    @staticmethod
    def content(need: Need) -> bytes:
        return f"{need.record.digest} {need.fingerprint}".encode()

    def collect(self) -> None:
        """A whole pass of removal."""
        task = self.housekeeping.request(self.now)
        while not task.run():
            pass
        assert task.error is None
        assert self.stores.beside.idle(PATIENCE_S)

    # ---- what is seen ----

    def fresh(self) -> Reader:
        """A process that starts now."""
        reader = Reader("Ascend910B3")
        report = reader.load_default(self.cann.env())
        assert report.torn == ()
        assert reader.verify() == ()
        return reader

    def kernel_files(self) -> Iterator[Path]:
        return self.stores.state.kernels.glob("*/*/*.o")
