"""Serving engines of several ranks on one node, which run a step when they are told to and are stopped in every way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from machine import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from machine import Npu

PATIENCE_S = 120.0


class Engine:
    """The rank processes of one engine, ``name``. ``wishes`` are those of ``programs/engine.py``."""

    def __init__(self, npu: Npu, socket: Path, name: str, *, ranks: int = 2, **wishes: Any) -> None:
        self.name = name
        self.wishes = wishes
        rendezvous = npu.directory / f"rendezvous.{name}"
        self.log = npu.directory / f"engine.{name}.log"
        with self.log.open("w") as log:
            self.ranks = [
                subprocess.Popen(
                    [sys.executable, "-W", "ignore", str(PROGRAMS / "engine.py"), "-", json.dumps(wishes)],
                    cwd=npu.directory,
                    env=npu.environment(
                        RANK=str(rank),
                        LOCAL_RANK=str(rank),
                        WORLD_SIZE=str(ranks),
                        LOCAL_WORLD_SIZE=str(ranks),
                        TORCHELASTIC_RUN_ID=name,
                        RENDEZVOUS=str(rendezvous),
                        NPGXD_SOCKET=str(socket),
                    ),
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
                for rank in range(ranks)
            ]

    def step(self, batch: int = 4, *, ranks: Iterable[int] | None = None) -> list[dict[str, Any]]:
        """Have the ranks, or some of them, run a step of ``batch``; what each told of it."""
        chosen = self.ranks if ranks is None else [self.ranks[rank] for rank in ranks]
        for process in chosen:
            process.stdin.write(f"{batch}\n")
            process.stdin.flush()
        return [self._answer(process) for process in chosen]

    def serve(self, batch: int = 4) -> None:
        """Have all ranks run a step, and see that it was static kernels throughout, with right numbers."""
        layers = len(self.wishes["widths"])
        for told in self.step(batch):
            assert told["gone"] == {}
            assert {op: count for op, count in told["static"].items() if op != "TensorMove"} == {
                "Add": layers,
                "MatMulV2": 2 * layers,
                "SoftmaxV2": layers,
                "Swish": layers,
            }
            assert told["off"] < 1e-5

    def stop(self, way: str) -> None:
        """End it by "SIGTERM", "SIGKILL" or "exit", and see that it ends as a process does that nobody has meddled with."""
        for process in self.ranks:
            if way != "exit":
                process.send_signal(signal.Signals[way])
            process.stdin.close()
        ended = [process.wait(PATIENCE_S) for process in self.ranks]
        for process in self.ranks:
            process.stdout.close()
        by_itself = way == "exit" or (way == "SIGTERM" and self.wishes["way"] == "vLLM-Ascend")  # whose handler exits
        assert ended == [0 if by_itself else -signal.Signals[way]] * len(self.ranks), self.log.read_text()[-3000:]

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """A rank's next line; if it does not come in time, the rank is ended and its log shown."""
        too_late = threading.Timer(PATIENCE_S, process.kill)
        too_late.start()
        line = process.stdout.readline()
        too_late.cancel()
        assert line, f"a rank of {self.name} ended or hung: {self.log.read_text()[-3000:]}"
        return json.loads(line)
