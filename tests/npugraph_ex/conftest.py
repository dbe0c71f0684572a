"""What every test of the backend needs: a clean process, a script of its own, and a client that does as it is told."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import npugraph_ex
from npgxd.client import Outcome
from npgxd.wire.messages import CoreCounts, ToolchainInfo, Welcome
from npgxd.wire.states import ClientState, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npgxd.client.changing import Change

TOOLCHAIN = ToolchainInfo(
    soc="Ascend910B3", family="ascend910b", cann_version="9.1.0", simulated=True, cores=CoreCounts(vector=40, cube=20)
)


def outcome(state: ClientState = ClientState.INSTALLED, reason: Reason = Reason.COMPILED, **facts: Any) -> Outcome:
    known: dict[str, Any] = {
        "state": state,
        "reason": reason,
        "detail": "",
        "hint": "",
        "round": "0" * 32,
        "records": 0,
        "unique": 0,
        "hits": 0,
        "compiled": 0,
        "rejected": (),
        "failures": (),
        "shadowed": (),
        "view": None,
        "packages": (),
        "gathered": 0,
        "simulated": True,
        "toolchain": TOOLCHAIN,
    }
    return Outcome(**(known | facts))


@dataclass
class FakeClient:
    """Stands for npgxd.client.Client: answers every round with ``answer(records)`` and keeps what it was told."""

    answer: Callable[[Sequence[tuple[str, bytes]]], Outcome] | None = None
    toolchain: ToolchainInfo | None = TOOLCHAIN
    told: list[tuple[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def within(self, seconds: float) -> nullcontext[None]:
        return nullcontext()

    def welcome(self) -> Welcome | None:
        if self.toolchain is None:
            return None
        identity = "0" * 32
        return Welcome(
            version=1,
            instance=identity,
            session=identity,
            daemon="test",
            store_id=identity,
            store_path="/nowhere",
            toolchain=self.toolchain,
        )

    def identify(self, *, soc: str = "") -> None:
        self.told.append(("identify", soc))

    def recording(self, graph: str) -> None:
        self.told.append(("recording", graph))

    def report(self, state: ClientState, reason: Reason, *, detail: str = "", graph: str = "") -> None:
        self.told.append(("report", (state, reason, graph)))

    def static_kernels(self, records: Sequence[tuple[str, bytes]], **asked: Any) -> Outcome:
        self.told.append(("submitted", asked["graph"]))
        self.rounds.append({"records": list(records), **asked})
        if self.answer is not None:
            return self.answer(records)
        count = len(records)
        return outcome(records=count, unique=count, compiled=count)

    def static_kernels_in_background(self, records: Sequence[tuple[str, bytes]], **asked: Any) -> None:
        """Nothing happens until a test calls ``ready`` and ``end``, as the client's thread does."""
        self.told.append(("submitted", asked["graph"]))
        self.rounds.append({"records": list(records), **asked})

    def ready(self, number: int = -1, **facts: Any) -> Change:
        """The kernels of a round are leased, and there is nobody to agree with."""
        asked = self.rounds[number]
        count = len(asked["records"])
        asked["outcome"] = outcome(records=count, unique=count, compiled=count, **facts)
        asked["on_ready"](asked["outcome"])
        asked["change"].make_alone()
        return asked["change"]

    def end(self, number: int = -1) -> Outcome:
        """What the graph's follower tells in the end."""
        asked = self.rounds[number]
        return asked["on_end"](asked["outcome"])

    def gathered(self, round_id: str) -> list[tuple[str, bytes]]:
        return [*self.rounds[-1]["records"], *self.rounds[-1]["records"]] if round_id else []


@pytest.fixture(autouse=True)
def clean_process(tmp_path, monkeypatch):
    """A script in tmp_path runs, with no rank variables and no SoC; nothing is remembered from the test before."""
    script = tmp_path / "program" / "train.py"
    script.parent.mkdir()
    script.write_text("# the running script\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "NPGXD_SOC", "NPGXD_WAIT"):
        monkeypatch.delenv(name, raising=False)
    npugraph_ex.reset()
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture
def client(monkeypatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr("npugraph_ex.static_kernels.current", lambda: fake)
    return fake


@pytest.fixture
def make_outcome() -> Callable[..., Outcome]:
    return outcome


@pytest.fixture
def outputs_root(tmp_path):
    return tmp_path / "program" / "static_kernel_compile_outputs"
