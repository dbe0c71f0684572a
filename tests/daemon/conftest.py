"""A daemon's parts without its loop: real stores, a real simulated toolchain, sessions of this process."""

from __future__ import annotations

import os
import secrets
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.config import load
from npgxd.daemon.administering.acts import Acts
from npgxd.daemon.caching.lookups import Lookups
from npgxd.daemon.compiling.dispatch import Dispatcher
from npgxd.daemon.keeping.keyer import Keyer
from npgxd.daemon.keeping.stores import Stores
from npgxd.daemon.scheduling.coordinator import Coordinator
from npgxd.daemon.serving.handlers import Handlers
from npgxd.daemon.sessions import Session, Sessions
from npgxd.daemon.telling.explaining import Explainer
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.messages import Hello, RankInfo, Submit
from tools.cann_sim import Costs, SimulatedCann, create, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from npgxd.config import Config
    from npgxd.daemon.demand.rounds import Round

NOBODY = PeerCredentials(os.getuid(), os.getgid(), 0)


@dataclass
class Parts:
    """All of a daemon but its sockets."""

    cann: SimulatedCann
    stores: Stores
    keyer: Keyer
    sessions: Sessions
    coordinator: Coordinator
    dispatcher: Dispatcher
    handlers: Handlers
    explainer: Explainer
    config: Config

    def session(self, peer: PeerCredentials = NOBODY, **rank: object) -> Session:
        return self.sessions.open(secrets.token_bytes(5), peer, Hello(versions=(1,), rank=RankInfo(**rank)), 0.0)

    def submit(self, session: Session, *sizes: int, now: float = 0.0, name: str = "", bad: bytes = b"") -> Round:
        raw = [(f"{size}.json", records.encode(records.matmul(size, 32, 64))) for size in sizes]
        raw += [("bad.json", bad)] if bad else []
        return self.coordinator.accept(session, Submit(round=name or secrets.token_hex(16)), raw, now)

    def take(self, session: Session, *described: dict[str, Any], now: float = 0.0, graph: str = "") -> Round:
        raw = [(f"{number}.json", records.encode(item)) for number, item in enumerate(described)]
        return self.coordinator.accept(session, Submit(round=secrets.token_hex(16), graph=graph), raw, now)

    def tick(self, now: float) -> float:
        """Time has passed: what the loop does until all rounds that are complete are settled."""
        due = self.coordinator.tick(now)
        while self.coordinator.settling:
            self.coordinator.settle(now)
        return due

    def drive(self, until: Callable[[], bool], now: float = 0.0) -> None:
        """Turn the dispatcher until something has become true: real workers, no loop."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if until():
                return
            self.coordinator.settle(now)
            self.dispatcher.tick(now)
            for fileno in select.select(self.dispatcher.filenos(), [], [], 0.05)[0]:
                self.dispatcher.read(fileno, now)
        raise AssertionError("never happened")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    cann = create(tmp_path / "cann", version="9.1.0", soc="Ascend910B3", costs=Costs(startup_s=0, per_op_s=0))
    path = tmp_path / "npgxd.toml"
    path.write_text(f"""
        [daemon]
        state_dir = "{tmp_path / "state"}"
        runtime_dir = "{tmp_path / "run"}"
        [toolchain]
        home = "{cann.home}"
        opp = "{cann.opp}"
        soc = "Ascend910B3"
    """)
    config = load(path, user=False, environ={})
    stores = Stores.open(config.state_dir)
    keyer = Keyer(config.toolchain.settings(), {}, tmp_path / "memo.json")
    sessions = Sessions()
    coordinator = Coordinator(config, stores, keyer, sessions)
    dispatcher = Dispatcher(config, stores, keyer, coordinator)
    explainer = Explainer(stores, sessions, coordinator, dispatcher.history, dispatcher.stage)
    handlers = Handlers(
        instance="0" * 32,
        stores=stores,
        keyer=keyer,
        sessions=sessions,
        coordinator=coordinator,
        lookups=Lookups(config.cache, 0, stores),
        cached=lambda _peer, _match, _now: [],
        explained=explainer.frames,
        status=lambda _now: [],
    )
    yield Parts(cann, stores, keyer, sessions, coordinator, dispatcher, handlers, explainer, config)
    dispatcher.stop()
    for session in sessions:
        sessions.end(session)
    stores.close()


@pytest.fixture
def acts(parts: Parts) -> Acts:
    """What administrators may ask for at once."""
    return Acts(parts.stores, parts.coordinator, None, None, parts.explainer, lambda _why, _at_once: None)
